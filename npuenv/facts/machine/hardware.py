"""Memory, processor, the kernel's settings, what the control groups above this session allow, mounts, and the folders
that training writes to: space, room for files, what may be done there.

A limit of any group above counts, so all of them are read, from the session's own group up to the root.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import FactGroup, fact, file_text, of_file, pairs, why_failed
from npuenv.host import Host, PathState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_ROOT = "/sys/fs/cgroup"
_DEPTH_AT_MOST = 12
_NO_LIMIT = 1 << 60  # version 1 writes "unlimited" as a number close to 2**63
# The first processor's rows are enough: on a machine with hundreds of them the whole file takes long to print.
_CPUINFO = ("head", "-n", "32", "/proc/cpuinfo")
_ARM_MAKERS = {"0x48": "HiSilicon", "0x41": "Arm", "0x70": "Phytium"}
_SETTINGS = {
    "transparent_hugepage": "/sys/kernel/mm/transparent_hugepage/enabled",
    "overcommit_memory": "/proc/sys/vm/overcommit_memory",
    "max_map_count": "/proc/sys/vm/max_map_count",
    "core_pattern": "/proc/sys/kernel/core_pattern",
    "pid_max": "/proc/sys/kernel/pid_max",
    "threads_max": "/proc/sys/kernel/threads-max",
    "selinux_enforcing": "/sys/fs/selinux/enforce",
    "security_profile": "/proc/self/attr/current",
    "numa_nodes": "/sys/devices/system/node/online",
    "maker": "/sys/class/dmi/id/sys_vendor",
    "load": "/proc/loadavg",
}
_TABLE = "/proc/self/mountinfo"
_ROW = r"^\S.*?\s+([0-9]+|-)\s+([0-9]+|-)\s+(-?[0-9]+|-)\s+([0-9]+%|-)\s+(/.*?)\s*$"
NETWORK_KINDS = ("nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "gpfs", "beegfs", "9p", "afs", "fuse.juicefs")
# Variables that say where a library keeps what it downloads or compiles.
_CACHE_VARIABLES = (
    "HF_HOME", "HF_HUB_CACHE", "MODELSCOPE_CACHE", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR", "ACL_OP_COMPILER_CACHE_DIR", "ASCEND_CACHE_PATH", "ASCEND_WORK_PATH",
)  # fmt: skip
_UP_AT_MOST = 12


class Cgroup(NamedTuple):
    """Limits on this session; None where there is none."""

    version: int
    memory_kib: int | None
    swap_kib: int | None
    tasks: int | None  # processes and threads together
    tasks_now: int | None
    cpus: float | None
    oom_kills: int | None  # processes that the kernel killed for this group's memory limit; None: not counted


def cgroup(host: Host) -> Fact[Cgroup]:
    """The limits that hold here; absent where no control group can be seen."""
    groups = Groups(host)
    if groups.version is None:
        return absent(Evidence("/proc/self/cgroup", "no control group"))
    memory, tasks, cpus, kills = groups.memory(), groups.lowest("pids", "pids.max"), groups.cpus(), groups.oom_kills()
    swap = groups.lowest("memory", "memory.swap.max") if groups.version == 2 else absent()
    now = groups.text(tasks.evidence[0].command.replace("pids.max", "pids.current")) if tasks.is_known else ""
    value = Cgroup(
        groups.version,
        None if memory.value is None else int(memory.value) // 1024,
        None if swap.value is None else int(swap.value) // 1024,
        None if tasks.value is None else int(tasks.value),
        int(now) if now.isdecimal() else None,
        cpus.value,
        None if kills.value is None else int(kills.value),
    )
    lines = [line for bound in (memory, swap, tasks, cpus, kills) for line in bound.evidence]
    return known(value, *lines, Evidence("/proc/self/cgroup", groups.line))


class Groups:
    """The groups above this session, by controller. `version` is None where there are none.

    A limit that no group sets is absent.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        lines = self.text("/proc/self/cgroup").splitlines()
        rows = [line.strip().split(":", 2) for line in lines if line.count(":") >= 2]
        self._paths = {name: path for _, names, path in rows for name in names.split(",")}
        self.line = ":".join(rows[0]) if rows else ""
        is_old = any(name in self._paths for name in ("memory", "pids", "cpu"))
        self.version = (1 if is_old else 2) if rows else self._mounted()

    def _mounted(self) -> int | None:
        """The version by what lies at the root, where the kernel does not say which groups this process is in."""
        at_root = {2: ("memory.max", "cpu.max"), 1: ("memory/memory.limit_in_bytes", "cpu/cpu.cfs_quota_us")}
        paths = ((version, f"{_ROOT}/{name}") for version, names in at_root.items() for name in names)
        return next((version for version, path in paths if file_text(self._host, path).is_known), None)

    def text(self, path: str) -> str:
        return (file_text(self._host, path).value or "").strip()

    def memory(self) -> Fact[float]:
        """The lowest memory limit above this session, in bytes, with the file that sets it."""
        return self.lowest("memory", "memory.max" if self.version == 2 else "memory.limit_in_bytes")

    def cpus(self) -> Fact[float]:
        """The lowest processor quota above this session, in processors, with the file that sets it."""
        bounds = []
        for folder in self._folders("cpu"):
            path = f"{folder}/cpu.max" if self.version == 2 else f"{folder}/cpu.cfs_quota_us"
            words = self.text(path).split()
            if self.version != 2:
                words = [*words[:1], *self.text(f"{folder}/cpu.cfs_period_us").split()]
            if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]) > 0:
                bounds.append((int(words[0]) / int(words[1]), Evidence(path, " ".join(words))))
        return _least(bounds)

    def oom_kills(self) -> Fact[float]:
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        for path in (f"{folder}/{name}" for folder in self._folders("memory")):
            found = re.search(r"^oom_kill ([0-9]+)\s*$", self.text(path), re.MULTILINE)
            if found:
                return known(float(found.group(1)), Evidence(path, found.group().strip()))
        return absent()

    def lowest(self, controller: str, name: str) -> Fact[float]:
        texts = {path: self.text(path) for path in (f"{folder}/{name}" for folder in self._folders(controller))}
        bounds = {path: int(text) for path, text in texts.items() if text.isdecimal()}
        return _least([(bound, Evidence(path, texts[path])) for path, bound in bounds.items() if bound < _NO_LIMIT])

    def _folders(self, controller: str) -> Iterator[str]:
        """From the session's own group to the root. A container may see its groups only at the root."""
        top = _ROOT if self.version == 2 else f"{_ROOT}/{controller}"
        path = self._paths.get("" if self.version == 2 else controller, "/")
        parts = [part for part in path.split("/") if part not in ("", "..")][:_DEPTH_AT_MOST]
        for length in range(len(parts), -1, -1):
            yield "/".join((top, *parts[:length]))


