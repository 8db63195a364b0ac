"""The machine below everything. Here: system, account and session: kernel, C and C++ library, limits, container, user,
groups, locale, time zone, and the processes beside them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.collector import FactGroup, fact, file_text, line_with, made_of, of_file, pairs, why_failed
from npuenv.facts.machine.hardware import Groups, HardwareFacts, df_row
from npuenv.host import Host, NotRecorded, PathState

if TYPE_CHECKING:
    from collections.abc import Iterable


_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
_LIMITS = "/proc/self/limits"
UNLIMITED = -1  # a limit that is not set
_GLIBC = r"(?m)(?:GLIBC|GNU libc|glibc)[^\n]*?\s([0-9]+\.[0-9]+)\s*$"
_LIMIT = r"(?m)^(Max [a-z ]+?)\s{2,}(unlimited|[0-9]+)\s+(?:unlimited|[0-9]+)\b"
_CGROUP_KINDS = (
    ("kubepods", "kubernetes"),
    ("docker", "docker"),
    ("libpod", "podman"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
)
DRIVER_GROUP = "HwHiAiUser"  # owns the device nodes; created by the driver's installer
_WHO = r"([0-9]+)(?:\(([^()]*)\))?"
_ID = rf"(?m)uid={_WHO} gid={_WHO}(?: euid={_WHO})?(?: egid={_WHO})?(?: groups=(\S.*?))?(?: context=\S+)?\s*$"
_STATUS = "/proc/self/status"
_LIBSTDCXX = "libstdc++.so.6"
_VERSION = r"libstdc\+\+\.so\.6\.0\.([0-9]+)$"
_SYSTEM_FOLDERS = ("/usr/lib/{arch}-linux-gnu", "/usr/lib64", "/lib64", "/lib/{arch}-linux-gnu", "/usr/lib")
_FOLDERS_AT_MOST = 40
_IN_ORDER = ("LC_ALL", "LC_CTYPE", "LANG")  # the first one that is set decides
PS = ("ps", "-eo", "pid,ppid,stat,comm")
_AT_MOST = 5000  # rows that are read; a machine with more is read as far as this
_NAMED_AT_MOST = 48  # processes whose command lines are looked up
_LETTERS_AT_MOST = 200  # kept of a command line
# torch names its main thread pt_main_thread, and vLLM its engine VLLM::EngineCore; the kernel keeps 15 letters.
_OURS = r"(?:python[0-9.]*|pt_main_thread|ray::.*|raylet|gcs_server|VLLM.*|vllm.*|torchrun)(?: <defunct>)?"
_ROW = re.compile(r"^\s*([0-9]+)\s+([0-9]+)\s+([A-Za-z][A-Za-z<+]*)\s+(\S.*?)\s*$")


class OperatingSystem(NamedTuple):
    """The operating system."""

    id: str  # ubuntu, openEuler, debian, ... as /etc/os-release has it
    version: str  # "22.04"
    name: str  # for people


class Space(NamedTuple):
    """A file system, in KiB."""

    size_kib: int
    free_kib: int


@of_file("/etc/os-release")
def system(text: str) -> Fact[OperatingSystem] | None:
    """The operating system, from /etc/os-release."""
    fields = {key: value.strip("\"'") for key, value in pairs(text).items()}
    if not fields.get("ID"):
        return None
    value = OperatingSystem(fields["ID"], fields.get("VERSION_ID", ""), fields.get("PRETTY_NAME", fields["ID"]))
    line = line_with(text, "PRETTY_NAME") or line_with(text, "ID")
    return known(value, Evidence("/etc/os-release", line))


def glibc(host: Host) -> Fact[str]:
    """The version of the C library, like "2.35"; absent where it is another library (musl)."""
    said = host.run(("getconf", "GNU_LIBC_VERSION"))
    words = said.out.split()
    if said.code == 0 and len(words) == 2 and words[0] == "glibc" and re.fullmatch(r"[0-9]+(\.[0-9]+)+", words[1]):
        return known(words[1], Evidence("getconf GNU_LIBC_VERSION", said.out.strip()))
    ran = host.run(("ldd", "--version"))
    text = ran.out + ran.err
    match = re.search(_GLIBC, ran.out)
    if match:
        return known(match.group(1), Evidence("ldd --version", match.group().strip()))
    if "musl" in text:
        return absent(Evidence("ldd --version", text.splitlines()[0]))
    return unknown(Evidence("ldd --version", why_failed(ran)))


def container(host: Host) -> Fact[str]:
    """Which container this is: docker, podman, kubernetes, containerd, lxc or container; absent on a plain machine."""
    if host.environ().get("KUBERNETES_SERVICE_HOST"):
        return known("kubernetes", Evidence("environment", "KUBERNETES_SERVICE_HOST is set"))
    for path, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if host.look(path).state is PathState.FILE:
            return known(kind, Evidence(path, "present"))
    text = file_text(host, "/proc/1/cgroup")
    if text.value is None:
        return unknown(*text.evidence)
    for word, kind in _CGROUP_KINDS:
        line = next((line for line in text.value.splitlines() if word in line), None)
        if line is not None:
            return known(kind, Evidence("/proc/1/cgroup", line))
    if text.value.strip() == "0::/":  # process 1 sits at the root of its cgroup namespace only inside a container
        return known("container", Evidence("/proc/1/cgroup", "0::/"))
    return absent(Evidence("/proc/1/cgroup", text.value.splitlines()[0] if text.value.strip() else "empty"))


def limit(host: Host, name: str) -> Fact[int]:
    """The soft limit of this session by its name in /proc/self/limits ("Max open files"); UNLIMITED is -1."""

    def parse(text: str) -> Fact[int]:
        line = line_with(text, name)
        words = line.removeprefix(name).split()
        if not words or not (words[0].isdecimal() or words[0] == "unlimited"):
            return unknown(Evidence(_LIMITS, line))
        value = UNLIMITED if words[0] == "unlimited" else int(words[0])
        return known(value, Evidence(_LIMITS, " ".join(line.split())))

    return made_of(file_text(host, _LIMITS), parse)


@of_file(_LIMITS)
def limits(text: str) -> Fact[dict[str, int]]:
    """Every soft limit of this session by its name in /proc/self/limits; UNLIMITED is -1."""
    value = {name: UNLIMITED if soft == "unlimited" else int(soft) for name, soft in re.findall(_LIMIT, text)}
    evidence = Evidence(_LIMITS, f"{len(value)} limits")
    return known(value, evidence) if value else unknown(evidence)


def space(host: Host, path: str) -> Fact[Space]:
    """Size and free space of the file system that holds a path; absent where there is no such path."""
    row = df_row(host, "-kP", path)
    if row.value is None or row.value[0] is None or row.value[1] is None:
        return unknown(*row.evidence) if row.is_known else Fact(row.state, None, row.evidence)
    return known(Space(row.value[0], row.value[1]), *row.evidence)


def memory_kib(host: Host) -> Fact[int]:
    """The memory this session may use: the machine's, or the cgroup's limit where that is lower."""
    text = file_text(host, "/proc/meminfo")
    line = line_with(text.value or "", "MemTotal:")
    words = line.split()
    if len(words) < 2 or not words[1].isdecimal():
        return unknown(Evidence("/proc/meminfo", line or text.evidence[0].line))
    bound = Groups(host).memory()
    if bound.value is not None and bound.value // 1024 < int(words[1]):
        return known(int(bound.value) // 1024, *bound.evidence)
    return known(int(words[1]), Evidence("/proc/meminfo", " ".join(words)))


def cpus(host: Host) -> Fact[float]:
    """The processors this session may use: the affinity's count, or the cgroup's quota where that is lower."""
    counted = _one_line(host, ("nproc",), r"[0-9]+")
    quota = Groups(host).cpus() if counted.value else absent()
    if counted.value and quota.value is not None and quota.value < int(counted.value):
        return quota
    return made_of(counted, lambda count: known(float(count), *counted.evidence))


def _one_line(host: Host, argv: tuple[str, ...], pattern: str) -> Fact[str]:
    ran = host.run(argv)
    line = ran.out.strip()
    evidence = Evidence(" ".join(argv), line.splitlines()[0] if line else why_failed(ran))
    if ran.is_absent:
        return absent(evidence)
    return known(line, evidence) if ran.code == 0 and re.fullmatch(pattern, line) else unknown(evidence)


class Account(NamedTuple):
    """The effective user. A name is None where the number has no entry in the user or group database."""

    uid: int
    gid: int
    name: str | None
    groups: tuple[int, ...]  # all of them, the primary one included
    group_names: tuple[str, ...]  # of those that have an entry

    @property
    def is_root(self) -> bool:
        return self.uid == 0


class Privileges(NamedTuple):
    """What the kernel grants beyond the account."""

    capabilities: int  # the effective set, as its bits
    is_filtered: bool | None  # seccomp sorts out system calls; None: the kernel does not say
    is_sealed: bool | None  # no-new-privs: neither sudo nor setuid programs work


def account(host: Host) -> Fact[Account]:
    """The account from `id`, as `uid=1000(bob) gid=1000(bob) groups=1000(bob),1001(HwHiAiUser)`."""
    ran = host.run(("id",))
    found = re.search(_ID, ran.out)
    if found is None:
        return (absent if ran.is_absent else unknown)(Evidence("id", why_failed(ran)))
    uid, name, gid, group, euid, ename, egid, egroup, listed = found.groups()
    if euid is not None:
        uid, name = euid, ename
    if egid is not None:
        gid, group = egid, egroup
    rows = [(int(number), word) for number, word in re.findall(_WHO, listed or "")] or [(int(gid), group or "")]
    numbers = tuple(dict.fromkeys([int(gid), *(number for number, _ in rows)]))
    names = tuple(dict.fromkeys(word for _, word in rows if word))
    return known(Account(int(uid), int(gid), name or None, numbers, names), Evidence("id", found.group().strip()))


def driver_group(host: Host) -> Fact[int]:
    """The number of the driver's group on this system; absent where it has none of that name."""
    argv = ("getent", "group", DRIVER_GROUP)
    ran = host.run(argv)
    found = re.search(rf"^{DRIVER_GROUP}:[^:\n]*:([0-9]+):", ran.out, re.MULTILINE)
    if found:
        return known(int(found.group(1)), Evidence(" ".join(argv), f"{DRIVER_GROUP}:{found.group(1)}"))
    return (absent if ran.code == 2 else unknown)(Evidence(" ".join(argv), why_failed(ran)))


