"""Facts of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.facts.machine import hardware, session, storage, system

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.fact import Fact
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
    "account": system.account,
    "privileges": system.privileges,
    "driver_group": system.driver_group,
    "mounts": storage.mounts,
    "folder": lambda host: storage.folder(host, "/tmp", storage.mounts(host).value or ()),
    "caches": lambda host: storage.caches(host, storage.mounts(host).value or ()),
    "cgroup": hardware.cgroup,
    "memory_of_machine": hardware.memory,
    "processor": hardware.processor,
    "settings": hardware.settings,
    "libstdcxx": lambda host: session.libstdcxx(host, "aarch64"),
    "encoding": session.encoding,
    "timezone": session.timezone,
    "processes": session.processes,
}
