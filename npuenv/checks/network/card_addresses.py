"""The cards' addresses and TLS switches, in /etc/hccn.conf and, from level 2 on, as hccn_tool answers.

The file counts at the next start of the driver, the tool's answer now: each has to be right by itself. A card without
an entry has its default, which the file cannot tell; a machine whose cards have no address at all uses its cards
alone, without a network between nodes, and that is no fault.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.checks.base import Check, Context, Status, Verdict, fail, fix, ok, skip, unsure, warn
from npuenv.facts.base import Evidence, State

if TYPE_CHECKING:
    import ipaddress
    from collections.abc import Callable, Iterable

CONF = "/etc/hccn.conf"
_ENV_PREP = "hicann/hccl user guide, environment preparation; vllm-ascend multi-node verification list"
_LEAST_FOR_ODD = 3  # cards that have to agree before another one is called odd


@dataclass(frozen=True, slots=True)
class CardAddress:
    """A card's address as it was set, and where that was read."""

    ip: str
    netmask: str  # "" where none is set
    evidence: Evidence

    @property
    def network(self) -> ipaddress.IPv4Network | None:
        """Its subnet; None where address or netmask cannot be one."""
        return _network(self.ip, self.netmask)

    @property
    def is_usable(self) -> bool:
        """Whether a card can have it: one host's, not a whole network's, not one that never leaves a host."""
        return _is_usable(self.ip, self.netmask)

    @property
    def line(self) -> Evidence:
        return Evidence(self.evidence.command, f"{self.evidence.line} netmask {self.netmask or 'not set'}")


# Several checks ask the same of each card.
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


def in_file(context: Context) -> Addresses:
    """Card -> its address in /etc/hccn.conf."""
    conf = context.facts.hccn.conf.value
    return {
        card: CardAddress(keys["address"], keys.get("netmask", ""), Evidence(CONF, f"address_{card}={keys['address']}"))
        for card, keys in sorted((conf.by_device if conf else {}).items())
        if keys.get("address")
    }


def in_use(context: Context) -> Addresses:
    """Card -> the address that hccn_tool gives."""
    answers = (context.facts.hccn.addresses.value or {}).items()
    return {
        card: CardAddress(fact.value.ip, fact.value.netmask, fact.evidence[0])
        for card, fact in answers
        if fact.value is not None
    }


def addressed_cards(context: Context) -> set[int]:
    """The cards that have an address, in the file or in use."""
    return {*in_file(context), *in_use(context)}


def cards_here(context: Context) -> set[int]:
    """The physical numbers of the cards that this machine or container has."""
    nodes = context.facts.npu.nodes.value
    numbers = (re.fullmatch(r"/dev/davinci([0-9]+)", node.path) for node in nodes.cards) if nodes else ()
    return {int(match[1]) for match in numbers if match}


def has_address_fault(context: Context) -> bool:
    """Whether a check of this module reports an address, so that a ping that fails needs no other reason."""
    judged = (_set(context), _valid(context), _unique(context), _masks(context), _subnets(context))
    return any(verdict.status in (Status.FAIL, Status.WARN) for verdict in judged)


def _of_either(judge: Callable[[Context, Addresses], Verdict]) -> Callable[[Context], Verdict]:
    """A check of one set of addresses as a check of both: what is in use first, then the file."""

    @functools.wraps(judge)
    def judged(context: Context) -> Verdict:
        verdicts = [judge(context, found) for found in (in_use(context), in_file(context)) if found]
        wrong = next((item for item in verdicts if item.status in (Status.FAIL, Status.WARN)), None)
        return wrong or (verdicts[0] if verdicts else skip("network.address-none"))

    return judged


