"""Checks of the cards' network in use: hccn_tool's links, health, speed, modules, pings and certificates (level 2).

If the tool itself fails, `network.hccn-tool` reports it and the other checks are skipped. A card whose link is down is
reported once, by `network.card-links`: its speed, health and module are consequences.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from npuenv.checks.base import NPU_FRAMEWORKS, card_check, fail, fix_for, ok, skip, unknown, warn, worst
from npuenv.checks.network import card_addresses
from npuenv.checks.network.answers import (
    about,
    addressed_cards,
    answers,
    cards_here,
    silent_cards,
    stranded_cards,
    tool_failure,
    unread_cards,
)
from npuenv.core.fact import Evidence, Fact, State
from npuenv.facts.hccn.tool import HccnRefusal, refusal

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Mapping

    from npuenv.checks.base import CheckResult, Context
    from npuenv.facts.hccn.parsers import LinkChanges

    _Values = Mapping[int, Any]  # by card
    _Lines = Mapping[int, Evidence]
    _Judge = Callable[[Context, _Values, _Lines, _Lines], CheckResult]
    _Check = Callable[[Context], CheckResult]


_FLAPS = "hicann/hccl fault diagnosis, ERROR CQE: hccn_tool -link_stat shows whether the port flaps"
# npuenv's own threshold: cards of one machine have equal uptime and the same switch maintenance.
_COUNT_AT_LEAST = 10
_TIMES_THE_OTHERS = 3
_OTHERS_AT_LEAST = 2
# npuenv's own threshold: a start of the driver takes the link down once.
_DOWN_A_DAY = 3
_DAY_S = 24 * 60 * 60
_TIME = re.compile(r"\w{3} (\w{3}) +(\d+) (\d+):(\d+):(\d+) (\d{4})")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NOT_SET_UP = ("init", "detect ip set")


def _flaps(context: Context) -> CheckResult:
    """A link that came up far more often than the others, or that went down several times within a day."""
    fact, found = context.facts.hccn.link_changes, answers(context, "link_changes")
    if found is None or _is_older(fact):
        return skip("network.none-asked")
    read = found.values
    if not read and context.facts.hccn.grammar.state is not State.KNOWN:
        return skip("network.because-tool")
    often = [card for card in read if _is_odd(card, {number: item.up_count for number, item in read.items()})]
    lately = [card for card, item in read.items() if card not in often and _downs(item) >= _DOWN_A_DAY]
    outcomes = [unread_cards(context, found.unread, of=read)]
    for name, cards in (("network.flaps-often", often), ("network.flaps-lately", lately)):
        shown = [Evidence(found.lines[card].command, f"link up count: {read[card].up_count}") for card in cards]
        counts = tuple(f"{card}: {read[card].up_count}" for card in cards)
        if cards:
            outcomes.append(warn(name, *shown, fix="network.flaps", counts=counts, cards=tuple(cards)))
    return worst(outcomes, otherwise=ok("network.flaps-ok", *fact.evidence[:1], count=len(read)))


def _is_older(fact: Fact[Any]) -> bool:
    """Whether the tool does not support the query."""
    if fact.value is not None:
        return False
    answer = refusal("\n".join(item.line for item in fact.evidence))
    return answer is not None and answer.kind is HccnRefusal.GRAMMAR


def _is_odd(card: int, counts: dict[int, int]) -> bool:
    others = sorted(count for number, count in counts.items() if number != card)
    if len(others) < _OTHERS_AT_LEAST or counts[card] < _COUNT_AT_LEAST:
        return False
    return counts[card] > _TIMES_THE_OTHERS * max(others[len(others) // 2], 1)


def _downs(changes: LinkChanges) -> int:
    """How often the link went down within the day before the answer."""
    now = _moment(changes.now)
    if now is None:
        return 0
    moments = (_moment(text) for text, state in changes.changes if state == "DOWN")
    return sum(moment is not None and 0 <= (now - moment).total_seconds() <= _DAY_S for moment in moments)


def _moment(text: str) -> datetime.datetime | None:
    """`Wed Aug  2 03:09:26 2022` in any locale; None for an invalid time."""
    import datetime

    found = _TIME.fullmatch(text)
    if found is None or found[1] not in _MONTHS:
        return None
    day, hour, minute, second, year = (int(found[group]) for group in (2, 3, 4, 5, 6))
    try:
        return datetime.datetime(year, _MONTHS.index(found[1]) + 1, day, hour, minute, second)
    except ValueError:
        return None


def _of_answers(name: str, *, otherwise: str = "network.none-asked") -> Callable[[_Judge], _Check]:
    """Decorates a check of the answers to one query: the function gets their values, lines, and what is unread."""

    def decorate(judge: _Judge) -> _Check:
        @functools.wraps(judge)
        def check(context: Context) -> CheckResult:
            found = answers(context, name)
            return tool_failure(context) or (skip(otherwise) if found is None else judge(context, *found))

        return check

    return decorate


def _tool(context: Context) -> CheckResult:
    hccn = context.facts.hccn
    if hccn.tool.value is None:
        if not cards_here(context):
            return skip("network.tool-no-card")
        if not (context.spans_nodes or addressed_cards(context)):
            return skip("network.tool-unneeded")
        wanted = "network.tool-container" if context.in_container else "network.tool"
        return unknown("network.tool-missing", *hccn.tool.evidence, fix=wanted)
    if hccn.refused.value is not None:
        silent = silent_cards(context)
        if silent:
            cards, line = tuple(silent), hccn.refused.value.line
            shown = hccn.refused.evidence
            return unknown("network.tool-card-silent", *shown, fix="network.tool-no-answer", cards=cards, line=line)
        kind = hccn.refused.value.kind.value
        fix = fix_for(f"network.tool-{kind}", needs_root=kind == "permission")
        return unknown(f"network.tool-{kind}", *hccn.refused.evidence, fix=fix, line=hccn.refused.value.line)
    if hccn.grammar.state is State.UNKNOWN:
        return unknown("network.tool-unread", *hccn.grammar.evidence)
    name = "network.tool-ok" if hccn.tool.value.is_linked else "network.tool-not-on-path"
    return ok(name, path=hccn.tool.value.path)


def _down_cards(context: Context) -> set[int]:
    """The cards whose link is known to be down."""
    found = answers(context, "links")
    return {card for card, state in found[0].items() if state == "DOWN"} if found else set()


@_of_answers("links")
def _links(context: Context, states: _Values, lines: _Lines, blind: _Lines) -> CheckResult:
    """Links that are down. If none is up and no card has an address, the cards' network is not used."""
    well = ok("network.links-up", *lines.values(), count=len(states))
    down = _down(context, states, lines)
    return worst((down, unread_cards(context, blind, of=states)), otherwise=down or well)