@of_file(_STATUS)
def privileges(text: str) -> Fact[Privileges]:
    """Capabilities and filters of this process, from /proc/self/status."""
    effective = re.search(r"^CapEff:\s*([0-9a-fA-F]{8,16})\s*$", text, re.MULTILINE)
    if effective is None:
        return unknown(Evidence(_STATUS, "no CapEff"))
    value = Privileges(int(effective.group(1), 16), _switch(text, "Seccomp"), _switch(text, "NoNewPrivs"))
    return known(value, Evidence(_STATUS, " ".join(effective.group().split())))


def _switch(text: str, name: str) -> bool | None:
    found = re.search(rf"^{name}:\s*([0-9]+)\s*$", text, re.MULTILINE)
    return None if found is None else found.group(1) != "0"


class SystemFacts(FactGroup):
    # The moment of asking, in UTC, like `2026-11-21T10:00:00Z`; part of the capture, so that a replay has the same.
    time: Fact[str] = fact(lambda host: _one_line(host, ("date", "-u", "+%Y-%m-%dT%H:%M:%SZ"), _TIME))
    arch: Fact[str] = fact(lambda host: _one_line(host, ("uname", "-m"), r"[A-Za-z0-9_]+"))  # x86_64, aarch64
    kernel: Fact[str] = fact(lambda host: _one_line(host, ("uname", "-r"), r"[0-9]\S+"))  # its release
    system: Fact[OperatingSystem] = fact(system)
    glibc: Fact[str] = fact(glibc)
    container: Fact[str] = fact(container)
    cpus: Fact[float] = fact(cpus)
    memory_kib: Fact[int] = fact(memory_kib)
    shared_memory: Fact[Space] = fact(lambda host: space(host, "/dev/shm"))
    disk: Fact[Space] = fact(lambda host: space(host, host.environ().get("HOME") or "/"))  # where environments go
    open_files: Fact[int] = fact(lambda host: limit(host, "Max open files"))
    locked_memory: Fact[int] = fact(lambda host: limit(host, "Max locked memory"))
    limits: Fact[dict[str, int]] = fact(limits)
    account: Fact[Account] = fact(account)
    privileges: Fact[Privileges] = fact(privileges)
    driver_group: Fact[int] = fact(driver_group)


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
        found = re.search(_VERSION, target)
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
    ours = [process for process in everything if re.fullmatch(_OURS, process.name)]
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


class MachineFacts(HardwareFacts, SystemFacts):
    """What is true of the machine or container itself."""

    libstdcxx: Fact[CxxLibrary] = fact(lambda host, arch: libstdcxx(host, arch.value), "machine.arch")
    encoding: Fact[str] = fact(encoding)
    timezone: Fact[str] = fact(timezone)
    processes: Fact[Processes] = fact(processes, level=1)
