"""What the facts of one node say about its own network. Readers for `rules.toml`, and helpers for `conflicts`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.network.interfaces import INNER, hccl_choice, matching
from npuenv.cluster.consistency.readers import has_stand_in, listed, one
from npuenv.cluster.consistency.values import NONE, NodeValues, Value, ValueKey
from npuenv.core.fact import Evidence, State
from npuenv.facts.network.interfaces import number_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.facts.collect import Facts
    from npuenv.facts.network.interfaces import Interface

# What the system calls a port that a cable is plugged into, and what is put together from such ones.
_CABLED = re.compile(r"(en|eth|em\d|p\d+p\d|ib|bond|team|br|vlan|hns|roce).*")


def outer(facts: Facts) -> tuple[Interface, ...]:
    """The interfaces that lead out of the host: up, with an address, and no bridge or tunnel of its own."""
    found = facts.network.interfaces.value or ()
    return tuple(item for item in found if item.is_up and _addresses(item) and not _is_inner(item.name))


def _is_inner(name: str) -> bool:
    """Each host has its own of these, with addresses that are the same everywhere."""
    return name == "lo" or INNER.fullmatch(name) is not None


def addresses(facts: Facts) -> dict[str, Interface]:
    """The addresses by which other nodes can reach the host, each with its interface."""
    return {address: item for item in outer(facts) for address in _addresses(item)}


def is_cabled(name: str) -> bool:
    """Whether an interface is called like one that other hosts are connected to."""
    return _CABLED.fullmatch(name) is not None


def line_of(facts: Facts, interface: Interface) -> Evidence:
    """The line that shows an interface."""
    rows = facts.network.interfaces.evidence
    return next((row for row in rows if row.line.split(" ")[0] == interface.name), Evidence("", interface.name))


def for_hccl(facts: Facts) -> Interface | None:
    """The interface that HCCL uses in this session: the configured one, else the one it chooses by itself."""
    environ = facts.environment.value or {}
    every = {item.name: item for item in facts.network.interfaces.value or ()}
    values, wanted = environ.get("HCCL_IF_IP", "").strip(), environ.get("HCCL_SOCKET_IFNAME", "").strip()
    if values:
        return next((item for item in every.values() if values in item.addresses), None)
    if wanted:
        usable = [item for item in every.values() if item.is_up and item.addresses]
        return next((every[name] for name in matching(wanted, [item.name for item in usable])), None)
    return hccl_choice(outer(facts))


def hccl_interface(facts: Facts) -> NodeValues:
    return _chosen(facts, lambda item: item.name)


def hccl_subnet(facts: Facts) -> NodeValues:
    """The directly connected network that the interface for HCCL lies in."""

    def subnet(item: Interface) -> str:
        four = [number for text in _addresses(item) if (number := number_of(text)) is not None]
        for route in facts.network.routes.value or ():
            is_its = route.interface == item.name and not route.gateway and route.mask
            if is_its and any(number & route.mask == route.network for number in four):
                return f"{_dotted(route.network)}/{bin(route.mask).count('1')}"
        return ""

    return _chosen(facts, subnet)


def is_routed(nodes: Mapping[str, Facts]) -> bool:
    """Whether networks of which none is common look like a plan: three or more, or those of pods, which each host has
    for itself. Of two that are equally frequent one can be a mistake.
    """
    return len(_networks(nodes)) > 2 or all(_is_pod(facts) for facts in nodes.values())


def has_own_gateways(nodes: Mapping[str, Facts]) -> bool:
    """Whether gateways of which none is common belong to networks that differ by plan."""
    return len(_networks(nodes)) != 1 and is_routed(nodes)


def _networks(nodes: Mapping[str, Facts]) -> set[str]:
    return {value.text for facts in nodes.values() for value in hccl_subnet(facts).values.values()}


def _is_pod(facts: Facts) -> bool:
    """Whether it is a container with a network of its own, which calls its only way out eth0."""
    chosen = for_hccl(facts)
    return facts.machine.container.is_known and chosen is not None and chosen.name == "eth0"


def host_mtu(facts: Facts) -> NodeValues:
    """The largest packet: of the interface for HCCL whatever its name, and of the others by their names."""
    values = _chosen(facts, lambda item: str(item.mtu) if item.mtu else "")
    chosen = for_hccl(facts)
    others = {
        ValueKey(item.name): Value(str(item.mtu), line_of(facts, item))
        for item in outer(facts)
        if item.mtu and (chosen is None or item.name != chosen.name)
    }
    return NodeValues({**values.values, **others}, values.blind)


def _chosen(facts: Facts, show: object) -> NodeValues:
    assert callable(show)
    if facts.network.interfaces.value is None:
        return one(facts.network.interfaces, lambda _: None, absent=None)
    item = for_hccl(facts)
    if item is None:
        return NodeValues(blind={None: Evidence("/sys/class/net", "no interface that HCCL could take")})
    text = show(item)
    return NodeValues({ValueKey(): Value(text, line_of(facts, item))} if text else {})


def _addresses(item: Interface) -> tuple[str, ...]:
    """Without those that mean only the own link, and those that are stand-ins."""
    inner = ("169.254.", "127.")
    return tuple(text for text in item.addresses if not text.startswith(inner) and not has_stand_in(text))


def _dotted(number: int) -> str:
    return ".".join(str(part) for part in number.to_bytes(4, "big"))


def default_gateway(facts: Facts) -> NodeValues:
    """Where packets for unknown places go; of several ways the one that is preferred."""
    defaults = [route for route in facts.network.routes.value or () if not route.mask and route.gateway]
    if not defaults:
        return one(facts.network.routes, lambda _: NONE, absent=None)
    best = min(defaults, key=lambda route: route.metric)
    text = _dotted(best.gateway)
    line = Evidence("/proc/net/route", f"default {text} {best.interface}")
    if has_stand_in(text):
        return NodeValues(hidden=frozenset({ValueKey().topic}))
    return NodeValues({ValueKey(): Value(text, line)})


def proxies(facts: Facts) -> NodeValues:
    """The proxies of the session by their variables."""
    rows = facts.network.proxies.value or ()
    if facts.network.proxies.state is State.UNKNOWN:
        return one(facts.network.proxies, lambda _: None)
    return listed({row.variable.lower(): row.address for row in rows}, "environment", "{}={}")


def resolvers(facts: Facts) -> NodeValues:
    return one(facts.network.resolvers, lambda found: ", ".join(sorted(found)))