def _least(bounds: list[tuple[float, Evidence]]) -> Fact[float]:
    return known(*min(bounds, key=lambda bound: bound[0])) if bounds else absent()


class Memory(NamedTuple):
    """The machine's memory in KiB, whatever a control group allows of it. None where the kernel does not say."""

    total_kib: int
    available_kib: int | None
    swap_kib: int | None
    swap_free_kib: int | None
    huge_pages: int | None
    huge_page_kib: int | None


class Processor(NamedTuple):
    """The first processor, as the kernel describes it."""

    family: str  # x86_64 or aarch64, by the kind of description, not by what uname says
    maker: str
    model: str
    is_virtual: bool | None  # None: this family does not say
    has_avx2: bool | None


@of_file("/proc/meminfo")
def memory(text: str) -> Fact[Memory]:
    """/proc/meminfo."""
    rows = pairs(text, ":")

    def kib(name: str) -> int | None:
        words = rows.get(name, "").split()
        return int(words[0]) if words and words[0].isdecimal() else None

    total, available = kib("MemTotal"), kib("MemAvailable")
    if total is None:
        return unknown(Evidence("/proc/meminfo", "no MemTotal"))
    value = Memory(total, available, kib("SwapTotal"), kib("SwapFree"), kib("HugePages_Total"), kib("Hugepagesize"))
    line = f"MemTotal: {total} kB, MemAvailable: {rows.get('MemAvailable', '-')}"
    return known(value, Evidence("/proc/meminfo", line))


