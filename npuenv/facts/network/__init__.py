"""The host's own network: proxies, interfaces, names, ports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.facts.collector import USE_LEVEL, not_asked
from npuenv.facts.network import interfaces, names, ports, proxies
from npuenv.facts.network import rendezvous as launch

if TYPE_CHECKING:
    from npuenv.core.fact import Fact
    from npuenv.facts.collector import Asker
    from npuenv.facts.network.clock import Clock
    from npuenv.facts.network.firewall import Firewall
    from npuenv.facts.network.interfaces import Interface, Route
    from npuenv.facts.network.names import HostName
    from npuenv.facts.network.ports import Listener, PortRange
    from npuenv.facts.network.proxies import Proxy
    from npuenv.facts.network.rendezvous import Master


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """What is true of the network that the host itself uses."""

    proxies: Fact[tuple[Proxy, ...]]
    proxies_listen: Fact[dict[str, bool]]  # variable -> whether something accepts connections there
    spans: Fact[tuple[str, ...]]  # the variables that speak of several nodes
    master: Fact[Master]
    interfaces: Fact[tuple[Interface, ...]]
    routes: Fact[tuple[Route, ...]]
    hostname: Fact[HostName]
    resolvers: Fact[tuple[str, ...]]
    listeners: Fact[tuple[Listener, ...]]
    port_range: Fact[PortRange]
    firewall: Fact[Firewall]
    clock: Fact[Clock]


def collect(ask: Asker) -> NetworkFacts:
    """Asks for all of them. Programs run from level 1 on where there are several nodes, else from level 2 on."""
    found, spans = ask(proxies.proxies), launch.spans(ask.host.environ())
    from_level = 1 if spans.is_known else USE_LEVEL
    may_run = ask.level >= from_level
    return NetworkFacts(
        proxies=found,
        proxies_listen=proxies.listen(ask, found),
        spans=spans,
        master=ask(lambda host: launch.master(host, may_run=ask.level > 0)),
        interfaces=ask(lambda host: interfaces.interfaces(host, may_run=may_run)),
        routes=ask(interfaces.route_table),
        hostname=ask(lambda host: names.hostname(host, may_run=may_run)),
        resolvers=ask(names.resolvers),
        listeners=ask(lambda host: ports.listeners(host, may_run=may_run)),
        port_range=ask(ports.port_range),
        **(_told_by_programs(ask) if may_run else dict.fromkeys(("firewall", "clock"), not_asked(from_level))),
    )


def _told_by_programs(ask: Asker) -> dict[str, Fact[Any]]:
    """What no file says. Modules are loaded when needed."""
    from npuenv.facts.network import clock, firewall

    return {"firewall": ask(firewall.firewall), "clock": ask(clock.clock)}
