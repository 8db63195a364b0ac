"""Facts of cards and driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.facts.npu import cards, driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.fact import Fact
    from npuenv.host.base import Host

FACTS: dict[str, Callable[[Host], Fact[Any]]] = {
    "driver": driver.driver,
    "firmware": driver.firmware,
    "install_info": driver.install_info,
    "smi_table": lambda host: driver.table_of(driver.smi(host)),
    "smi_trouble": lambda host: driver.trouble_of(driver.smi(host)),
    "nodes": driver.nodes,
    "pci_devices": lambda host: driver.pci_devices_of(driver.pci_rows(host)),
    "modules": driver.modules,
    "npu_pci_addresses": lambda host: driver.pci_addresses_of(driver.pci_rows(host)),
    "npu_topology_files": driver.topology_files,
    "npu_library_files": driver.library_files,
    "npu_changed": lambda host: driver.changed(host, "/usr/local/Ascend/driver/version.info"),
    "npu_install_log": driver.installer,
    "npu_dmesg": cards.events,
    "npu_namespaces": cards.claims,
    "npu_ascend_dmi": cards.dmi,
}
