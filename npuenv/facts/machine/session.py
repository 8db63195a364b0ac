"""What programs of this session meet: the C++ library, locale and time zone, and the processes beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.collector import FactGroup, fact
from npuenv.facts.read import why_failed
from npuenv.host.base import NotRecorded, PathState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npuenv.host.base import Host

_LIBSTDCXX = "libstdc++.so.6"
_VERSION = re.compile(r"libstdc\+\+\.so\.6\.0\.([0-9]+)$")
_SYSTEM_FOLDERS = ("/usr/lib/{arch}-linux-gnu", "/usr/lib64", "/lib64", "/lib/{arch}-linux-gnu", "/usr/lib")
_FOLDERS_AT_MOST = 40


class CxxLibrary(NamedTuple):
    """The first libstdc++ on the loader's path. It has the symbol versions up to GLIBCXX_3.4.`level`."""

    path: str
    level: int | None  # None: it is a file of its own, whose name does not say it
    is_from_path: bool  # LD_LIBRARY_PATH put it before the system's


def libstdcxx(host: Host, arch: str | None) -> Fact[CxxLibrary]:
    """Found by its file's name: libstdc++.so.6 is a link to libstdc++.so.6.0.30, which ends at GLIBCXX_3.4.30."""
    listed = [part for part in host.environ().get("LD_LIBRARY_PATH", "").split(":") if part.startswith("/")]
    mine = list(dict.fromkeys(part.rstrip("/") for part in listed))[:_FOLDERS_AT_MOST]
    system = [folder.format(arch=arch or "x86_64") for folder in _SYSTEM_FOLDERS]
    for number, folder in enumerate([*mine, *system]):
        path = f"{folder}/{_LIBSTDCXX}"
        ran = host.run(("readlink", path))
        if ran.is_absent:
            return absent(Evidence("readlink", "no such program"))
        target = ran.out.strip()
        found = _VERSION.search(target)
        if ran.code == 0 and found:
            value = CxxLibrary(path, int(found.group(1)), number < len(mine))
            return known(value, Evidence(f"readlink {path}", target))
        if ran.code == 0 and target:
            return unknown(Evidence(f"readlink {path}", target))  # there, but its name does not say which one
        if number < len(mine) and _is_file(host, path):
            return known(CxxLibrary(path, None, is_from_path=True), Evidence(f"readlink -e {path}", path))
    return absent(Evidence(_LIBSTDCXX, "in no folder of the loader's path that was looked at"))


def _is_file(host: Host, path: str) -> bool:
    """Whether there is one that is no link. A capture that was never asked tells nothing."""
    try:
        return host.run(("readlink", "-e", path)).code == 0
    except NotRecorded:
        return False


_IN_ORDER = ("LC_ALL", "LC_CTYPE", "LANG")  # the first one that is set decides


def encoding(host: Host) -> Fact[str]:
    """The encoding that the locale names, in lower case: `utf-8`, `gbk`; absent where it names none (C, POSIX, unset).

    Python 3.7 and newer take UTF-8 where none is named, so only a named one of another kind matters.
    """
    environ = host.environ()
    name = next((name for name in _IN_ORDER if environ.get(name)), None)
    if name is None:
        return absent(Evidence("environment", "no locale is set"))
    evidence = Evidence("environment", f"{name}={environ[name]}")
    word = environ[name].partition("@")[0].partition(".")[2].lower()
    if not word:
        return absent(evidence)
    return known("utf-8" if word in ("utf8", "utf-8") else word, evidence)


def timezone(host: Host) -> Fact[str]:
    """The session's time zone as TZ or /etc/localtime names it; absent where neither does."""
    named = host.environ().get("TZ", "")
    if named:
        return known(named.lstrip(":"), Evidence("environment", f"TZ={named}"))
    ran = host.run(("readlink", "/etc/localtime"))
    target = ran.out.strip()
    evidence = Evidence("readlink /etc/localtime", target or "no link")
    _, mark, zone = target.partition("zoneinfo/")
    return known(zone, evidence) if mark and zone else absent(evidence)