def _down(context: Context, states: _Values, lines: _Lines) -> CheckResult | None:
    """The result for the links that are down; None if there are none."""
    down = sorted(_down_cards(context))
    if not down:
        return None
    shown = tuple(lines[card] for card in down)
    table = context.facts.npu.smi.value
    is_a3 = table is not None and table.layout is not None and table.layout.value == "a3"
    has_address = addressed_cards(context)
    if len(down) == len(states) and not (has_address & set(down)):
        return ok("network.links-unused", *shown, count=len(down))
    if is_a3 and (len(down) == len(states) or not has_address & set(down)):
        return ok("network.links-a3-unused", *shown, count=len(down))
    modules = answers(context, "optical")
    known = modules.values if modules else {}
    bare = [card for card in down if card in known and not known[card].is_present and not known[card].readings]
    if bare:
        shown = (*shown, *(modules.lines[card] for card in bare if modules))
        return fail("network.links-no-module", *shown, fix="network.module", cards=tuple(down), bare=tuple(bare))
    return fail("network.links-down", *shown, fix="network.link", cards=tuple(down), count=len(states))


@_of_answers("net_health")
def _health(context: Context, states: _Values, lines: _Lines, blind: _Lines) -> CheckResult:
    """The result of the card's own probe of its configured address to watch."""
    down = _down_cards(context)
    assessed = {card: state for card, state in states.items() if card not in down}
    unhealthy = {card: state for card, state in assessed.items() if state not in ("success", "unknown", *_NOT_SET_UP)}
    unset = [card for card in stranded_cards(context) if card in unhealthy]
    unreported = {card: lines[card] for card, state in assessed.items() if state == "unknown"}
    groups = (
        ("network.health-no-gateway", "network.gateway-set", unset),
        ("network.health-bad", "network.health", [card for card in unhealthy if card not in unset]),
    )
    bad = [
        about(fail, name, lines, cards, fix=fix, states=tuple(f"{card}: {unhealthy[card]}" for card in cards))
        for name, fix, cards in groups
    ]
    args = {card: state for card, state in assessed.items() if card not in unreported}
    blind_ones = unread_cards(context, {**blind, **unreported}, of=states)
    return worst((*bad, blind_ones), otherwise=_watching(lines, args))


