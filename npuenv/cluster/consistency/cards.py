"""Readers for `rules.toml` about the cards of one node and their network, and the check of the number of cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.checks import Finding, Status
from npuenv.checks.network.answers import Addresses, in_file, in_use
from npuenv.cluster.consistency.findings import NodeValues, Value, ValueKey, group_values
from npuenv.cluster.consistency.readers import has_stand_in, listed, many_of, one, one_of
from npuenv.core.fact import Evidence, State
from npuenv.core.messages import Message
from npuenv.facts.collector import was_asked
from npuenv.facts.hccn.tool import HCCN_CONF
from npuenv.facts.npu.driver import VARIABLE, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from npuenv.cluster.inventory import Node
    from npuenv.core.fact import Fact
    from npuenv.facts.collect import Facts


DEFAULT = ":default"
# Keys of the file that differ by card, or have a row of their own.
_OWN_KEYS = frozenset({"address", "netmask", "gateway", "netdetect", "mac_addr", "tls_enable", "mtu", "ipv6_address"})

_INVENTORY = "the inventory"


def numbers(facts: Facts) -> list[int]:
    """The physical numbers of the cards of this machine or container."""
    nodes = facts.npu.nodes.value
    return nodes.numbers if nodes else []


def count(facts: Facts) -> NodeValues:
    """The number of chips that npu-smi lists; without its output the number of device nodes."""
    if facts.npu.smi.value is not None:
        return one(facts.npu.smi, lambda table: str(len(table.cards)))
    return devices(facts)


# The number of device nodes of cards.
devices = one_of("npu.nodes", lambda nodes: str(len(nodes.cards)), absent="0")


def kind(facts: Facts) -> NodeValues:
    """The name of each card in npu-smi."""
    return _rows(facts.npu.smi, lambda table: table.cards, lambda card: card.name, "npu-smi info")


def hbm(facts: Facts) -> NodeValues:
    """The memory of each card in MiB."""

    def show(card: Any) -> str:
        return f"{card.hbm_total_mib} MiB" if card.hbm_total_mib else ""

    return _rows(facts.npu.smi, lambda table: table.cards, show, "npu-smi info")


def soc(facts: Facts) -> NodeValues:
    """The exact chip of each card."""
    return _rows(facts.npu.chips, list, lambda board: f"{board.chip_name or ''} {board.npu_name or ''}".strip())


def card_firmware(facts: Facts) -> NodeValues:
    return _rows(facts.npu.chips, list, lambda board: board.firmware)


def _rows(
    fact: Fact[Any], rows_of: Callable[[Any], Iterable[Any]], show: Callable[[Any], str | None], command: str = ""
) -> NodeValues:
    """The value of each row of a table that has one. `command`: the evidence is the row's own line."""
    if fact.value is None:
        return one(fact, lambda _: None, absent=None)
    line = next(iter(fact.evidence), Evidence("npu-smi info -t board", ""))
    shown = ((at, show(row) or "", row) for at, row in enumerate(rows_of(fact.value)))
    found = ((at, text, Evidence(command, row.line) if command else line) for at, text, row in shown if text)
    return NodeValues(_by_card(found))


def _by_card(found: Iterable[tuple[int, str, Evidence]]) -> dict[ValueKey, Value]:
    """The value of each card, with the line that says it."""
    return {ValueKey("", card): Value(text, line) for card, text, line in found}


def tls(facts: Facts) -> NodeValues:
    """The TLS switch of each card, from hccn_tool, else from the file; without either it is unknown."""
    words = {True: ":tls-on", False: ":tls-off"}
    live = _live(facts.hccn.tls, lambda found: words[bool(found.is_on)])
    filed = _filed(facts, "tls_enable", {"1": words[True], "0": words[False]})
    values = {**filed, **live}
    missing = [card for card in numbers(facts) if ValueKey("", card) not in values]
    conf = facts.hccn.conf
    why = "" if conf.value is not None or not conf.evidence else conf.evidence[0].line
    unknown: dict[int | None, Evidence] = {
        card: Evidence(HCCN_CONF, why or f"no tls_enable_{card}") for card in missing
    }
    return NodeValues(values, unknown)


