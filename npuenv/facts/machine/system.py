"""The system and the account below everything: kernel, C library, limits, memory, container, user, groups."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.collector import FactGroup, fact
from npuenv.facts.machine.hardware import cpu_bound, memory_bound
from npuenv.facts.read import file_text, line_with, pairs, why_failed
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.host.base import Host

UNLIMITED = -1  # a limit that is not set
_GLIBC = re.compile(r"(?:GLIBC|GNU libc|glibc)[^\n]*?\s([0-9]+\.[0-9]+)\s*$", re.MULTILINE)
_LIMIT = re.compile(r"^(Max [a-z ]+?)\s{2,}(unlimited|[0-9]+)\s+(?:unlimited|[0-9]+)\b", re.MULTILINE)
_CGROUP_KINDS = (
    ("kubepods", "kubernetes"),
    ("docker", "docker"),
    ("libpod", "podman"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
)


class OperatingSystem(NamedTuple):
    """The operating system."""

    id: str  # ubuntu, openEuler, debian, ... as /etc/os-release has it
    version: str  # "22.04"
    name: str  # for people


class Space(NamedTuple):
    """A file system, in KiB."""

    size_kib: int
    free_kib: int


def time(host: Host) -> Fact[str]:
    """The moment of asking, in UTC, like `2026-11-21T10:00:00Z`; part of the capture, so that a replay has the same."""
    return _one_line(host, ("date", "-u", "+%Y-%m-%dT%H:%M:%SZ"), r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def arch(host: Host) -> Fact[str]:
    """The CPU architecture as the kernel names it: x86_64, aarch64."""
    return _one_line(host, ("uname", "-m"), r"[A-Za-z0-9_]+")


def kernel(host: Host) -> Fact[str]:
    """The kernel release."""
    return _one_line(host, ("uname", "-r"), r"[0-9]\S+")


def system(host: Host) -> Fact[OperatingSystem]:
    """The operating system, from /etc/os-release."""
    text = file_text(host, "/etc/os-release")
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    fields = {key: value.strip("\"'") for key, value in pairs(text.value).items()}
    if not fields.get("ID"):
        return unknown(*text.evidence)
    value = OperatingSystem(fields["ID"], fields.get("VERSION_ID", ""), fields.get("PRETTY_NAME", fields["ID"]))
    line = line_with(text.value, "PRETTY_NAME") or line_with(text.value, "ID")
    return known(value, Evidence("/etc/os-release", line))


def glibc(host: Host) -> Fact[str]:
    """The version of the C library, like "2.35"; absent where it is another library (musl)."""
    said = host.run(("getconf", "GNU_LIBC_VERSION"))
    words = said.out.split()
    if said.code == 0 and len(words) == 2 and words[0] == "glibc" and re.fullmatch(r"[0-9]+(\.[0-9]+)+", words[1]):
        return known(words[1], Evidence("getconf GNU_LIBC_VERSION", said.out.strip()))
    ran = host.run(("ldd", "--version"))
    text = ran.out + ran.err
    match = _GLIBC.search(ran.out)
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
    text = file_text(host, "/proc/self/limits")
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    line = line_with(text.value, name)
    words = line.removeprefix(name).split()
    if not words or not (words[0].isdecimal() or words[0] == "unlimited"):
        return unknown(Evidence("/proc/self/limits", line))
    value = UNLIMITED if words[0] == "unlimited" else int(words[0])
    return known(value, Evidence("/proc/self/limits", " ".join(line.split())))


def limits(host: Host) -> Fact[dict[str, int]]:
    """Every soft limit of this session by its name in /proc/self/limits; UNLIMITED is -1."""
    text = file_text(host, "/proc/self/limits")
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    found = _LIMIT.findall(text.value)
    value = {name: UNLIMITED if soft == "unlimited" else int(soft) for name, soft in found}
    evidence = Evidence("/proc/self/limits", f"{len(value)} limits")
    return known(value, evidence) if value else unknown(evidence)


def space(host: Host, path: str) -> Fact[Space]:
    """Size and free space of the file system that holds a path; absent where there is no such path."""
    ran = host.run(("df", "-kP", path))
    command = f"df -kP {path}"
    rows = [line.split() for line in ran.out.splitlines()[1:]]
    if rows and len(rows[-1]) >= 6 and rows[-1][1].isdecimal() and rows[-1][3].isdecimal():
        return known(Space(int(rows[-1][1]), int(rows[-1][3])), Evidence(command, " ".join(rows[-1])))
    if "No such file" in ran.err:
        return absent(Evidence(command, ran.err.strip()))
    return unknown(Evidence(command, why_failed(ran)))


def memory_kib(host: Host) -> Fact[int]:
    """The memory this session may use: the machine's, or the cgroup's limit where that is lower."""
    text = file_text(host, "/proc/meminfo")
    line = line_with(text.value or "", "MemTotal:")
    words = line.split()
    if len(words) < 2 or not words[1].isdecimal():
        return unknown(Evidence("/proc/meminfo", line or text.evidence[0].line))
    total = known(int(words[1]), Evidence("/proc/meminfo", " ".join(words)))
    bound = memory_bound(host)
    if bound is not None and bound.value // 1024 < int(words[1]):
        return known(int(bound.value) // 1024, bound.evidence)
    return total


def cpus(host: Host) -> Fact[float]:
    """The processors this session may use: the affinity's count, or the cgroup's quota where that is lower."""
    counted = _one_line(host, ("nproc",), r"[0-9]+")
    if counted.value is None:
        return Fact(counted.state, None, counted.evidence)
    quota = cpu_bound(host)
    if quota is not None and quota.value < int(counted.value):
        return known(quota.value, quota.evidence)
    return known(float(counted.value), *counted.evidence)


def _one_line(host: Host, argv: tuple[str, ...], pattern: str) -> Fact[str]:
    ran = host.run(argv)
    line = ran.out.strip()
    evidence = Evidence(" ".join(argv), line.splitlines()[0] if line else why_failed(ran))
    if ran.is_absent:
        return absent(evidence)
    return known(line, evidence) if ran.code == 0 and re.fullmatch(pattern, line) else unknown(evidence)


DRIVER_GROUP = "HwHiAiUser"  # owns the device nodes; created by the driver's installer
_WHO = r"([0-9]+)(?:\(([^()]*)\))?"
_ID = re.compile(
    rf"uid={_WHO} gid={_WHO}(?: euid={_WHO})?(?: egid={_WHO})?(?: groups=(\S.*?))?(?: context=\S+)?\s*$",
    re.MULTILINE,
)
_ID_GROUP = re.compile(_WHO)
_STATUS = "/proc/self/status"


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
    found = _ID.search(ran.out)
    if found is None:
        return (absent if ran.is_absent else unknown)(Evidence("id", why_failed(ran)))
    uid, name, gid, group, euid, ename, egid, egroup, listed = found.groups()
    if euid is not None:
        uid, name = euid, ename
    if egid is not None:
        gid, group = egid, egroup
    rows = [(int(number), word) for number, word in _ID_GROUP.findall(listed or "")] or [(int(gid), group or "")]
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


def privileges(host: Host) -> Fact[Privileges]:
    """Capabilities and filters of this process, from /proc/self/status."""
    text = file_text(host, _STATUS)
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    effective = re.search(r"^CapEff:\s*([0-9a-fA-F]{8,16})\s*$", text.value, re.MULTILINE)
    if effective is None:
        return unknown(Evidence(_STATUS, "no CapEff"))
    value = Privileges(int(effective.group(1), 16), _switch(text.value, "Seccomp"), _switch(text.value, "NoNewPrivs"))
    return known(value, Evidence(_STATUS, " ".join(effective.group().split())))


def _switch(text: str, name: str) -> bool | None:
    found = re.search(rf"^{name}:\s*([0-9]+)\s*$", text, re.MULTILINE)
    return None if found is None else found.group(1) != "0"


class SystemFacts(FactGroup):
    time: Fact[str] = fact(time)
    arch: Fact[str] = fact(arch)
    kernel: Fact[str] = fact(kernel)
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
