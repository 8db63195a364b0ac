"""Answers a few standard programs without a process, with the same output as the programs.

Starting a process costs milliseconds, and the doctor's lowest level runs none at all. `answer` returns None for
arguments it does not know exactly; then the real program is run. Captures hold the answers like those of any command.
"""

from __future__ import annotations

import itertools
import math
import os
import platform
import time
from typing import TYPE_CHECKING

from npuenv.host import Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_AT_MOST = 5000  # the table is for reading, not for counting every thread
_UNAME = {"-s": "sysname", "-n": "nodename", "-r": "release", "-v": "version", "-m": "machine"}
_DATE = "+%Y-%m-%dT%H:%M:%SZ"


def _table() -> str:
    """One row per process by number, at most 5000; those that end during the reading are left out."""
    numbers = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    rows = (_row(number) for number in numbers[:_AT_MOST])
    return "    PID    PPID STAT COMMAND\n" + "".join(row for row in rows if row is not None)


def _row(number: int) -> str | None:
    """A row like `    412       1 Sl   raylet`."""
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None  # it has ended meanwhile
    name, fields = text.partition("(")[2].rpartition(")")[::2]
    words = fields.split()
    if len(words) < 18:
        return None
    # `ps`'s STAT: state, < or N for its priority, s session leader, l more than one thread, + in the foreground.
    nice = int(words[16])
    letters = words[0] + ("<" if nice < 0 else "N" if nice > 0 else "")
    letters += "s" if words[3] == str(number) else ""
    letters += "l" if int(words[17]) > 1 else ""
    letters += "+" if words[2] == words[5] else ""
    end = " <defunct>" if words[0] == "Z" else ""
    return f"{number:>7} {words[1]:>7} {letters:<4} {name.replace(chr(10), '?')}{end}\n"


def is_answered(argv: Sequence[str]) -> bool:
    """Whether this command is answered here without running a program."""
    return _found(argv) is not None


def answer(argv: Sequence[str]) -> Ran | None:
    """The output of the program; None if the real one has to run."""
    found = _found(argv)
    try:
        out = found[0](*found[1]) if found else None
    except OSError as error:
        return Ran(tuple(argv), 1, "", f"{argv[0]}: {argv[-1]}: {error.strerror}\n")
    if isinstance(out, int):
        return Ran(tuple(argv), out, "", "")
    return None if out is None else Ran(tuple(argv), 0, out, "")


def _found(argv: Sequence[str]) -> tuple[Callable[..., str | int | None], Sequence[str]] | None:
    """What answers a command, with the words that it gets."""
    for fixed, count, ask in _ANSWERS:
        words = tuple(fixed.split())
        rest = argv[len(words) :]
        if tuple(argv[: len(words)]) == words and count in (None, len(rest)):
            return ask, rest
    return None


def _getconf() -> str | None:
    """`glibc 2.36`; None for another C library."""
    name, version = platform.libc_ver()
    return f"{name} {version}\n" if name == "glibc" and version else None


def _sha256sum(path: str) -> str | None:
    """Of one small file; a large one, which takes long, is left to the program and its time limit."""
    if not os.path.isfile(path) or os.path.getsize(path) > 1 << 20:
        return None
    import hashlib

    with open(path, "rb") as file:
        return f"{hashlib.sha256(file.read()).hexdigest()}  {path}\n"


def _account() -> str:
    """`uid=1000(bob) gid=1000(bob) groups=1000(bob),1001(HwHiAiUser)`; a number without an entry has no name."""
    import grp
    import pwd

    def named(number: int, look: Callable[[int], object]) -> str:
        try:
            entry: object = look(number)
        except KeyError:
            return str(number)
        return f"{number}({entry[0]})"  # type: ignore[index]  # both kinds of entry start with the name

    uid, gid = os.geteuid(), os.getegid()
    groups = [gid, *sorted(set(os.getgroups()) - {gid})]
    listed = ",".join(named(number, grp.getgrgid) for number in groups)
    return f"uid={named(uid, pwd.getpwuid)} gid={named(gid, grp.getgrgid)} groups={listed}\n"


def _getent(name: str) -> str | int:
    """The row of a group, or the program's exit status for an unknown one."""
    import grp

    try:
        entry = grp.getgrnam(name)
    except KeyError:
        return 2
    return f"{entry.gr_name}:x:{entry.gr_gid}:{','.join(entry.gr_mem)}\n"


def _head(count: str, path: str) -> str | None:
    if not count.isdecimal():
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join(itertools.islice(file, int(count)))


def _df(path: str, *, is_inodes: bool = False) -> str:
    """In the format of POSIX."""
    system = os.statvfs(path)
    source, location = _mount_of(os.path.realpath(path))
    if is_inodes:
        titles, total, free, left = "Inodes IUsed IFree IUse%", system.f_files, system.f_ffree, system.f_favail
    else:
        unit = system.f_frsize / 1024
        titles = "1024-blocks Used Available Capacity"
        total, free, left = (int(n * unit) for n in (system.f_blocks, system.f_bfree, system.f_bavail))
    used = total - free
    share = f"{math.ceil(100 * used / (used + left))}%" if used + left else "-"
    return f"Filesystem {titles} Mounted on\n{source} {total} {used} {left} {share} {location}\n"


def _mount_of(path: str) -> tuple[str, str]:
    """(source, mount point) of the mount of a path; ("-", "/") if the table cannot be read."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            rows = [line.split(" ") for line in file if line.count(" ") >= 5]
    except OSError:
        return "-", "/"  # without /proc; the figures come from a system call anyway
    holding = [row for row in rows if path == row[1] or path.startswith(row[1].rstrip("/") + "/")]
    best = max(holding, key=lambda row: len(row[1]), default=["-", "/"])
    return best[0], best[1]


def _elf(*words: str) -> str | None:
    from npuenv.host import shared_objects  # imported only if needed, because it imports pyelftools

    return shared_objects.document(words)


# The words of a command, how many more follow (None: any number), and what those give: the output, an exit status
# without output, or None where the real program has to run.
_ANSWERS: tuple[tuple[str, int | None, Callable[..., str | int | None]], ...] = (
    *((f"uname {word}", 0, lambda name=name: f"{getattr(os.uname(), name)}\n") for word, name in _UNAME.items()),
    (f"date -u {_DATE}", 0, lambda: time.strftime(_DATE[1:], time.gmtime()) + "\n"),
    ("nproc", 0, lambda: f"{len(os.sched_getaffinity(0))}\n"),
    ("getconf GNU_LIBC_VERSION", 0, _getconf),
    ("readlink -f", 1, lambda path: os.path.realpath(path) + "\n"),
    ("readlink -e", 1, lambda path: os.path.realpath(path) + "\n" if os.path.exists(path) else 1),
    ("readlink", 1, lambda path: None if path.startswith("-") else os.readlink(path) + "\n"),
    ("sha256sum", 1, _sha256sum),
    ("id -u", 0, lambda: f"{os.geteuid()}\n"),
    ("id -G", 0, lambda: " ".join(map(str, sorted({os.getegid(), *os.getgroups()}))) + "\n"),
    ("id", 0, _account),
    ("df -kP", 1, _df),
    ("df -iP", 1, lambda path: _df(path, is_inodes=True)),
    ("getent group", 1, _getent),
    ("test -w", 1, lambda path: 0 if os.access(path, os.W_OK) else 1),
    ("head -n", 2, _head),
    ("ps -eo pid,ppid,stat,comm", 0, _table),
    ("npuenv-elf", None, _elf),
)
