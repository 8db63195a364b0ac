"""The reader of each fact that has cases. The answers of hccn_tool have cases of their own: test_hccn_cases.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npuenv.core.fact import Fact
from npuenv.facts import cann, machine, network, npu, python, ray
from npuenv.facts.cann import toolkit
from npuenv.facts.hccn import tool
from npuenv.facts.machine import hardware
from npuenv.facts.network import interfaces
from npuenv.facts.npu import driver
from npuenv.host import Host

CANN = "/usr/local/Ascend/cann-8.5.0"
OLDER = "/usr/local/Ascend/ascend-toolkit/8.3.RC1"

Readers = dict[str, Callable[[Host], Fact[Any]]]
MACHINE: Readers = {
    "system": machine.system,
    "glibc": machine.glibc,
    "container": machine.container,
    "open_files": lambda host: machine.limit(host, "Max open files"),
    "space": lambda host: machine.space(host, "/dev/shm"),
    "memory": machine.memory_kib,
    "cpus": machine.cpus,
    "limits": machine.limits,
    "account": machine.account,
    "privileges": machine.privileges,
    "driver_group": machine.driver_group,
    "mounts": hardware.mounts,
    "folder": lambda host: hardware.folder(host, "/tmp", hardware.mounts(host).value or ()),
    "caches": lambda host: hardware.caches(host, hardware.mounts(host).value or ()),
    "cgroup": hardware.cgroup,
    "memory_of_machine": hardware.memory,
    "processor": hardware.processor,
    "settings": hardware.settings,
    "libstdcxx": lambda host: machine.libstdcxx(host, "aarch64"),
    "encoding": machine.encoding,
    "timezone": machine.timezone,
    "processes": machine.processes,
}
RAY: Readers = {
    "ray_status": lambda host: ray.status(host, "/opt/env/bin/ray", 45.0),
    "ray_session": ray.session,
    "ray_address": ray.address,
    "ray_token": ray.token,
}
FACTS: Readers = {
    **MACHINE,
    **RAY,
    "cann": lambda host: toolkit.cann(host, "aarch64"),
    "cann_closed": toolkit.closed,
    "cann_of_any_arch": lambda host: toolkit.cann(host, None),
    "nnal": toolkit.nnal,
    "nnal_atb": cann.atb,
    "opp": toolkit.opp,
    "opp_kernels": lambda host: cann.kernels(host, f"{CANN}/opp"),
    "opp_custom": lambda host: cann.custom(host, f"{CANN}/opp"),
    "cann_installs": lambda host: toolkit.installs(host, "aarch64"),
    "cann_entries": toolkit.entries,
    "cann_install_record": toolkit.install_record,
    "cann_parts": lambda host: cann.parts(host, OLDER),
    "cann_running": lambda host: cann.running(host, OLDER),
    "cann_ops": lambda host: cann.ops(host, CANN, "aarch64"),
    "cann_ops_older": lambda host: cann.ops(host, OLDER, "aarch64"),
    "cann_writes": cann.writes,
    "cann_named_files": cann.named_files,
    "cann_compilers": lambda host: cann.compilers(host, 2.0),
    "cann_torch_abi": lambda host: cann.torch_abi(host, "/opt/env/bin/python"),
    "hccn_conf": tool.hccn_conf,
    "hccn_rank_table": tool.ranks,
    "hccn_place": tool.hccn_tool,
    "clock": network.clock,
    "firewall": network.firewall,
    "hostname": interfaces.hostname,
    "interfaces": interfaces.interfaces,
    "listeners": interfaces.listeners,
    "master": network.master,
    "port_range": interfaces.port_range,
    "proxies": network.proxies,
    "resolvers": interfaces.resolvers,
    "routes": interfaces.route_table,
    "driver": lambda host: driver.version_info(host, "driver"),
    "firmware": lambda host: driver.version_info(host, "firmware"),
    "install_info": driver.install_info,
    "smi_table": lambda host: driver.table_of(driver.smi(host)),
    "smi_trouble": lambda host: driver.trouble_of(driver.smi(host)),
    "nodes": driver.nodes,
    "pci_devices": lambda host: driver.pci_column(driver.pci_rows(host), 1),
    "modules": driver.modules,
    "npu_pci_addresses": lambda host: driver.pci_column(driver.pci_rows(host), 0),
    "npu_topology_files": driver.topology_files,
    "npu_library_files": driver.library_files,
    "npu_changed": lambda host: driver.changed(host, "/usr/local/Ascend/driver/version.info"),
    "npu_install_log": driver.installer,
    "npu_dmesg": npu.events,
    "npu_namespaces": npu.claims,
    "npu_ascend_dmi": npu.dmi,
    "interpreter": lambda host: python.read_interpreter(host, "/opt/env/bin/python"),
    "imports": lambda host: python.imports(host, "/opt/env/bin/python", "torch"),
    "devices": lambda host: python.devices(host, "/opt/env/bin/python"),
}
