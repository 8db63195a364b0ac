"""The cards' network in use: what hccn_tool says of links, health, speed, modules, pings and certificates (level 2).

Where the tool itself does not answer, `network.hccn-tool` says so and the others stand back. A card whose link is down
is reported once, by `network.card-links`: its speed, health and module are consequences.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npuenv.checks.base import NPU_FRAMEWORKS, Check, Context, Verdict, fail, fix, ok, skip, unsure, warn
from npuenv.checks.network import card_addresses, flaps, interfaces, rank_table
from npuenv.facts.asker import was_asked
from npuenv.facts.base import State

if TYPE_CHECKING:
    from npuenv.facts.base import Evidence, Fact

LEVEL = 2
_VERIFY = "vllm-ascend installation and multi-node pages, list of verifications"
_NOT_SET_UP = ("init", "detect ip set")
_SICK = "get device health status failed"  # said of a card that the driver gets nothing from
_REACH = ("receive timeout", "unreachable", "time exceeded")


def _items(context: Context, name: str) -> tuple[dict[int, Any], dict[int, Evidence], list[Evidence]] | None:
    """Card -> value, card -> the line that says it, and the lines of cards that gave none that can be read.

    None where nothing was asked or nothing of the kind exists here.
    """
    fact: Fact[Any] = getattr(context.facts.hccn, name)
    if not was_asked(fact) or fact.state is State.ABSENT:
        return None
    if fact.value is None:
        return {}, {}, list(fact.evidence)
    values = {card: item.value for card, item in fact.value.items() if item.value is not None}
    lines = {card: item.evidence[0] for card, item in fact.value.items() if item.value is not None}
    blind = [item.evidence[0] for item in fact.value.values() if item.state is State.UNKNOWN]
    return values, lines, blind


def _stands_back(context: Context) -> Verdict | None:
    """The reason why nothing can be said because of the tool; None where it answers."""
    hccn = context.facts.hccn
    if hccn.tool.value is None:
        return skip("network.because-no-tool")
    if was_asked(hccn.grammar) and hccn.grammar.state is not State.KNOWN:
        return skip("network.because-tool")
    return None


def _blind(context: Context, lines: list[Evidence]) -> Verdict:
    """Nothing could be read of some cards: unknown, or left to the check of the tool where the tool refused."""
    if context.facts.hccn.refused.is_known:
        return skip("network.because-tool")
    return unsure("network.cards-unread", *lines, count=len(lines))


def _tool(context: Context) -> Verdict:
    hccn = context.facts.hccn
    if hccn.tool.value is None:
        if not card_addresses.cards_here(context):
            return skip("network.tool-no-card")
        if not (interfaces.spans_nodes(context) or card_addresses.addressed_cards(context)):
            return skip("network.tool-unneeded")
        in_container = context.facts.machine.container.is_known
        cure = fix("network.tool-container" if in_container else "network.tool")
        return unsure("network.tool-missing", *hccn.tool.evidence, fix=cure)
    if hccn.refused.value is not None:
        silent = _silent(context)
        if silent:
            cure, says = fix("network.tool-no-answer"), {"cards": tuple(silent), "line": hccn.refused.value.line}
            return unsure("network.tool-card-silent", *hccn.refused.evidence, fix=cure, **says)
        kind = hccn.refused.value.kind.value
        cure = fix(f"network.tool-{kind}", needs_root=kind == "permission")
        return unsure(f"network.tool-{kind}", *hccn.refused.evidence, fix=cure, line=hccn.refused.value.line)
    if hccn.grammar.state is State.UNKNOWN:
        return unsure("network.tool-unread", *hccn.grammar.evidence)
    name = "network.tool-ok" if hccn.tool.value.is_linked else "network.tool-not-on-path"
    return ok(name, path=hccn.tool.value.path)


def _silent(context: Context) -> list[int]:
    """The cards that give no answer: while others do, or in the tool's own words, whatever the others do."""
    hccn = context.facts.hccn
    refused = hccn.refused.value
    if refused is None:
        return []
    from npuenv.facts.hccn.answers import Refusal  # read from level 2 on

    if refused.kind is not Refusal.NO_ANSWER:
        return []
    links = hccn.links.value or {}
    others = [card for card, fact in links.items() if fact.value is not None]
    silent = [card for card, fact in links.items() if fact.value is None and fact.evidence[0].line == refused.line]
    asked = re.search(r" -i ([0-9]+)", hccn.refused.evidence[0].command)
    if not silent and _SICK in refused.line.lower() and asked:
        silent = [int(asked[1])]
    return silent if others or _SICK in refused.line.lower() else []


