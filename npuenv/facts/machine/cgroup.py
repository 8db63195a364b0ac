"""What the control groups above this session allow and have seen: version 1 and 2.

A limit of any group above counts, so all of them are read, from the session's own group up to the root.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known
from npuenv.facts.read import file_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.host.base import Host

_ROOT = "/sys/fs/cgroup"
_DEPTH_AT_MOST = 12
_NO_LIMIT = 1 << 60  # version 1 writes "unlimited" as a number close to 2**63


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Limits on this session; None where there is none."""

    version: int
    memory_kib: int | None
    swap_kib: int | None
    tasks: int | None  # processes and threads together
    tasks_now: int | None
    cpus: float | None
    oom_kills: int | None  # processes that the kernel killed for this group's memory limit; None: not counted


@dataclass(frozen=True, slots=True)
class Bound:
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


def memory_bound(host: Host) -> Bound | None:
    """The lowest memory limit above this session, in bytes."""
    return _Groups(host).memory()


def cpu_bound(host: Host) -> Bound | None:
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

    def memory(self) -> Bound | None:
        return self._lowest("memory", "memory.max" if self.version == 2 else "memory.limit_in_bytes")

    def swap(self) -> Bound | None:
        return self._lowest("memory", "memory.swap.max") if self.version == 2 else None

    def tasks(self) -> Bound | None:
        return self._lowest("pids", "pids.max")

    def tasks_now(self) -> int | None:
        """How many tasks the group that is limited has now."""
        bound = self.tasks()
        if bound is None:
            return None
        text = (file_text(self._host, bound.evidence.command.replace("pids.max", "pids.current")).value or "").strip()
        return int(text) if text.isdecimal() else None

    def cpus(self) -> Bound | None:
        bounds = []
        for folder in self._folders("cpu"):
            path, words = self._quota(folder)
            if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]) > 0:
                bounds.append(Bound(int(words[0]) / int(words[1]), Evidence(path, " ".join(words))))
        return min(bounds, key=lambda bound: bound.value, default=None)

    def oom_kills(self) -> Bound | None:
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        for folder in self._folders("memory"):
            text = file_text(self._host, f"{folder}/{name}").value or ""
            found = re.search(r"^oom_kill ([0-9]+)\s*$", text, re.MULTILINE)
            if found:
                return Bound(int(found.group(1)), Evidence(f"{folder}/{name}", found.group().strip()))
        return None

    def _quota(self, folder: str) -> tuple[str, list[str]]:
        if self.version == 2:
            return f"{folder}/cpu.max", (file_text(self._host, f"{folder}/cpu.max").value or "").split()
        quota, period = (file_text(self._host, f"{folder}/cpu.cfs_{name}_us").value for name in ("quota", "period"))
        return f"{folder}/cpu.cfs_quota_us", [(quota or "").strip(), (period or "").strip()]

    def _lowest(self, controller: str, name: str) -> Bound | None:
        bounds = []
        for folder in self._folders(controller):
            text = (file_text(self._host, f"{folder}/{name}").value or "").strip()
            if text.isdecimal() and int(text) < _NO_LIMIT:
                bounds.append(Bound(int(text), Evidence(f"{folder}/{name}", text)))
        return min(bounds, key=lambda bound: bound.value, default=None)

    def _folders(self, controller: str) -> Iterator[str]:
        """From the session's own group to the root. A container may see its groups only at the root."""
        top = _ROOT if self.version == 2 else f"{_ROOT}/{controller}"
        path = self._paths.get("" if self.version == 2 else controller, "/")
        parts = [part for part in path.split("/") if part not in ("", "..")][:_DEPTH_AT_MOST]
        for length in range(len(parts), -1, -1):
            yield "/".join((top, *parts[:length]))
