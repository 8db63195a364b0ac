"""What is known of the cards' network: hccn_tool's answers card by card, values and cards without a readable one; the
cards' addresses, in use and in /etc/hccn.conf.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from npuenv.checks.base import CheckResult, Context, skip, unread
from npuenv.core.fact import Evidence, State
from npuenv.facts.collector import was_asked
from npuenv.facts.hccn.tool import HCCN_CONF, NOT_ASKED, HccnRefusal

if TYPE_CHECKING:
    import ipaddress
    from collections.abc import Callable, Iterable, Mapping

    from npuenv.core.fact import Fact
    from npuenv.facts.collect import Facts

_REACH = ("receive timeout", "unreachable", "time exceeded")
_NO_DEVICE_HEALTH = "get device health status failed"  # the message for a card that the driver cannot reach


class Answers(NamedTuple):
    """The answers to one query, by card number."""

    values: dict[int, Any]
    lines: dict[int, Evidence]  # the line of each value
    unread: dict[int, Evidence]  # the cards without a readable answer, each with its output


def answers(context: Context, name: str) -> Answers | None:
    """The answers in the fact `hccn.NAME`; None if it was not queried or does not exist."""
    fact: Fact[dict[int, Fact[Any]]] = getattr(context.facts.hccn, name)
    if not was_asked(fact) or fact.state is State.ABSENT:
        return None
    if fact.value is None:
        line = next(iter(fact.evidence), Evidence("hccn_tool", ""))
        return Answers({}, {}, dict.fromkeys(sorted(cards_here(context)), line))
    values = {card: item.value for card, item in fact.value.items() if item.value is not None}
    lines = {card: fact.value[card].evidence[0] for card in values}
    blind = {card: item.evidence[0] for card, item in fact.value.items() if item.state is State.UNKNOWN}
    return Answers(values, lines, blind)


def about(
    make: Callable[..., CheckResult], name: str, lines: Mapping[int, Evidence], cards: Iterable[int], **args: Any
) -> CheckResult | None:
    """The result for some cards, each with its line; None without any."""
    named = tuple(cards)
    return make(name, *(lines[card] for card in named), cards=named, **args) if named else None


def cards_here(context: Context) -> set[int]:
    """The physical numbers of the cards of this machine or container."""
    nodes = context.facts.npu.nodes.value
    return set(nodes.numbers) if nodes else set()


def tool_failure(context: Context) -> CheckResult | None:
    """The result if hccn_tool itself cannot be used; None if it works."""
    hccn = context.facts.hccn
    if hccn.tool.value is None:
        return skip("network.because-no-tool")
    if was_asked(hccn.grammar) and hccn.grammar.state is not State.KNOWN:
        return skip("network.because-tool")
    return None


def unread_cards(context: Context, cards: Mapping[int, Evidence], *, of: Mapping[int, Any]) -> CheckResult | None:
    """Unknown for the cards without a readable answer; `of` are those that are expected to have one.

    The check of the tool reports a card that answers nothing, queries that were skipped because of it, and a tool that
    answers for no card.
    """
    silent = {*silent_cards(context), *(card for card, line in cards.items() if line.line.startswith(NOT_ASKED))}
    if cards and context.facts.hccn.refused.is_known and (not of or cards.keys() <= silent):
        return skip("network.because-tool")
    return unread({card: line for card, line in cards.items() if card not in silent})


def silent_cards(context: Context) -> list[int]:
    """The cards without any answer, if other cards answer or the tool itself reports them."""
    hccn = context.facts.hccn
    refused = hccn.refused.value
    if refused is None or refused.kind is not HccnRefusal.NO_ANSWER:
        return []
    links = hccn.links.value or {}
    has_others = any(fact.value is not None for fact in links.values())
    silent = [card for card, fact in links.items() if fact.value is None and fact.evidence[0].line == refused.line]
    is_unreachable = _NO_DEVICE_HEALTH in refused.line.lower()
    match = re.search(r" -i ([0-9]+)", hccn.refused.evidence[0].command)
    if not silent and is_unreachable and match:
        silent = [int(match[1])]
    return silent if has_others or is_unreachable else []


def stranded_cards(context: Context) -> list[int]:
    """The cards that reach nothing and have no gateway or no address to watch."""
    found = answers(context, "net_health")
    states = found.values if found else {}
    return [card for card, state in states.items() if state in _REACH and not _has_way(context, card)]


def _has_way(context: Context, card: int) -> bool:
    """Whether the card has a gateway and an address to watch, as far as these were queried."""
    for name in ("gateways", "netdetects"):
        fact = (getattr(context.facts.hccn, name).value or {}).get(card)
        if fact is not None and fact.state is State.ABSENT:
            return False
    return True


class CardAddress(NamedTuple):
    """A card's configured address, and its origin."""

    ip: str
    netmask: str  # "" if not set
    evidence: Evidence

    @property
    def network(self) -> ipaddress.IPv4Network | None:
        """Its subnet; None if address or netmask is invalid."""
        return _network(self.ip, self.netmask)

    @property
    def is_usable(self) -> bool:
        """Whether a card can have it: not a network or broadcast address, loopback, unspecified or multicast."""
        return _is_usable(self.ip, self.netmask)

    @property
    def line(self) -> Evidence:
        return Evidence(self.evidence.command, f"{self.evidence.line} netmask {self.netmask or 'not set'}")


# Cached because several checks use it for each card.
@functools.lru_cache(1024)
def _network(ip: str, netmask: str) -> ipaddress.IPv4Network | None:
    import ipaddress

    try:
        return ipaddress.IPv4Network(f"{ip}/{netmask or 32}", strict=False)
    except ValueError:
        return None


@functools.lru_cache(1024)
def _is_usable(ip: str, netmask: str) -> bool:
    import ipaddress

    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return False
    network = _network(ip, netmask)
    is_edge = network is not None and network.prefixlen < 31 and address in (network[0], network[-1])
    is_special = address.is_loopback or address.is_unspecified or address.is_multicast
    return not (is_edge or is_special or (address.version == 4 and network is None))


Addresses = dict[int, CardAddress]


def conf_values(facts: Facts, key: str) -> dict[int, str]:
    """Card -> its value of a key in /etc/hccn.conf."""
    conf = facts.hccn.conf.value
    return {card: keys[key] for card, keys in (conf.by_device if conf else {}).items() if keys.get(key)}


def in_file(facts: Facts) -> Addresses:
    """Card -> its address in /etc/hccn.conf."""
    masks = conf_values(facts, "netmask")
    return {
        card: CardAddress(ip, masks.get(card, ""), Evidence(HCCN_CONF, f"address_{card}={ip}"))
        for card, ip in sorted(conf_values(facts, "address").items())
    }


def in_use(facts: Facts) -> Addresses:
    """Card -> its address from hccn_tool."""
    answered = (facts.hccn.addresses.value or {}).items()
    found = {card: (fact.value, fact.evidence[0]) for card, fact in answered if fact.value is not None}
    return {card: CardAddress(value.ip, value.netmask, line) for card, (value, line) in found.items()}


def addressed_cards(context: Context) -> set[int]:
    """The cards with an address, in the file or in use."""
    return {*in_file(context.facts), *in_use(context.facts)}
