"""The machine below everything: system, limits, memory, disks, container, processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.facts.machine import account, cgroup, hardware, libraries, mounts, processes, system
from npuenv.facts.machine import folders as places
from npuenv.facts.machine import system as language

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.core.fact import Fact
    from npuenv.facts.collector import Asker
    from npuenv.facts.machine.account import Account, Privileges
    from npuenv.facts.machine.cgroup import Cgroup
    from npuenv.facts.machine.folders import Cache
    from npuenv.facts.machine.hardware import Memory, Processor
    from npuenv.facts.machine.libraries import CxxLibrary
    from npuenv.facts.machine.mounts import Folder, Mount
    from npuenv.facts.machine.processes import Processes
    from npuenv.facts.machine.system import Space, System


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What is true of the machine or container itself."""

    time: Fact[str]
    arch: Fact[str]
    kernel: Fact[str]
    system: Fact[System]
    glibc: Fact[str]
    container: Fact[str]
    cpus: Fact[float]
    memory_kib: Fact[int]
    shared_memory: Fact[Space]
    disk: Fact[Space]  # of the home folder, where environments go
    open_files: Fact[int]
    locked_memory: Fact[int]
    limits: Fact[dict[str, int]]
    account: Fact[Account]
    privileges: Fact[Privileges]
    driver_group: Fact[int]
    mounts: Fact[tuple[Mount, ...]]
    home: Fact[Folder]
    tmp: Fact[Folder]
    caches: Fact[tuple[Cache, ...]]
    cgroup: Fact[Cgroup]
    memory: Fact[Memory]  # of the machine, whatever the control group allows
    processor: Fact[Processor]
    settings: Fact[Mapping[str, str]]  # of the kernel
    libstdcxx: Fact[CxxLibrary]
    encoding: Fact[str]
    timezone: Fact[str]
    processes: Fact[Processes]


def collect(ask: Asker) -> MachineFacts:
    """Asks for all of them."""
    arch = ask(system.arch)
    table = ask(mounts.mounts)
    rows = table.value or ()
    return MachineFacts(
        time=ask(system.time),
        arch=arch,
        kernel=ask(system.kernel),
        system=ask(system.system),
        glibc=ask(system.glibc),
        container=ask(system.container),
        cpus=ask(system.cpus),
        memory_kib=ask(system.memory_kib),
        shared_memory=ask(lambda host: system.space(host, "/dev/shm")),
        disk=ask(lambda host: system.space(host, host.environ().get("HOME") or "/")),
        open_files=ask(lambda host: system.limit(host, "Max open files")),
        locked_memory=ask(lambda host: system.limit(host, "Max locked memory")),
        limits=ask(system.limits),
        account=ask(account.account),
        privileges=ask(account.privileges),
        driver_group=ask(account.driver_group),
        mounts=table,
        home=ask(lambda host: mounts.folder(host, places.home(host), rows)),
        tmp=ask(lambda host: mounts.folder(host, places.tmp(host), rows)),
        caches=ask(lambda host: places.caches(host, rows)),
        cgroup=ask(cgroup.cgroup),
        memory=ask(hardware.memory),
        processor=ask(hardware.processor),
        settings=ask(hardware.settings),
        libstdcxx=ask(lambda host: libraries.libstdcxx(host, arch.value)),
        encoding=ask(language.encoding),
        timezone=ask(language.timezone),
        processes=ask.at(1, processes.processes),
    )
