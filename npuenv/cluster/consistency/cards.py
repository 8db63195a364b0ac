"""What a host's facts say about its cards and their network, card by card. Like `readers`, for `aspects.toml`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npuenv.cluster.consistency.readers import has_stand_in, listed, many, one
from npuenv.cluster.consistency.values import Place, Told, Value, divide
from npuenv.core.fact import Evidence, State
from npuenv.facts.collector import was_asked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.core.fact import Fact
    from npuenv.facts.collect import Facts

CONF = "/etc/hccn.conf"
DEFAULT = ":default"
# Keys of the file that belong to one card alone, or that have a row of their own.
_OWN_KEYS = frozenset({"address", "netmask", "gateway", "netdetect", "mac_addr", "tls_enable", "mtu", "ipv6_address"})


def numbers(facts: Facts) -> list[int]:
    """The physical numbers of the cards that this machine or container has."""
    nodes = facts.npu.nodes.value
    found = (re.fullmatch(r"/dev/davinci([0-9]+)", node.path) for node in nodes.cards) if nodes else ()
    return sorted(int(match[1]) for match in found if match)


def count(facts: Facts) -> Told:
    """How many chips npu-smi lists, or where it does not answer, how many device nodes there are."""
    if facts.npu.smi.value is not None:
        return one(facts.npu.smi, lambda table: str(len(table.cards)))
    return devices(facts)


def devices(facts: Facts) -> Told:
    """How many device nodes of cards there are."""
    return one(facts.npu.nodes, lambda nodes: str(len(nodes.cards)), absent="0")


def kind(facts: Facts) -> Told:
    """What each card is called by npu-smi."""
    table = facts.npu.smi
    if table.value is None:
        return one(table, lambda _: None, absent=None)
    rows = enumerate(table.value.cards)
    return Told(
        {Place("", row): Value(card.name, Evidence("npu-smi info", card.line)) for row, card in rows if card.name}
    )


def soc(facts: Facts) -> Told:
    """The exact chip, from the level that asks each card."""
    return _boards(facts, lambda board: f"{board.chip_name or ''} {board.npu_name or ''}".strip())


def card_firmware(facts: Facts) -> Told:
    return _boards(facts, lambda board: board.firmware or "")


def hbm(facts: Facts) -> Told:
    """The memory of each card in MiB."""
    table = facts.npu.smi
    if table.value is None:
        return one(table, lambda _: None, absent=None)
    return Told(
        {
            Place("", row): Value(f"{card.hbm_total_mib} MiB", Evidence("npu-smi info", card.line))
            for row, card in enumerate(table.value.cards)
            if card.hbm_total_mib
        }
    )


def _boards(facts: Facts, show: Callable[[Any], str]) -> Told:
    fact = facts.npu.chips
    told = one(fact, lambda _: "", absent=None)
    if fact.value is None:
        return told
    rows = enumerate(fact.value)
    line = fact.evidence[0] if fact.evidence else Evidence("npu-smi info -t board", "")
    return Told({Place("", row): Value(show(board), line) for row, board in rows if show(board)})


def tls(facts: Facts) -> Told:
    """The switch of each card: as the tool shows it, else as the file has it. A card without either is not told."""
    words = {True: ":tls-on", False: ":tls-off"}
    live = _live(facts.hccn.tls, lambda found: words[bool(found.is_on)])
    filed = _filed(facts, "tls_enable", {"1": words[True], "0": words[False]})
    values = {**filed, **live}
    unsaid = [card for card in numbers(facts) if Place("", card) not in values]
    conf = facts.hccn.conf
    why = "" if conf.value is not None or not conf.evidence else conf.evidence[0].line
    blind: dict[int | None, Evidence] = {card: Evidence(CONF, why or f"no tls_enable_{card}") for card in unsaid}
    return Told(values, blind)


def mtu(facts: Facts) -> Told:
    """The largest packet of each card: as the tool shows it, else as the file sets it, else the driver's default."""
    found = {**_filed(facts, "mtu", None), **_live(facts.hccn.mtus, str)}
    conf = facts.hccn.conf
    if not found and conf.state is State.UNKNOWN:
        return one(conf, lambda _: None)
    if conf.value is None or facts.hccn.mtus.is_known:  # a card that says nothing has no default to be named for it
        return Told(found)
    rest = {
        Place("", card): Value(DEFAULT, Evidence(CONF, f"no mtu_{card}"))
        for card in numbers(facts)
        if Place("", card) not in found
    }
    return Told({**found, **rest})