PS = ("ps", "-eo", "pid,ppid,stat,comm")
_AT_MOST = 5000  # rows that are read; a machine with more is read as far as this
_NAMED_AT_MOST = 48  # processes whose command lines are looked up
_LETTERS_AT_MOST = 200  # kept of a command line
# torch names its main thread pt_main_thread, and vLLM its engine VLLM::EngineCore; the kernel keeps 15 letters.
_OURS = re.compile(r"(?:python[0-9.]*|pt_main_thread|ray::.*|raylet|gcs_server|VLLM.*|vllm.*|torchrun)(?: <defunct>)?")
_ROW = re.compile(r"^\s*([0-9]+)\s+([0-9]+)\s+([A-Za-z][A-Za-z<+]*)\s+(\S.*?)\s*$")


class Process(NamedTuple):
    """One process. `stat` is as `ps` has it: Z a zombie, l with more than one thread."""

    pid: int
    parent: int
    stat: str
    name: str
    command: str = ""  # the first of its words; only of a process that process 1 has inherited

    @property
    def is_zombie(self) -> bool:
        return self.stat.startswith("Z")

    @property
    def is_half_dead(self) -> bool:
        """True when the main thread has ended and others live on: it still holds its memory and its cards."""
        return self.is_zombie and "l" in self.stat


@dataclass(frozen=True, slots=True)
class Processes:
    """What runs here, as far as it concerns training."""

    count: int
    init: str  # the name of process 1; empty where it is not seen
    ours: tuple[Process, ...]  # Python, Ray, vLLM, by number, zombies included
    zombies: tuple[Process, ...]  # all that are dead and wait for their parent, by number


def processes(host: Host) -> Fact[Processes]:
    """One look at the table of processes, `  412     1 Sl   raylet`."""
    ran = host.run(PS, timeout_s=4.0)
    rows = [found.groups() for found in map(_ROW.match, ran.out.splitlines()[:_AT_MOST]) if found]
    if not rows:
        return (absent if ran.is_absent else unknown)(Evidence(" ".join(PS), why_failed(ran)))
    found = (Process(int(pid), int(parent), stat, name) for pid, parent, stat, name in rows)
    everything = sorted(found, key=lambda process: process.pid)
    ours = [process for process in everything if _OURS.fullmatch(process.name)]
    first = next((process.name for process in everything if process.pid == 1), "")
    zombies = tuple(item for item in everything if item.is_zombie)
    value = Processes(len(everything), first, tuple(_with_commands(host, ours)), zombies)
    return known(value, Evidence(" ".join(PS), f"{len(everything)} processes, {len(ours)} of Python, Ray or vLLM"))


def line_of(process: Process) -> Evidence:
    """A process as evidence."""
    words = (process.command or process.name)[:120]
    return Evidence(" ".join(PS), f"{process.pid} {process.parent} {process.stat} {words}")


def _with_commands(host: Host, found: Iterable[Process]) -> Iterable[Process]:
    named = 0
    for process in found:
        if process.is_zombie or process.parent != 1 or named >= _NAMED_AT_MOST:
            yield process  # a zombie has no command line any more, and what others run is none of our business
            continue
        named += 1
        looked = host.look(f"/proc/{process.pid}/cmdline")
        words = " ".join(looked.text.split("\0")).strip()[:_LETTERS_AT_MOST] if looked.state is PathState.FILE else ""
        yield Process(process.pid, process.parent, process.stat, process.name, words)


class SessionFacts(FactGroup):
    libstdcxx: Fact[CxxLibrary] = fact(lambda host, arch: libstdcxx(host, arch.value), "machine.arch")
    encoding: Fact[str] = fact(encoding)
    timezone: Fact[str] = fact(timezone)
    processes: Fact[Processes] = fact(processes, level=1)
