"""Facts of the host's network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.facts.network import clock, firewall, interfaces, names, ports, proxies
from npuenv.facts.network import rendezvous as launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.facts import Fact
    from npuenv.host.base import Host

FACTS: dict[str, Callable[[Host], Fact[Any]]] = {
    "clock": clock.clock,
    "firewall": firewall.firewall,
    "hostname": names.hostname,
    "interfaces": interfaces.interfaces,
    "listeners": ports.listeners,
    "master": launch.master,
    "port_range": ports.port_range,
    "proxies": proxies.proxies,
    "resolvers": names.resolvers,
    "routes": interfaces.route_table,
}