def mtu(facts: Facts) -> NodeValues:
    """The MTU of each card, from hccn_tool, else from the file, else the driver's default."""
    found = {**_filed(facts, "mtu", None), **_live(facts.hccn.mtus, str)}
    conf = facts.hccn.conf
    if not found and conf.state is State.UNKNOWN:
        return one(conf, lambda _: None)
    if conf.value is None or facts.hccn.mtus.is_known:  # the tool shows defaults too
        return NodeValues(found)
    rest = (card for card in numbers(facts) if ValueKey("", card) not in found)
    usual = _by_card((card, DEFAULT, Evidence(HCCN_CONF, f"no mtu_{card}")) for card in rest)
    return NodeValues({**found, **usual})


def settings(facts: Facts) -> NodeValues:
    """The other keys of the file, by card number."""
    conf = facts.hccn.conf
    if conf.value is None:
        return one(conf, lambda _: None, absent=None)
    rows = ((card, *row) for card, keys in sorted(conf.value.by_device.items()) for row in sorted(keys.items()))
    others = ((card, key, text) for card, key, text in rows if key not in _OWN_KEYS and not key.startswith("bond"))
    return listed({f"{key}_{card}": text for card, key, text in others}, HCCN_CONF, "{}={}")


def speed(facts: Facts) -> NodeValues:
    """The speed of each link that is up and states it."""
    return _asked(facts.hccn.speeds, lambda found: f"{found.mbps // 1000} Gb/s" if found.mbps else "", _down(facts))


def _pods(found: Any) -> dict[str, str]:
    ids = sorted({item.pod for item in found if item.pod is not None})
    sizes = sorted({item.size for item in found if item.size is not None})
    return {"id": ",".join(map(str, ids)), "size": ",".join(map(str, sizes))}


pods = many_of("npu.spods", _pods)  # the super pod of the cards


def _asked(fact: Fact[Any], show: Callable[[Any], str], left_out: Collection[int] = ()) -> NodeValues:
    """The value of each card from hccn_tool for which `show` has a text."""
    found = {key: value for key, value in _live(fact, show).items() if value.text and key.card not in left_out}
    return NodeValues(found, _unread(fact), fact.needs_level)


def _down(facts: Facts) -> set[int]:
    return {card for card, fact in (facts.hccn.links.value or {}).items() if fact.value == "DOWN"}


def _live(fact: Fact[Any], show: Callable[[Any], str]) -> dict[ValueKey, Value]:
    """The value of each card for which hccn_tool has one."""
    known = ((card, item) for card, item in (fact.value or {}).items() if item.value is not None)
    return _by_card((card, show(item.value), item.evidence[0]) for card, item in known)


def _unread(fact: Fact[Any]) -> dict[int | None, Evidence]:
    if fact.state is State.UNKNOWN:
        return {None: fact.evidence[0] if fact.evidence else Evidence("", "")}
    return {card: item.evidence[0] for card, item in (fact.value or {}).items() if item.state is State.UNKNOWN}


def _filed(facts: Facts, key: str, words: dict[str, str] | None) -> dict[ValueKey, Value]:
    """The values in the file for the cards of this machine. `words` translates them; others are left out."""
    conf = facts.hccn.conf.value
    present = set(numbers(facts))
    found = {}
    for card, keys in sorted((conf.by_device if conf else {}).items()):
        text = keys.get(key, "")
        shown = text if words is None else words.get(text, "")
        if shown and (card in present or not present):
            found[ValueKey("", card)] = Value(shown, Evidence(HCCN_CONF, f"{key}_{card}={text}"))
    return found


def addresses(facts: Facts) -> Addresses:
    """Card -> its address, from hccn_tool, else from the file."""
    absent = {card for card, item in (facts.hccn.addresses.value or {}).items() if item.state is State.ABSENT}
    filed = {card: found for card, found in in_file(facts).items() if card not in absent}
    return filed | in_use(facts)


def addressed(facts: Facts) -> NodeValues:
    """Whether each card has an address."""
    lines: dict[int | None, Evidence] = {card: found.evidence for card, found in addresses(facts).items()}
    return _have(facts, facts.hccn.addresses, "address", lines)


def gatewayed(facts: Facts) -> NodeValues:
    """Whether each card has a gateway."""
    lines = {key.card: value.evidence for key, value in _gateways(facts).items()}
    return _have(facts, facts.hccn.gateways, "gateway", lines)


def _have(facts: Facts, live: Fact[Any], key: str, lines: Mapping[int | None, Evidence]) -> NodeValues:
    """Whether each card has a value of `key`; `lines` are those of the cards that have one."""
    conf, unread = facts.hccn.conf, _unread(live) if was_asked(live) else {}
    if None in unread:
        unread = dict.fromkeys(numbers(facts), unread[None])
    if conf.value is None and live.value is None and not unread:
        return NodeValues() if conf.state is State.ABSENT else one(conf, lambda _: None)
    values = {
        ValueKey("", card): Value(":set", lines[card])
        if card in lines
        else Value(":not-set", Evidence(HCCN_CONF, f"no {key}_{card}"))
        for card in numbers(facts)
        if card in lines or card not in unread
    }
    return NodeValues(values, {card: line for card, line in unread.items() if card not in lines})


