"""Answers a few standard programs without a process, with the same output as the programs.

Starting a process costs milliseconds, and the doctor's lowest level runs none at all. `answer` returns None for
arguments it does not know exactly; then the real program is run. Captures hold the answers like those of any command.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import platform
import time
from typing import TYPE_CHECKING

from npuenv.host.base import Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORDS = ("-eo", "pid,ppid,stat,comm")
_AT_MOST = 5000  # the table is for reading, not for counting every thread


def table() -> str:
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
    return f"{number:>7} {words[1]:>7} {_letters(number, words):<4} {_shown(name, words[0])}\n"


def _letters(number: int, words: list[str]) -> str:
    """`ps`'s STAT: state, < or N for its priority, s session leader, l more than one thread, + in the foreground."""
    nice = int(words[16])
    marks = "<" if nice < 0 else "N" if nice > 0 else ""
    marks += "s" if words[3] == str(number) else ""
    marks += "l" if int(words[17]) > 1 else ""
    marks += "+" if words[2] == words[5] else ""
    return words[0] + marks


def _shown(name: str, state: str) -> str:
    clean = name.replace("\n", "?")
    return f"{clean} <defunct>" if state == "Z" else clean


_UNAME = {"-s": "sysname", "-n": "nodename", "-r": "release", "-v": "version", "-m": "machine"}
_DATE = "+%Y-%m-%dT%H:%M:%SZ"


def is_answered(argv: Sequence[str]) -> bool:
    """Whether this command is answered here without running a program."""
    if not argv or argv[0] not in _ANSWERS:
        return False
    words = _ONLY_WITH.get(argv[0], ())
    return tuple(argv[1 : 1 + len(words)]) == words


def answer(argv: Sequence[str]) -> Ran | None:
    """The output of the program; None if the real one has to run."""
    ask = _ANSWERS.get(argv[0]) if argv else None
    if ask is None:
        return None
    try:
        out = ask(tuple(argv[1:]))
    except OSError as error:
        words = f"{argv[0]}: {argv[-1]}: {error.strerror}\n"
        return Ran(tuple(argv), 1, "", words)
    if isinstance(out, int):
        return Ran(tuple(argv), out, "", "")
    return None if out is None else Ran(tuple(argv), 0, out, "")


def _uname(words: tuple[str, ...]) -> str | None:
    if len(words) != 1 or words[0] not in _UNAME:
        return None
    return str(getattr(os.uname(), _UNAME[words[0]])) + "\n"


def _date(words: tuple[str, ...]) -> str | None:
    return time.strftime(_DATE[1:], time.gmtime()) + "\n" if words == ("-u", _DATE) else None


def _nproc(words: tuple[str, ...]) -> str | None:
    return f"{len(os.sched_getaffinity(0))}\n" if not words else None


def _getconf(words: tuple[str, ...]) -> str | None:
    """`glibc 2.36`; None for another C library."""
    if words != ("GNU_LIBC_VERSION",):
        return None
    name, version = platform.libc_ver()
    return f"{name} {version}\n" if name == "glibc" and version else None


def _readlink(words: tuple[str, ...]) -> str | None:
    if len(words) == 1 and not words[0].startswith("-"):
        return os.readlink(words[0]) + "\n"
    if len(words) == 2 and words[0] == "-f":
        return os.path.realpath(words[1]) + "\n"
    return None


def _sha256sum(words: tuple[str, ...]) -> str | None:
    """Of one small file; a large one, which takes long, is left to the program and its time limit."""
    if len(words) != 1 or not os.path.isfile(words[0]) or os.path.getsize(words[0]) > 1 << 20:
        return None
    with open(words[0], "rb") as file:
        return f"{hashlib.sha256(file.read()).hexdigest()}  {words[0]}\n"


def _id(words: tuple[str, ...]) -> str | None:
    if words == ("-u",):
        return f"{os.geteuid()}\n"
    if words == ("-G",):
        return " ".join(map(str, sorted({os.getegid(), *os.getgroups()}))) + "\n"
    return _account() if not words else None


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


def _getent(words: tuple[str, ...]) -> str | int | None:
    """`getent group NAME`, or its exit status for an unknown name."""
    if len(words) != 2 or words[0] != "group":
        return None
    import grp

    try:
        entry = grp.getgrnam(words[1])
    except KeyError:
        return 2
    return f"{entry.gr_name}:x:{entry.gr_gid}:{','.join(entry.gr_mem)}\n"


def _test(words: tuple[str, ...]) -> int | None:
    """The exit status of `test -w PATH`."""
    if len(words) != 2 or words[0] != "-w":
        return None
    return 0 if os.access(words[1], os.W_OK) else 1


def _head(words: tuple[str, ...]) -> str | None:
    """`head -n NUMBER PATH`."""
    if len(words) != 3 or words[0] != "-n" or not words[1].isdecimal():
        return None
    with open(words[2], encoding="utf-8", errors="replace") as file:
        return "".join(itertools.islice(file, int(words[1])))


def _ps(words: tuple[str, ...]) -> str | None:
    return table() if words == WORDS else None


def _df(words: tuple[str, ...]) -> str | None:
    """`df -kP PATH` and `df -iP PATH`, in the format of POSIX."""
    if len(words) != 2 or words[0] not in ("-kP", "-iP"):
        return None
    system = os.statvfs(words[1])
    source, location = _mount_of(os.path.realpath(words[1]))
    if words[0] == "-iP":
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


# Only some commands of these programs are answered here: those that start with these arguments.
_ONLY_WITH: dict[str, tuple[str, ...]] = {
    "getent": ("group",),
    "test": ("-w",),
    "head": ("-n",),
    "ps": WORDS,
}


# Each returns the output, or an exit status without output, or None for arguments that it does not know.
def _elf(words: tuple[str, ...]) -> str | None:
    """One JSON document about extension modules."""
    from npuenv.host import shared_objects as elf  # imported only if needed, because it imports pyelftools

    return elf.document(words)


_ANSWERS: dict[str, Callable[[tuple[str, ...]], str | int | None]] = {
    "uname": _uname,
    "date": _date,
    "nproc": _nproc,
    "getconf": _getconf,
    "readlink": _readlink,
    "sha256sum": _sha256sum,
    "id": _id,
    "df": _df,
    "npuenv-elf": _elf,
    "getent": _getent,
    "test": _test,
    "head": _head,
    "ps": _ps,
}