def _tls(context: Context) -> Verdict:
    """The switches, in the file and as the tool shows them: neither may differ between cards.

    The file counts at the next start of the driver, the tool's answer now. A device without an entry has its default,
    which the file cannot tell.
    """
    conf = context.facts.hccn.conf.value
    if conf is None:
        return skip("network.tls-no-file")
    filed = {device: keys.get("tls_enable") for device, keys in sorted(conf.by_device.items())}
    live = {card: fact for card, fact in (context.facts.hccn.tls.value or {}).items() if fact.value is not None}
    filed_lines = {
        card: (value, Evidence(CONF, f"tls_enable_{card}={value}"))
        for card, value in filed.items()
        if value is not None
    }
    live_lines = {card: (str(int(fact.value.is_on)), fact.evidence[0]) for card, fact in live.items() if fact.value}
    if not filed_lines:
        return skip("network.tls-no-entry")
    for said in (live_lines, filed_lines):
        on, off = ([card for card, (value, _) in said.items() if value == wanted] for wanted in ("1", "0"))
        if on and off:
            lines = tuple(said[card][1] for card in (*on, *off))
            return fail(
                "network.tls-mixed", *lines, fix=fix("network.tls", is_dangerous=True), on=tuple(on), off=tuple(off)
            )
    lines = tuple(line for _, line in {**filed_lines, **live_lines}.values())
    if any(value not in ("0", "1") for value, _ in filed_lines.values()):
        return unsure("network.tls-unreadable", *lines)
    silent = sorted({*(device for device, value in filed.items() if value is None), *_unnamed(context, filed)})
    if silent:
        return unsure("network.tls-some", *lines, devices=tuple(silent))
    is_on = next(iter({**filed_lines, **live_lines}.values()))[0] == "1"
    return ok("network.tls-on" if is_on else "network.tls-off", *lines[:1], count=len(filed))


def _unnamed(context: Context, named: Iterable[int]) -> set[int]:
    """The cards of this machine that the file has no line for. A container may see fewer cards than the file names."""
    return cards_here(context) - set(named)


def _conf(context: Context) -> Verdict:
    """Lines of the file that are none of its form; the driver passes over them."""
    conf = context.facts.hccn.conf.value
    if conf is None or not (conf.by_device or conf.unreadable_lines):
        return skip("network.conf-none")
    if conf.unreadable_lines:
        lines = (Evidence(CONF, line) for line in conf.unreadable_lines)
        cure = fix("network.conf", needs_root=True)
        return warn("network.conf-unreadable", *lines, fix=cure, lines=conf.unreadable_lines[:3])
    return ok("network.conf-ok", count=len(conf.by_device))


def _set(context: Context) -> Verdict:
    """The few cards that have no address although most others have one, in use or in the file."""
    cards = cards_here(context)
    count = 0
    for addresses, where in ((in_use(context), "hccn_tool -ip -g"), (in_file(context), CONF)):
        missing = sorted(cards - set(addresses) - _unread(context, where)) if addresses else []
        if missing and len(missing) < len(addresses):
            lines = [Evidence(where, f"no address for {card}") for card in missing]
            lines += [address.evidence for address in list(addresses.values())[:2]]
            cure = fix("network.address", needs_root=True)
            return warn("network.address-missing", *lines, fix=cure, cards=tuple(missing), count=len(addresses))
        count = count or len(addresses)
    return ok("network.address-set", count=count) if count else skip("network.address-none")


def _unread(context: Context, where: str) -> set[int]:
    """The cards whose address the tool could not tell, which is not the same as none."""
    if where == CONF:
        return set()
    answers = context.facts.hccn.addresses.value or {}
    return {card for card in cards_here(context) if card not in answers or answers[card].state is State.UNKNOWN}