def _watching(lines: _Lines, assessed: Mapping[int, str]) -> CheckResult:
    if not assessed:
        return skip("network.because-links")
    watching = sum(state not in _NOT_SET_UP for state in assessed.values())
    name = "network.health-ok" if watching else "network.health-not-set-up"
    return ok(name, *list(lines.values())[:1], count=watching or len(assessed))


@_of_answers("speeds")
def _speed(context: Context, speeds: _Values, lines: _Lines, blind: _Lines) -> CheckResult:
    down = _down_cards(context)
    assessed = {card: speed.mbps for card, speed in speeds.items() if card not in down}
    known = {card: mbps for card, mbps in assessed.items() if mbps is not None}
    unreported = {card: lines[card] for card in assessed if card not in known}
    gbps, least = (end(known.values(), default=0) // 1000 for end in (max, min))
    slow = sorted(card for card, mbps in known.items() if mbps < max(known.values()))
    outcomes = (
        unread_cards(context, blind if known else {**blind, **unreported}, of=known),
        about(warn, "network.speed-differs", lines, slow, fix="network.speed", least=least, most=gbps),
        about(warn, "network.speed-unknown", lines, unreported if known else (), fix="network.speed"),
    )
    first = list(lines.values())[:1]
    well = ok("network.speed-ok", *first, gbps=gbps, count=len(known)) if known else skip("network.because-links")
    return worst(outcomes, otherwise=well)


@_of_answers("optical")
def _optical(context: Context, modules: _Values, lines: _Lines, blind: _Lines) -> CheckResult:
    """The modules of cards whose link is up; those of cards that are down are named with their link."""
    assessed = {card: module for card, module in modules.items() if card not in _down_cards(context)}
    gone = sorted(card for card, module in assessed.items() if not module.is_present)
    outliers = [card for card in gone if assessed[card].readings]
    values = tuple(f"{card}: {value}" for card in outliers for value in assessed[card].readings[:1])
    absent = [card for card in gone if card not in outliers]
    outside = {card: module.outside_limits for card, module in assessed.items() if module.outside_limits}
    outcomes = [
        unread_cards(context, blind, of=modules),
        about(unknown, "network.optical-contradicts", lines, outliers, values=values),
        about(warn, "network.optical-absent", lines, absent, fix="network.module"),
        *(
            warn("network.optical-limits", lines[card], fix="network.module", card=card, values=outside[card])
            for card in outside
            if card not in gone
        ),
    ]
    well = ok("network.optical-ok", count=len(assessed)) if assessed else skip("network.because-links")
    return worst(outcomes, otherwise=well)


@_of_answers("vnics", otherwise="network.vnic-none")
def _vnic(context: Context, vnics: _Values, lines: _Lines, blind: _Lines) -> CheckResult:
    """The interface for traffic inside a super pod: HCCL on A3 needs it on every chip."""
    down = sorted(card for card, vnic in vnics.items() if not vnic.is_up)
    bad = about(fail, "network.vnic-down", lines, down, fix="network.vnic")
    return worst((bad, unread_cards(context, blind, of=vnics)), otherwise=ok("network.vnic-up", count=len(vnics)))


@_of_answers("pings", otherwise="network.ping-none")
def _ping(context: Context, pings: _Values, lines: _Lines, blind: _Lines) -> CheckResult:
    """A ping from each card to another one of its subnet; both are up and have an address."""
    if card_addresses.has_address_fault(context):
        return skip("network.because-addresses")
    lossy = {card: ping for card, ping in pings.items() if ping.lost or ping.lost is None}
    dead = {card: ping for card, ping in lossy.items() if not ping.received}
    weak = {card: ping for card, ping in lossy.items() if ping.received}
    outcomes = [unread_cards(context, blind, of=pings)]
    for make, some in ((fail, dead), (warn, weak)):
        ways = tuple(f"{card} -> {ping.target or '?'}: {_loss(ping)}" for card, ping in some.items())
        if some:
            shown = (lines[card] for card in some)
            outcomes.append(make("network.ping-lost", *shown, fix="network.ping", ways=ways))
    return worst(outcomes, otherwise=ok("network.ping-ok", count=len(pings)))


def _loss(ping: Any) -> str:
    return ping.trouble or "no answer" if ping.sent is None else f"{ping.received}/{ping.sent}"


def _certificate(context: Context) -> CheckResult:
    """Certificates matter only if TLS is on; the tool itself reports their expiry."""
    if context.facts.hccn.conf.state is State.UNKNOWN:
        return skip("network.because-conf")
    refused, found = tool_failure(context), answers(context, "tls")
    if refused or found is None:
        return refused or skip("network.tls-not-asked")
    states, lines, blind = found
    on = {card: state for card, state in states.items() if state.is_on}
    blind_ones = unread_cards(context, blind, of=states)
    if not on:
        return blind_ones or skip("network.tls-is-off")
    silent = {card: lines[card] for card, state in on.items() if not any(item.expiry for item in state.certificates)}
    near = _expiring(on, lines, "near expiration", "near")
    outcomes = [_expiring(on, lines, "has expired", "expired"), near, blind_ones]
    if len(silent) == len(on):
        outcomes.append(unknown("network.certificate-unsaid", *silent.values()))
    else:
        outcomes.append(unread_cards(context, silent, of=on))
    return worst(outcomes, otherwise=ok("network.certificate-ok", count=len(on)))


def _expiring(on: _Values, lines: _Lines, expiry: str, name: str) -> CheckResult | None:
    """The cards whose certificate has the given expiry state."""
    named = {
        card: [item for item in state.certificates if item.expiry == expiry and item.name != "crl"]
        for card, state in on.items()
    }
    cards = [card for card, found in named.items() if found]
    if not cards:
        return None
    first, make = named[cards[0]][0], fail if name == "expired" else warn
    fix = fix_for("network.certificate", needs_root=True)
    return about(make, f"network.certificate-{name}", lines, cards, fix=fix, what=first.name, end=first.end)


@_of_answers("ports", otherwise="network.ports-none")
def _ports(context: Context, cards: _Values, lines: _Lines, blind: _Lines) -> CheckResult:
    """950: ports that are down although enabled; unwired ones are disabled by design."""
    off = context.facts.hccn.ports_off.value or {}
    down = {
        card: [port.number for port in info.ports if not port.is_up and port.number not in off.get(card, ())]
        for card, info in cards.items()
    }
    bad = {card: numbers for card, numbers in down.items() if numbers}
    well = ok("network.ports-up", count=len(cards))
    if bad:  # a card without any working port may be unwired on purpose
        well = ok("network.ports-unused", *(lines[card] for card in bad), cards=tuple(bad))
    broken = None
    if any(len(numbers) < len(cards[card].ports) for card, numbers in bad.items()):
        words = tuple(f"{card}: {number}" for card, numbers in bad.items() for number in numbers)
        broken = fail("network.ports-down", *(lines[card] for card in bad), fix="network.link", ports=words)
    return worst((broken, unread_cards(context, blind, of=cards)), otherwise=well)


_LEVEL = 2
_VERIFY = "vllm-ascend installation and multi-node pages, list of verifications"
_HCCN_TOOL = "vllm-ascend installation, verification"
CHECKS = (
    *card_addresses.CHECKS,
    card_check("network.hccn-tool", (), _HCCN_TOOL, _tool, level=_LEVEL, required_for=NPU_FRAMEWORKS),
    card_check("network.card-links", (), "alibaba/ROLL Ascend FAQ; " + _VERIFY, _links, level=_LEVEL),
    card_check("network.link-flaps", (), _FLAPS, _flaps, level=_LEVEL),
    card_check("network.card-health", (), _VERIFY, _health, level=_LEVEL),
    card_check("network.card-speeds", (), "hicann/driver hccn_tool, -speed", _speed, level=_LEVEL),
    card_check("network.optical", (), "mind-cluster fault diagnosis, optical", _optical, level=_LEVEL),
    card_check("network.vnic", (), "msprechecker (Ascend/msit); " + _VERIFY, _vnic, level=_LEVEL),
    card_check("network.card-ping", (), _VERIFY, _ping, level=_LEVEL),
    card_check("network.tls-certificate", (), "HCCN tool guide, -tls", _certificate, level=_LEVEL),
    card_check("network.card-ports", (), "HCCN tool guide of 950, port state", _ports, level=_LEVEL),
    *card_addresses.RANK_TABLE,
)