def down_cards(context: Context) -> set[int]:
    """The cards whose link is known to be down."""
    found = _items(context, "links")
    return {card for card, state in found[0].items() if state == "DOWN"} if found else set()


def _links(context: Context) -> Verdict:
    """Links that are down. Where none is up and no card has an address, the cards' network is simply not used."""
    stands_back, found = _stands_back(context), _items(context, "links")
    if stands_back or found is None:
        return stands_back or skip("network.none-asked")
    states, lines, blind = found
    down = sorted(down_cards(context))
    if not down:
        return _blind(context, blind) if blind else ok("network.links-up", *lines.values(), count=len(states))
    shown = tuple(lines[card] for card in down)
    table = context.facts.npu.smi.value
    is_a3 = table is not None and table.layout is not None and table.layout.value == "a3"
    has_address = card_addresses.addressed_cards(context)
    if len(down) == len(states) and not (has_address & set(down)) and not blind:
        return ok("network.links-unused", *shown, count=len(down))
    if is_a3 and (len(down) == len(states) or not has_address & set(down)):
        return ok("network.links-a3-unused", *shown, count=len(down))
    modules = _items(context, "optical")
    bare = [card for card in down if modules and card in modules[0] and not modules[0][card].is_present]
    if bare:
        shown = (*shown, *(modules[1][card] for card in bare if modules))
        return fail("network.links-no-module", *shown, fix=fix("network.module"), cards=tuple(down), bare=tuple(bare))
    return fail("network.links-down", *shown, fix=fix("network.link"), cards=tuple(down), count=len(states))


def _health(context: Context) -> Verdict:
    """The card's own probe of the address it was given to watch."""
    stands_back, found = _stands_back(context), _items(context, "net_health")
    if stands_back or found is None:
        return stands_back or skip("network.none-asked")
    states, lines, blind = found
    down = down_cards(context)
    judged = {card: state for card, state in states.items() if card not in down}
    sick = {card: state for card, state in judged.items() if state not in ("success", "unknown", *_NOT_SET_UP)}
    if sick:
        shown = tuple(lines[card] for card in sick)
        words = tuple(f"{card}: {state}" for card, state in sick.items())
        unset = [card for card, state in sick.items() if state in _REACH and not _has_way(context, card)]
        if unset:
            return fail(
                "network.health-no-gateway", *shown, fix=fix("network.gateway-set"), cards=tuple(unset), states=words
            )
        return fail("network.health-bad", *shown, fix=fix("network.health"), states=words)
    unsaid = [lines[card] for card, state in judged.items() if state == "unknown"]
    if blind or unsaid:
        return _blind(context, [*blind, *unsaid])
    if not judged:
        return skip("network.because-links")
    if all(state in _NOT_SET_UP for state in judged.values()):
        return ok("network.health-not-set-up", *list(lines.values())[:1], count=len(judged))
    watching = sum(state not in _NOT_SET_UP for state in judged.values())
    return ok("network.health-ok", *list(lines.values())[:1], count=watching)


def _has_way(context: Context, card: int) -> bool:
    """Whether the card has a gateway and an address to watch, as far as was asked."""
    for name in ("gateways", "netdetects"):
        fact = (getattr(context.facts.hccn, name).value or {}).get(card)
        if fact is not None and fact.state is State.ABSENT:
            return False
    return True