def _same(context: Context) -> Verdict:
    """What the file gives and what the card has. The file is written to the cards when the driver starts, and is what
    other programs read; bonded ports have addresses of their own."""
    conf = context.facts.hccn.conf.value
    filed, live = in_file(context), in_use(context)
    bonded = {card for card, keys in (conf.by_device if conf else {}).items() if any("bond" in key for key in keys)}
    both = [card for card in filed if card in live and card not in bonded]
    if not both:
        return skip("network.address-one-side")
    other = [card for card in both if _differ(filed[card], live[card])]
    if not other:
        return ok("network.address-same", count=len(both))
    if has_address_fault(context):
        return skip("network.because-addresses")
    lines = [item for card in other for item in (filed[card].line, live[card].line)]
    words = tuple(f"{card}: {filed[card].ip} / {live[card].ip}" for card in other)
    return warn("network.address-differs", *lines, fix=fix("network.address-differs"), cards=words)


def _differ(filed: CardAddress, live: CardAddress) -> bool:
    is_other_mask = bool(filed.netmask and live.netmask and filed.netmask != live.netmask)
    return filed.ip != live.ip or is_other_mask


@_of_either
def _valid(_: Context, addresses: Addresses) -> Verdict:
    bad = {card: address for card, address in addresses.items() if not address.is_usable}
    if bad:
        lines = (address.line for address in bad.values())
        cure = fix("network.address", needs_root=True)
        texts = tuple(f"{card}: {address.ip} {address.netmask}".rstrip() for card, address in bad.items())
        return fail("network.address-invalid", *lines, fix=cure, addresses=texts)
    return ok("network.address-valid", count=len(addresses))


@_of_either
def _unique(context: Context, addresses: Addresses) -> Verdict:
    usable = {card: address for card, address in addresses.items() if address.is_usable}
    counts = Counter(address.ip for address in usable.values())
    twice = sorted(ip for ip, count in counts.items() if count > 1)
    interfaces = context.facts.network.interfaces.value or ()
    hosts = {ip: interface.name for interface in interfaces for ip in interface.addresses}
    shared = sorted(ip for ip in counts if ip in hosts)
    cure = fix("network.address", needs_root=True)
    if twice:
        cards = tuple(card for card, address in usable.items() if address.ip in twice)
        lines = (usable[card].evidence for card in cards)
        return fail("network.address-twice", *lines, fix=cure, ip=tuple(twice), cards=cards)
    if shared:
        lines = (address.evidence for address in usable.values() if address.ip in shared)
        return fail("network.address-of-host", *lines, fix=cure, ip=tuple(shared), interface=hosts[shared[0]])
    return ok("network.address-unique", count=len(usable))


@_of_either
def _masks(_: Context, addresses: Addresses) -> Verdict:
    """One netmask that differs from that of all other cards makes two cards see different neighbours."""
    masks = _masks_of(addresses)
    if len(masks) < 2:
        return skip("network.address-none")
    odd = _odd(masks)
    if odd:
        lines = (addresses[card].line for card in odd)
        common = Counter(masks.values()).most_common(1)[0][0]
        cure = fix("network.address", needs_root=True)
        return fail("network.netmask-differs", *lines, fix=cure, cards=tuple(odd), common=common)
    return ok("network.netmask-agrees", count=len(masks))


def _masks_of(addresses: Addresses) -> dict[int, str]:
    return {card: address.netmask for card, address in addresses.items() if address.netmask and address.is_usable}


@_of_either
def _subnets(context: Context, addresses: Addresses) -> Verdict:
    """Cards may lie in several subnets by design (four of two cards each is usual); one alone outside is a slip."""
    networks = {card: str(addresses[card].network) for card in _masks_of(addresses)}
    if len(networks) < 2:
        return skip("network.address-none")
    if _odd(_masks_of(addresses)):
        return skip("network.because-netmask")
    if _unique(context).status is Status.FAIL:
        return skip("network.because-twice")
    odd = _odd(networks)
    if odd:
        cure = fix("network.address", needs_root=True)
        lines = (addresses[card].line for card in odd)
        common = Counter(networks.values()).most_common(1)[0][0]
        return warn("network.subnet-odd", *lines, fix=cure, cards=tuple(odd), common=common)
    return ok("network.subnet-ok", count=len(set(networks.values())))