def settings(facts: Facts) -> Told:
    """The other keys of the file: each is to be the same on the cards of one number, on all nodes."""
    conf = facts.hccn.conf
    if conf.value is None:
        return one(conf, lambda _: None, absent=None)
    found = {
        f"{key}_{card}": text
        for card, keys in sorted(conf.value.by_device.items())
        for key, text in sorted(keys.items())
        if key not in _OWN_KEYS and not key.startswith("bond")
    }
    return listed(found, CONF, "{}={}")


def speed(facts: Facts) -> Told:
    """What each link runs at, of those that are up and say it."""
    down = {card for card, fact in (facts.hccn.links.value or {}).items() if fact.value == "DOWN"}
    found = _live(facts.hccn.speeds, lambda speed: f"{speed.mbps // 1000} Gb/s" if speed.mbps else "")
    kept = {place: value for place, value in found.items() if value.text and place.card not in down}
    return Told(kept, _unread(facts.hccn.speeds), _level(facts.hccn.speeds))


def pods(facts: Facts) -> Told:
    """The super pod that the cards say they are in."""

    def show(found: Any) -> dict[str, str]:
        ids = sorted({item.pod for item in found if item.pod is not None})
        sizes = sorted({item.size for item in found if item.size is not None})
        return {"id": ",".join(map(str, ids)), "size": ",".join(map(str, sizes))}

    return many(facts.npu.spods, show)


def _live(fact: Fact[Any], show: Callable[[Any], str]) -> dict[Place, Value]:
    """What hccn_tool says of each card that it says something of."""
    answers = fact.value or {}
    return {
        Place("", card): Value(show(item.value), item.evidence[0])
        for card, item in answers.items()
        if item.value is not None
    }


def _unread(fact: Fact[Any]) -> dict[int | None, Evidence]:
    if fact.state is State.UNKNOWN:
        return {None: fact.evidence[0] if fact.evidence else Evidence("", "")}
    return {card: item.evidence[0] for card, item in (fact.value or {}).items() if item.state is State.UNKNOWN}


def _level(fact: Fact[Any]) -> str:
    return "" if was_asked(fact) else fact.evidence[0].line.rpartition(" ")[2]


def _filed(facts: Facts, key: str, words: dict[str, str] | None) -> dict[Place, Value]:
    """What the file sets for the cards that are here; a value that has no word is left out."""
    conf = facts.hccn.conf.value
    here = set(numbers(facts))
    found = {}
    for card, keys in sorted((conf.by_device if conf else {}).items()):
        text = keys.get(key, "")
        shown = text if words is None else words.get(text, "")
        if shown and (card in here or not here):
            found[Place("", card)] = Value(shown, Evidence(CONF, f"{key}_{card}={text}"))
    return found


def addresses(facts: Facts) -> dict[int, tuple[str, str, Evidence]]:
    """Card -> address, netmask ("" where none is set) and the line that says it: the tool's, else the file's."""
    conf = facts.hccn.conf.value
    found = {
        card: (keys["address"], keys.get("netmask", ""), Evidence(CONF, f"address_{card}={keys['address']}"))
        for card, keys in sorted((conf.by_device if conf else {}).items())
        if keys.get("address")
    }
    for card, item in (facts.hccn.addresses.value or {}).items():
        if item.value is not None:
            found[card] = (item.value.ip, item.value.netmask, item.evidence[0])
        elif item.state is State.ABSENT:  # the card has none, whatever the file is going to give it
            found.pop(card, None)
    return found


def addressed(facts: Facts) -> Told:
    """Whether each card has an address; on a machine that has them for none of its cards, none of them."""
    lines: dict[int | None, Evidence] = {card: line for card, (_, _, line) in addresses(facts).items()}
    return _have(facts, facts.hccn.addresses, "address", lines)


