"""Facts of the host's network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.facts.network import environ, interfaces, ports, services

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.fact import Fact
    from npuenv.host.base import Host

FACTS: dict[str, Callable[[Host], Fact[Any]]] = {
    "clock": services.clock,
    "firewall": services.firewall,
    "hostname": interfaces.hostname,
    "interfaces": interfaces.interfaces,
    "listeners": ports.listeners,
    "master": environ.master,
    "port_range": ports.port_range,
    "proxies": environ.proxies,
    "resolvers": interfaces.resolvers,
    "routes": interfaces.route_table,
}