def processor(host: Host) -> Fact[Processor]:
    """The head of /proc/cpuinfo; unknown where it is of neither family."""
    ran = host.run(_CPUINFO)
    command = " ".join(_CPUINFO)
    rows = pairs(host.look(_CPUINFO[-1]).text if ran.is_absent else ran.out, ":")
    if "vendor_id" in rows and "flags" in rows:
        flags, model = rows["flags"].split(), rows.get("model name", "")
        value = Processor("x86_64", rows["vendor_id"], model, "hypervisor" in flags, "avx2" in flags)
        return known(value, Evidence(command, f"vendor_id: {value.maker}, model name: {value.model}"))
    if "CPU implementer" in rows:
        maker = rows["CPU implementer"]
        model = rows.get("model name") or f"part {rows.get('CPU part', '-')}"
        value = Processor("aarch64", _ARM_MAKERS.get(maker, maker), model, None, None)
        return known(value, Evidence(command, f"CPU implementer: {maker}, {model}"))
    return (absent if ran.is_absent else unknown)(Evidence(command, why_failed(ran)))


def settings(host: Host) -> Fact[Mapping[str, str]]:
    """Settings of the kernel by our names, as far as they can be read; each is one short line."""
    found = {}
    for name, path in _SETTINGS.items():
        looked = host.look(path)
        line = looked.text.replace("\0", "").strip()
        if looked.state is PathState.FILE and line:
            # Of a choice like `always [madvise] never`, the one in brackets.
            choice = re.fullmatch(r".*\[(\w+)\].*", line)
            found[name] = choice.group(1) if choice else line.splitlines()[0]
    if not found:
        return absent(Evidence("/proc/sys", "nothing can be read"))
    return known(found, Evidence("/proc/sys", f"{len(found)} settings"))


class MountRow(NamedTuple):
    """One row of the table."""

    place: str
    kind: str  # ext4, overlay, nfs4, lustre, ...
    options: tuple[str, ...]  # of the place and of the file system behind it

    @property
    def is_noexec(self) -> bool:
        return "noexec" in self.options


class FolderUsage(NamedTuple):
    """A folder with the file system that holds it. Sizes in KiB; None where the system does not say."""

    path: str
    is_writable: bool | None  # by this session; None: could not be tried
    free_kib: int
    size_kib: int
    files: int | None  # how many files the file system can hold; None: it has no such limit
    files_free: int | None
    place: str  # where that file system is mounted, as df says
    mount: MountRow | None  # None: the table of mounts could not be read


@of_file(_TABLE)
def mounts(text: str) -> Fact[tuple[MountRow, ...]]:
    """Every mount that this session sees, in the order of mounting."""
    rows = tuple(mount for mount in map(_mount, text.splitlines()) if mount is not None)
    return known(rows, Evidence(_TABLE, f"{len(rows)} mounts")) if rows else unknown(Evidence(_TABLE, "no row"))


def _mount(line: str) -> MountRow | None:
    """A row like `36 35 98:0 / /data rw,noatime shared:1 - nfs4 server:/data rw,vers=4.2`."""
    own, mark, behind = line.strip().partition(" - ")
    left, right = own.split(), behind.split()
    if not mark or len(left) < 6 or not left[4].startswith("/") or not right:
        return None
    options = [*left[5].split(","), *(right[2].split(",") if len(right) > 2 else ())]
    place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), left[4])
    return MountRow(place, right[0], tuple(dict.fromkeys(options)))


def mount_of(rows: tuple[MountRow, ...], path: str) -> MountRow | None:
    """The mount that holds a path; of two at one place the later one, which covers the other."""
    holding = [row for row in rows if path == row.place or path.startswith(row.place.rstrip("/") + "/")]
    return max(enumerate(holding), key=lambda item: (len(item[1].place), item[0]), default=(0, None))[1]