def gatewayed(facts: Facts) -> Told:
    """Whether each card has a gateway."""
    lines = {place.card: value.evidence for place, value in _gateways(facts).items()}
    return _have(facts, facts.hccn.gateways, "gateway", lines)


def _have(facts: Facts, live: Fact[Any], key: str, lines: Mapping[int | None, Evidence]) -> Told:
    """Whether each card has what `key` means in the file; `lines` say it of those that have."""
    conf, unread = facts.hccn.conf, _unread(live) if was_asked(live) else {}
    if None in unread:
        unread = dict.fromkeys(numbers(facts), unread[None])
    if conf.value is None and live.value is None and not unread:
        return Told() if conf.state is State.ABSENT else one(conf, lambda _: None)
    values = {
        Place("", card): Value(":set", lines[card])
        if card in lines
        else Value(":not-set", Evidence(CONF, f"no {key}_{card}"))
        for card in numbers(facts)
        if card in lines or card not in unread
    }
    return Told(values, {card: line for card, line in unread.items() if card not in lines})


def netmasks(facts: Facts) -> Told:
    """The netmask of each card that has one."""
    found = addresses(facts).items()
    return Told(
        {
            Place("", card): Value(mask, Evidence(line.command, f"{line.line} netmask {mask}"))
            for card, (_, mask, line) in found
            if mask
        }
    )


def subnets(facts: Facts) -> Told:
    """The subnet of each card by its number: cards of one number often share one on all nodes."""
    import ipaddress

    values = {}
    for card, (ip, mask, line) in addresses(facts).items():
        try:
            network = ipaddress.ip_network(f"{ip}/{mask or 32}", strict=False)
        except ValueError:  # that node's own doctor reports it
            continue
        if mask and not has_stand_in(ip):
            values[Place(f"NPU {card}")] = Value(str(network), Evidence(line.command, f"{line.line} netmask {mask}"))
    return Told(values)


def gateways(facts: Facts) -> Told:
    """The gateway of each card by its number."""
    found = _gateways(facts).items()
    return Told({Place(f"NPU {place.card}"): value for place, value in found if not has_stand_in(value.text)})


def _gateways(facts: Facts) -> dict[Place, Value]:
    live = facts.hccn.gateways.value or {}
    bare = {card for card, item in live.items() if item.state is State.ABSENT}
    filed = {place: value for place, value in _filed(facts, "gateway", None).items() if place.card not in bare}
    return {**filed, **_live(facts.hccn.gateways, lambda item: str(item.ip))}


def is_routed(nodes: Mapping[str, Facts]) -> bool:
    """Whether the cards' subnets differ as if by plan: no number has one that is common, and most cards have a gateway.

    One card in another subnet than its fellows is none, nor is a subnet that no packet can leave. A card that lacks its
    gateway among others that have one is a card to be named, not another plan.
    """
    told = {node: subnets(facts) for node, facts in nodes.items()}
    if any(split.is_united or split.common for split in divide(told)):
        return False
    places = [place in gateways(facts).values for node, facts in nodes.items() for place in told[node].values]
    return 2 * sum(places) > len(places)


def modules(facts: Facts) -> Told:
    """Whether each link's optical module is there."""
    words = {True: ":plugged", False: ":unplugged"}
    found = _live(facts.hccn.optical, lambda item: words[bool(item.is_present)])
    return Told(found, _unread(facts.hccn.optical), _level(facts.hccn.optical))


def vnics(facts: Facts) -> Told:
    """The interface of each chip for the traffic inside a super pod."""
    words = {True: "UP", False: "DOWN"}
    found = _live(facts.hccn.vnics, lambda vnic: words[bool(vnic.is_up)])
    return Told(found, _unread(facts.hccn.vnics), _level(facts.hccn.vnics))


def watch(facts: Facts) -> Told:
    """What each card says of the address that it was given to watch, of those whose link is up."""
    down = {card for card, fact in (facts.hccn.links.value or {}).items() if fact.value == "DOWN"}
    words = {"init": ":not-set", "detect ip set": ":not-set"}
    found = _live(facts.hccn.net_health, lambda state: words.get(state, str(state)))
    kept = {place: value for place, value in found.items() if place.card not in down}
    return Told(kept, _unread(facts.hccn.net_health), _level(facts.hccn.net_health))