def netmasks(facts: Facts) -> NodeValues:
    """The netmask of each card that has one."""
    found = addresses(facts).items()
    return NodeValues(_by_card((card, item.netmask, item.line) for card, item in found if item.netmask))


def subnets(facts: Facts) -> NodeValues:
    """The subnet of each card, by card number. An address that none follows from is reported by the node's doctor."""
    found = ((card, item) for card, item in addresses(facts).items() if item.netmask and not has_stand_in(item.ip))
    known = ((card, item) for card, item in found if item.network is not None)
    return NodeValues({ValueKey(f"NPU {card}"): Value(str(item.network), item.line) for card, item in known})


def gateways(facts: Facts) -> NodeValues:
    """The gateway of each card, by card number."""
    found = _gateways(facts).items()
    return NodeValues({ValueKey(f"NPU {key.card}"): value for key, value in found if not has_stand_in(value.text)})


def _gateways(facts: Facts) -> dict[ValueKey, Value]:
    live = facts.hccn.gateways.value or {}
    bare = {card for card, item in live.items() if item.state is State.ABSENT}
    filed = {key: value for key, value in _filed(facts, "gateway", None).items() if key.card not in bare}
    return {**filed, **_live(facts.hccn.gateways, lambda item: str(item.ip))}


def is_routed(nodes: Mapping[str, Facts]) -> bool:
    """Whether the cards' subnets differ by design: no card number has a majority, and most cards have a gateway."""
    by_node = {node: subnets(facts) for node, facts in nodes.items()}
    if any(partition.is_unanimous or partition.majority for partition in group_values(by_node)):
        return False
    has_gateway = [key in gateways(facts).values for node, facts in nodes.items() for key in by_node[node].values]
    return 2 * sum(has_gateway) > len(has_gateway)


def modules(facts: Facts) -> NodeValues:
    """Whether each link has its optical module."""
    return _asked(facts.hccn.optical, lambda item: ":plugged" if item.is_present else ":unplugged")


def vnics(facts: Facts) -> NodeValues:
    """The state of each chip's interface inside a super pod."""
    return _asked(facts.hccn.vnics, lambda vnic: "UP" if vnic.is_up else "DOWN")


def watch(facts: Facts) -> NodeValues:
    """The result of each card's net health check, of those whose link is up."""
    words = {"init": ":not-set", "detect ip set": ":not-set"}
    return _asked(facts.hccn.net_health, lambda state: words.get(state, str(state)), _down(facts))


def check_card_count(node: Node, facts: Facts, source: str) -> Finding | None:
    """The number of cards compared with the inventory's `cards=`; None without that setting."""
    if node.cards is None:
        return None
    table = facts.npu.smi
    found = len(table.value.cards) if table.value else len(numbers(facts))
    environment = facts.environment.value or {}
    num_visible = visible(environment, found)
    if found and num_visible != found:
        line = Evidence("environment", f"{VARIABLE}={environment[VARIABLE]}")
        return _of_session(node, source, found, num_visible, line)
    args = {"found": found, "expected": node.cards, "source": source}
    if table.state is State.UNKNOWN and not found:
        status, says = Status.UNKNOWN, "cards-unknown"
    elif found == node.cards:
        status, says = Status.OK, "cards-as-expected"
    else:
        status, says = Status.FAIL if found < node.cards else Status.WARN, "cards-other"
    return Finding("cluster.cards", status, Message(f"cluster.{says}", args), table.evidence[:1], _INVENTORY, None)


def _of_session(node: Node, source: str, found: int, num_visible: int | None, line: Evidence) -> Finding:
    """The finding if the session hides cards of the node; `num_visible` None: unknown."""
    if num_visible is None:
        status, word = Status.UNKNOWN, "unread"
    else:
        status, word = (Status.OK, "as-expected") if num_visible == node.cards else (Status.FAIL, "other")
    value = line.line.partition("=")[2]
    args = {"found": found, "seen": num_visible, "expected": node.cards, "source": source, "value": value}
    return Finding("cluster.cards", status, Message(f"cluster.cards-visible-{word}", args), (line,), _INVENTORY, None)