def folder(host: Host, path: str, rows: tuple[MountRow, ...]) -> Fact[FolderUsage]:
    """A folder; absent where there is none at this path. `rows` are those of `mounts`."""
    space = df_row(host, "-kP", path)
    if space.value is None:
        return Fact(space.state, None, space.evidence)
    size, free, place = space.value
    if size is None or free is None:
        return unknown(*space.evidence)
    files = df_row(host, "-iP", path)
    tried = host.run(("test", "-w", path))
    total, left = (files.value[0] or None, files.value[1]) if files.value else (None, None)
    may_write = {0: True, 1: False}.get(-1 if tried.code is None else tried.code)
    if tried.is_absent:
        may_write = host.look(path).is_writable
    value = FolderUsage(path, may_write, free, size, total, left if total else None, place, mount_of(rows, place))
    evidence = (*space.evidence, *(files.evidence if total else ()))
    return known(value, *evidence, *((Evidence(f"test -w {path}", "not writable"),) if may_write is False else ()))


def df_row(host: Host, option: str, path: str) -> Fact[tuple[int | None, int | None, str]]:
    """(size, free, mount point) of a path as `df` has them; None for a figure that is a dash."""
    ran = host.run(("df", option, path))
    command = f"df {option} {path}"
    if ran.is_absent or "No such file" in ran.err:
        return absent(Evidence(command, why_failed(ran)))
    for line in reversed(ran.out.splitlines()[1:]):
        found = re.match(_ROW, line)
        if found:
            size, _, free, _, place = found.groups()
            return known((_number(size), _number(free), place), Evidence(command, " ".join(line.split())))
    return unknown(Evidence(command, why_failed(ran)))


def _number(text: str) -> int | None:
    return max(int(text), 0) if text != "-" else None


class Cache(NamedTuple):
    """A folder that a variable names. `nearest` is the folder itself, or the closest one above it that exists."""

    variable: str
    path: str
    nearest: FolderUsage


def caches(host: Host, rows: tuple[MountRow, ...]) -> Fact[tuple[Cache, ...]]:
    """The caches that variables name; absent where none is set. `rows` are the mounts."""
    named = {name: host.environ()[name] for name in _CACHE_VARIABLES if host.environ().get(name, "").startswith("/")}
    if not named:
        return absent(Evidence("environment", "no cache variable is set"))
    found: list[Cache] = []
    evidence: list[Evidence] = []
    for name, path in named.items():
        nearest = _nearest(host, path, rows)
        evidence += nearest.evidence
        if nearest.state is State.UNKNOWN:
            return unknown(*nearest.evidence)
        if nearest.value is not None:
            found.append(Cache(name, path, nearest.value))
    return known(tuple(found), *evidence) if found else absent(*evidence)


def _nearest(host: Host, path: str, rows: tuple[MountRow, ...]) -> Fact[FolderUsage]:
    """A folder that is not there yet will be made: what counts is the one above it."""
    parts = [part for part in path.split("/") if part]
    fact: Fact[FolderUsage] = absent(Evidence(path, "absent"))
    for length in range(len(parts), max(len(parts) - _UP_AT_MOST, -1), -1):
        fact = folder(host, "/" + "/".join(parts[:length]), rows)
        if fact.state is not State.ABSENT:
            return fact
    return fact


def _folder_of(variable: str, usual: str) -> Callable[[Host, Fact[tuple[MountRow, ...]]], Fact[FolderUsage]]:
    return lambda host, mounts: folder(host, host.environ().get(variable) or usual, mounts.value or ())


class HardwareFacts(FactGroup):
    mounts: Fact[tuple[MountRow, ...]] = fact(mounts)
    home: Fact[FolderUsage] = fact(_folder_of("HOME", "/"), "machine.mounts")
    tmp: Fact[FolderUsage] = fact(_folder_of("TMPDIR", "/tmp"), "machine.mounts")
    caches: Fact[tuple[Cache, ...]] = fact(lambda host, mounts: caches(host, mounts.value or ()), "machine.mounts")
    cgroup: Fact[Cgroup] = fact(cgroup)
    memory: Fact[Memory] = fact(memory)  # of the machine, whatever the control group allows
    processor: Fact[Processor] = fact(processor)
    settings: Fact[Mapping[str, str]] = fact(settings)  # of the kernel