def _speed(context: Context) -> Verdict:
    stands_back, found = _stands_back(context), _items(context, "speeds")
    if stands_back or found is None:
        return stands_back or skip("network.none-asked")
    speeds, lines, blind = found
    down = down_cards(context)
    judged = {card: speed.mbps for card, speed in speeds.items() if card not in down}
    known = {card: mbps for card, mbps in judged.items() if mbps is not None}
    if known and min(known.values()) < max(known.values()):
        slow = sorted(card for card, mbps in known.items() if mbps < max(known.values()))
        shown = (lines[card] for card in slow)
        cure = fix("network.speed")
        most = max(known.values()) // 1000
        return warn(
            "network.speed-differs", *shown, fix=cure, cards=tuple(slow), least=min(known.values()) // 1000, most=most
        )
    unsaid = sorted(set(judged) - set(known))
    if unsaid and known:
        cure = fix("network.speed")
        return warn("network.speed-unknown", *(lines[card] for card in unsaid), fix=cure, cards=tuple(unsaid))
    if blind or unsaid:
        return _blind(context, [*blind, *(lines[card] for card in unsaid)])
    if not known:
        return skip("network.because-links")
    return ok("network.speed-ok", *list(lines.values())[:1], gbps=next(iter(known.values())) // 1000, count=len(known))


def _optical(context: Context) -> Verdict:
    """The modules of cards whose link is up; that of a card that is down is named with its link."""
    stands_back, found = _stands_back(context), _items(context, "optical")
    if stands_back or found is None:
        return stands_back or skip("network.none-asked")
    modules, lines, blind = found
    judged = {card: module for card, module in modules.items() if card not in down_cards(context)}
    gone = sorted(card for card, module in judged.items() if not module.is_present)
    if gone:
        shown = (lines[card] for card in gone)
        return warn("network.optical-absent", *shown, fix=fix("network.module"), cards=tuple(gone))
    outside = {card: module.outside_limits for card, module in judged.items() if module.outside_limits}
    if outside:
        card, values = next(iter(outside.items()))
        shown = (lines[number] for number in outside)
        return warn("network.optical-limits", *shown, fix=fix("network.module"), card=card, values=values)
    if blind:
        return _blind(context, blind)
    return ok("network.optical-ok", count=len(judged)) if judged else skip("network.because-links")


def _vnic(context: Context) -> Verdict:
    """The interface for traffic inside a super pod: HCCL on A3 needs it on every chip."""
    stands_back, found = _stands_back(context), _items(context, "vnics")
    if stands_back or found is None:
        return stands_back or skip("network.vnic-none")
    vnics, lines, blind = found
    down = sorted(card for card, vnic in vnics.items() if not vnic.is_up)
    if down:
        return fail("network.vnic-down", *(lines[card] for card in down), fix=fix("network.vnic"), cards=tuple(down))
    return _blind(context, blind) if blind else ok("network.vnic-up", count=len(vnics))


def _ping(context: Context) -> Verdict:
    """Each card to another one of its subnet; both ends are up and have an address of their own."""
    stands_back, found = _stands_back(context), _items(context, "pings")
    if stands_back or found is None:
        return stands_back or skip("network.ping-none")
    pings, lines, blind = found
    if card_addresses.has_address_fault(context):
        return skip("network.because-addresses")
    lossy = {card: ping for card, ping in pings.items() if ping.lost or ping.lost is None}
    if lossy:
        shown = tuple(lines[card] for card in lossy)
        is_total = all(not ping.received for ping in lossy.values())
        make = fail if is_total else warn
        worst = tuple(f"{card} -> {ping.target or '?'}: {_loss(ping)}" for card, ping in lossy.items())
        return make("network.ping-lost", *shown, fix=fix("network.ping"), ways=worst)
    return _blind(context, blind) if blind else ok("network.ping-ok", count=len(pings))


def _loss(ping: Any) -> str:
    return ping.trouble or "no answer" if ping.sent is None else f"{ping.received}/{ping.sent}"


def _certificate(context: Context) -> Verdict:
    """Certificates count where TLS is on; the tool itself says how old they are."""
    if context.facts.hccn.conf.state is State.UNKNOWN:
        return skip("network.because-conf")
    stands_back, found = _stands_back(context), _items(context, "tls")
    if stands_back or found is None:
        return stands_back or skip("network.tls-not-asked")
    states, lines, blind = found
    on = {card: state for card, state in states.items() if state.is_on}
    if not on:
        return _blind(context, blind) if blind else skip("network.tls-is-off")
    cure = fix("network.certificate", needs_root=True)
    for expiry, make in (("has expired", fail), ("near expiration", warn)):
        named = {
            card: [item for item in state.certificates if item.expiry == expiry and item.name != "crl"]
            for card, state in on.items()
        }
        cards = [card for card, found_here in named.items() if found_here]
        if cards:
            first = named[cards[0]][0]
            name = "network.certificate-expired" if make is fail else "network.certificate-near"
            return make(
                name, *(lines[card] for card in cards), fix=cure, cards=tuple(cards), what=first.name, end=first.end
            )
    if blind:
        return _blind(context, blind)
    if not any(item.expiry for state in on.values() for item in state.certificates):
        return unsure("network.certificate-unsaid", *lines.values())
    return ok("network.certificate-ok", count=len(on))


def _ports(context: Context) -> Verdict:
    """950: ports that are down although they are switched on; unwired ones are switched off by design."""
    stands_back, found = _stands_back(context), _items(context, "ports")
    if stands_back or found is None:
        return stands_back or skip("network.ports-none")
    cards, lines, blind = found
    off = context.facts.hccn.ports_off.value or {}
    down = {
        card: [port.number for port in info.ports if not port.is_up and port.number not in off.get(card, ())]
        for card, info in cards.items()
    }
    bad = {card: numbers for card, numbers in down.items() if numbers}
    if bad and any(len(numbers) < len(cards[card].ports) for card, numbers in bad.items()):
        words = tuple(f"{card}: {number}" for card, numbers in bad.items() for number in numbers)
        return fail("network.ports-down", *(lines[card] for card in bad), fix=fix("network.link"), ports=words)
    if bad:  # a card of which no port works may be one that is not meant to be wired
        return ok("network.ports-unused", *(lines[card] for card in bad), cards=tuple(bad))
    return _blind(context, blind) if blind else ok("network.ports-up", count=len(cards))


CHECKS = (
    *card_addresses.CHECKS,
    Check(
        "network.hccn-tool",
        (),
        "vllm-ascend installation, verification",
        _tool,
        is_about_cards=True,
        level=LEVEL,
        required_for=NPU_FRAMEWORKS,
    ),
    Check("network.card-links", (), "alibaba/ROLL Ascend FAQ; " + _VERIFY, _links, is_about_cards=True, level=LEVEL),
    *flaps.CHECKS,
    Check("network.card-health", (), _VERIFY, _health, is_about_cards=True, level=LEVEL),
    Check("network.card-speeds", (), "hicann/driver hccn_tool, -speed", _speed, is_about_cards=True, level=LEVEL),
    Check("network.optical", (), "mind-cluster fault diagnosis, optical", _optical, is_about_cards=True, level=LEVEL),
    Check("network.vnic", (), "msprechecker (Ascend/msit); " + _VERIFY, _vnic, is_about_cards=True, level=LEVEL),
    Check("network.card-ping", (), _VERIFY, _ping, is_about_cards=True, level=LEVEL),
    Check("network.tls-certificate", (), "HCCN tool guide, -tls", _certificate, is_about_cards=True, level=LEVEL),
    Check("network.card-ports", (), "HCCN tool guide of 950, port state", _ports, is_about_cards=True, level=LEVEL),
    *rank_table.CHECKS,
)
