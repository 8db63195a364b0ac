"""Memory, processor, NUMA nodes, and the kernel's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.read import file_text, pairs, why_failed
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.host.base import Host

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


@dataclass(frozen=True, slots=True)
class Memory:
    """The machine's memory in KiB, whatever a control group allows of it. None where the kernel does not say."""

    total_kib: int
    available_kib: int | None
    swap_kib: int | None
    swap_free_kib: int | None
    huge_pages: int | None
    huge_page_kib: int | None


@dataclass(frozen=True, slots=True)
class Processor:
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
        flags = rows["flags"].split()
        value = Processor(
            "x86_64", rows["vendor_id"], rows.get("model name", ""), "hypervisor" in flags, "avx2" in flags
        )
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
