"""Facts of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.facts.machine import account, cgroup, hardware, libraries, mounts, processes, system
from npuenv.facts.machine import folders as places
from npuenv.facts.machine import system as language

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.facts import Fact
    from npuenv.host.base import Host

FACTS: dict[str, Callable[[Host], Fact[Any]]] = {
    "system": system.system,
    "glibc": system.glibc,
    "container": system.container,
    "open_files": lambda host: system.limit(host, "Max open files"),
    "space": lambda host: system.space(host, "/dev/shm"),
    "memory": system.memory_kib,
    "cpus": system.cpus,
    "limits": system.limits,
    "account": account.account,
    "privileges": account.privileges,
    "driver_group": account.driver_group,
    "mounts": mounts.mounts,
    "folder": lambda host: mounts.folder(host, "/tmp", mounts.mounts(host).value or ()),
    "caches": lambda host: places.caches(host, mounts.mounts(host).value or ()),
    "cgroup": cgroup.cgroup,
    "memory_of_machine": hardware.memory,
    "processor": hardware.processor,
    "settings": hardware.settings,
    "libstdcxx": lambda host: libraries.libstdcxx(host, "aarch64"),
    "encoding": language.encoding,
    "timezone": language.timezone,
    "processes": processes.processes,
}