def _gateway(context: Context) -> Verdict:
    """A gateway has to be a neighbour: in the subnet of its card, and not the card itself."""
    conf, answers = context.facts.hccn.conf.value, context.facts.hccn.gateways.value or {}
    filed = {card: keys["gateway"] for card, keys in (conf.by_device if conf else {}).items() if keys.get("gateway")}
    live = {card: fact.value.ip for card, fact in answers.items() if fact.value is not None}
    if has_address_fault(context):
        return skip("network.because-addresses")
    count = 0
    for gateways, addresses in ((live, in_use(context)), (filed, in_file(context))):
        judged = {card: ip for card, ip in gateways.items() if card in addresses and addresses[card].is_usable}
        outside = sorted(card for card, ip in judged.items() if not _is_neighbour(ip, addresses[card]))
        count = count or len(judged)
        if outside:
            card = outside[0]
            source = addresses[card].evidence.command
            lines = [
                Evidence(source, f"gateway of {item}: {judged[item]}; {addresses[item].line.line}") for item in outside
            ]
            cure = fix("network.gateway", needs_root=True)
            network = str(addresses[card].network)
            return fail(
                "network.gateway-outside", *lines, fix=cure, cards=tuple(outside), gateway=judged[card], network=network
            )
    return ok("network.gateway-ok", count=count) if count else skip("network.gateway-none")


def _is_neighbour(gateway: str, address: CardAddress) -> bool:
    import ipaddress

    try:
        return gateway != address.ip and (address.network is None or ipaddress.IPv4Address(gateway) in address.network)
    except ValueError:
        return False


def _mtu(context: Context) -> Verdict:
    """The largest packet of the cards, where it is set for several of them."""
    conf = context.facts.hccn.conf.value
    set_to = {card: keys["mtu"] for card, keys in (conf.by_device if conf else {}).items() if keys.get("mtu")}
    if len(set_to) < 2:
        return skip("network.mtu-none")
    lines = tuple(Evidence(CONF, f"mtu_{card}={value}") for card, value in sorted(set_to.items()))
    if len(set(set_to.values())) > 1:
        cure = fix("network.mtu", needs_root=True)
        return warn("network.mtu-differs", *lines, fix=cure, values=tuple(sorted(set(set_to.values()))))
    return ok("network.mtu-agrees", *lines[:1], count=len(set_to))


def _odd(values: dict[int, str]) -> list[int]:
    """The cards that do not have what all others have, where those others are enough to be the rule."""
    counts = Counter(values.values()).most_common()
    if len(counts) < 2 or counts[0][1] < _LEAST_FOR_ODD or any(count > 1 for _, count in counts[1:]) or len(counts) > 2:
        return []
    return [card for card, value in values.items() if value != counts[0][0]]


CHECKS = (
    Check(
        "network.tls-agrees",
        ("hccn.conf",),
        "hicann/hccl fault diagnosis, EI0016 and EI0006",
        _tls,
        is_about_cards=True,
    ),
    Check("network.hccn-conf", (), "HCCN tool guide, /etc/hccn.conf", _conf, is_about_cards=True),
    Check("network.card-addresses", (), _ENV_PREP, _set, is_about_cards=True),
    Check("network.addresses-agree", (), _ENV_PREP, _same, is_about_cards=True, level=2),
    Check("network.addresses-valid", (), _ENV_PREP, _valid, is_about_cards=True),
    Check("network.addresses-unique", (), "hicann/hccl fault diagnosis, EI0006", _unique, is_about_cards=True),
    Check("network.netmasks-agree", (), "hicann/hccl fault diagnosis, EI0006", _masks, is_about_cards=True),
    Check("network.card-subnets", (), "hicann/hccl fault diagnosis, EI0006", _subnets, is_about_cards=True),
    Check("network.card-gateways", (), _ENV_PREP, _gateway, is_about_cards=True),
    Check("network.card-mtu", (), "HCCN tool guide, /etc/hccn.conf", _mtu, is_about_cards=True),
)
