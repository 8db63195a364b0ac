"""Memory, processor, the kernel's settings, and what the control groups above this session allow.

A limit of any group above counts, so all of them are read, from the session's own group up to the root.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.collector import FactGroup, fact
from npuenv.facts.read import file_text, pairs, why_failed
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npuenv.host.base import Host

_ROOT = "/sys/fs/cgroup"
_DEPTH_AT_MOST = 12
_NO_LIMIT = 1 << 60  # version 1 writes "unlimited" as a number close to 2**63


class Cgroup(NamedTuple):
    """Limits on this session; None where there is none."""

    version: int
    memory_kib: int | None
    swap_kib: int | None
    tasks: int | None  # processes and threads together
    tasks_now: int | None
    cpus: float | None
    oom_kills: int | None  # processes that the kernel killed for this group's memory limit; None: not counted


class CgroupLimit(NamedTuple):
    """A limit with the file that sets it."""

    value: float
    evidence: Evidence


def cgroup(host: Host) -> Fact[Cgroup]:
    """The limits that hold here; absent where no control group can be seen."""
    groups = _Groups(host)
    if groups.version is None:
        return absent(Evidence("/proc/self/cgroup", "no control group"))
    memory, swap, tasks, cpus = groups.memory(), groups.swap(), groups.tasks(), groups.cpus()
    kills, now = groups.oom_kills(), groups.tasks_now()
    found = [bound for bound in (memory, swap, tasks, cpus, kills) if bound is not None]
    value = Cgroup(
        groups.version,
        None if memory is None else int(memory.value) // 1024,
        None if swap is None else int(swap.value) // 1024,
        None if tasks is None else int(tasks.value),
        now,
        None if cpus is None else cpus.value,
        None if kills is None else int(kills.value),
    )
    return known(value, *(bound.evidence for bound in found), Evidence("/proc/self/cgroup", groups.line))


def memory_bound(host: Host) -> CgroupLimit | None:
    """The lowest memory limit above this session, in bytes."""
    return _Groups(host).memory()


def cpu_bound(host: Host) -> CgroupLimit | None:
    """The lowest processor quota above this session, in processors."""
    return _Groups(host).cpus()


class _Groups:
    """The groups above this session, by controller. `version` is None where there are none."""

    def __init__(self, host: Host) -> None:
        self._host = host
        text = file_text(host, "/proc/self/cgroup").value or ""
        rows = [line.strip().split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
        self._paths = {name: path for _, names, path in rows for name in names.split(",")}
        self.line = ":".join(rows[0]) if rows else ""
        is_old = any(name in self._paths for name in ("memory", "pids", "cpu"))
        self.version = (1 if is_old else 2) if rows else self._mounted()

    def _mounted(self) -> int | None:
        """The version by what lies at the root, where the kernel does not say which groups this process is in."""
        at_root = {2: ("memory.max", "cpu.max"), 1: ("memory/memory.limit_in_bytes", "cpu/cpu.cfs_quota_us")}
        found = (key for key, names in at_root.items() for name in names if self._is_file(f"{_ROOT}/{name}"))
        return next(found, None)

    def _is_file(self, path: str) -> bool:
        return file_text(self._host, path).is_known

    def memory(self) -> CgroupLimit | None:
        return self._lowest("memory", "memory.max" if self.version == 2 else "memory.limit_in_bytes")

    def swap(self) -> CgroupLimit | None:
        return self._lowest("memory", "memory.swap.max") if self.version == 2 else None

    def tasks(self) -> CgroupLimit | None:
        return self._lowest("pids", "pids.max")

    def tasks_now(self) -> int | None:
        """How many tasks the group that is limited has now."""
        bound = self.tasks()
        if bound is None:
            return None
        text = (file_text(self._host, bound.evidence.command.replace("pids.max", "pids.current")).value or "").strip()
        return int(text) if text.isdecimal() else None

    def cpus(self) -> CgroupLimit | None:
        bounds = []
        for folder in self._folders("cpu"):
            path, words = self._quota(folder)
            if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]) > 0:
                bounds.append(CgroupLimit(int(words[0]) / int(words[1]), Evidence(path, " ".join(words))))
        return min(bounds, key=lambda bound: bound.value, default=None)

    def oom_kills(self) -> CgroupLimit | None:
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        for folder in self._folders("memory"):
            text = file_text(self._host, f"{folder}/{name}").value or ""
            found = re.search(r"^oom_kill ([0-9]+)\s*$", text, re.MULTILINE)
            if found:
                return CgroupLimit(int(found.group(1)), Evidence(f"{folder}/{name}", found.group().strip()))
        return None

    def _quota(self, folder: str) -> tuple[str, list[str]]:
        if self.version == 2:
            return f"{folder}/cpu.max", (file_text(self._host, f"{folder}/cpu.max").value or "").split()
        quota, period = (file_text(self._host, f"{folder}/cpu.cfs_{name}_us").value for name in ("quota", "period"))
        return f"{folder}/cpu.cfs_quota_us", [(quota or "").strip(), (period or "").strip()]

    def _lowest(self, controller: str, name: str) -> CgroupLimit | None:
        bounds = []
        for folder in self._folders(controller):
            text = (file_text(self._host, f"{folder}/{name}").value or "").strip()
            if text.isdecimal() and int(text) < _NO_LIMIT:
                bounds.append(CgroupLimit(int(text), Evidence(f"{folder}/{name}", text)))
        return min(bounds, key=lambda bound: bound.value, default=None)

    def _folders(self, controller: str) -> Iterator[str]:
        """From the session's own group to the root. A container may see its groups only at the root."""
        top = _ROOT if self.version == 2 else f"{_ROOT}/{controller}"
        path = self._paths.get("" if self.version == 2 else controller, "/")
        parts = [part for part in path.split("/") if part not in ("", "..")][:_DEPTH_AT_MOST]
        for length in range(len(parts), -1, -1):
            yield "/".join((top, *parts[:length]))


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


def memory(host: Host) -> Fact[Memory]:
    """/proc/meminfo."""
    text = file_text(host, "/proc/meminfo")
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    rows = pairs(text.value, ":")

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
            found[name] = _chosen(line)
    if not found:
        return absent(Evidence("/proc/sys", "nothing can be read"))
    return known(found, Evidence("/proc/sys", f"{len(found)} settings"))


def _chosen(line: str) -> str:
    """Of a choice like `always [madvise] never`, the one in brackets."""
    found = re.fullmatch(r".*\[(\w+)\].*", line)
    return found.group(1) if found else line.splitlines()[0]


class HardwareFacts(FactGroup):
    cgroup: Fact[Cgroup] = fact(cgroup)
    memory: Fact[Memory] = fact(memory)  # of the machine, whatever the control group allows
    processor: Fact[Processor] = fact(processor)
    settings: Fact[Mapping[str, str]] = fact(settings)  # of the kernel
