"""Checks of the cards' addresses and TLS switches: in /etc/hccn.conf and, from level 2 on, as hccn_tool reports them;
of a launch's rank table.

The file applies at the next start of the driver, the tool shows the present state: both have to be correct. A card
without an entry has its default, which is not in the file. A machine whose cards have no address at all uses them
without a network between nodes, which is not an error.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING

from npuenv.checks.base import CheckResult, Context, card_check, fail, fix_for, given, ok, skip, unknown, warn, worst
from npuenv.checks.network.answers import (
    Addresses,
    about,
    answers,
    cards_here,
    conf_values,
    in_file,
    in_use,
    stranded_cards,
    tool_failure,
    unread_cards,
)
from npuenv.core.fact import Evidence, State
from npuenv.core.finding import Fix, Status
from npuenv.facts.hccn.tool import HCCN_CONF

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.checks.network.answers import CardAddress
    from npuenv.facts.hccn.tool import HccnConf, RankTable, Server

_ENV_PREP = "hicann/hccl user guide, environment preparation; vllm-ascend multi-node verification list"
_SET_ADDRESS = fix_for("network.address", needs_root=True)
_LEAST_FOR_ODD = 3  # minimum number of cards that have to agree before another one counts as an outlier
_DOCUMENT = "hicann/hccl user guide, rank table; fault diagnosis, EI0004 and EI0014"


def has_address_fault(context: Context) -> bool:
    """Whether a check of this module reports an address, which then explains a failed ping."""
    results = (_set(context), _valid(context), _unique(context), _masks(context), _subnets(context))
    return any(verdict.fix is not None for verdict in results)


def _of_either(judge: Callable[[Context, Addresses], CheckResult]) -> Callable[[Context], CheckResult]:
    """The combined result of a check for the addresses in use and in the file."""

    @functools.wraps(judge)
    def check_both(context: Context) -> CheckResult:
        verdicts = [judge(context, found) for found in (in_use(context.facts), in_file(context.facts)) if found]
        well = verdicts[0] if verdicts else skip("network.address-none")
        outcomes = [verdict for verdict in verdicts if verdict.status is not Status.SKIP]
        return worst((*outcomes, _unread(context, "addresses"), _without_file(context)), otherwise=well)

    return check_both


def _unread(context: Context, *names: str) -> CheckResult | None:
    """Unknown for the cards without a readable answer of hccn_tool."""
    if tool_failure(context):
        return None  # the check of the tool reports it, and the file can still be checked
    found = [each for each in (answers(context, name) for name in names) if each]
    lines = {card: line for each in reversed(found) for card, line in each.unread.items()}
    return unread_cards(context, dict(sorted(lines.items())), of=found[0].values if found else {})


def _without_file(context: Context) -> CheckResult | None:
    """The file exists but cannot be read: reported by the check of TLS, which needs it."""
    return skip("network.because-conf") if context.facts.hccn.conf.state is State.UNKNOWN else None


@given(lambda context: context.facts.hccn.conf.value, "network.tls-no-file")
def _tls(context: Context, conf: HccnConf) -> CheckResult:
    """The TLS switches, in the file and from the tool: neither may differ between cards."""
    filed = {card: keys["tls_enable"] for card, keys in sorted(conf.by_device.items()) if "tls_enable" in keys}
    if not filed:
        return skip("network.tls-no-entry")
    found = answers(context, "tls")
    lines = {card: Evidence(HCCN_CONF, f"tls_enable_{card}={value}") for card, value in filed.items()}
    outliers = {card: lines[card] for card, value in filed.items() if value not in ("0", "1")}
    silent = sorted({*conf.by_device, *cards_here(context)} - filed.keys())
    outcomes = [_mixed(filed, lines), _unread(context, "tls")]
    if found:
        outcomes.insert(0, _mixed({card: str(int(state.is_on)) for card, state in found.values.items()}, found.lines))
    if outliers:
        outcomes.append(unknown("network.tls-unreadable", *outliers.values(), devices=tuple(outliers)))
    if silent:
        outcomes.append(unknown("network.tls-some", *lines.values(), devices=tuple(silent)))
    is_on = "1" in filed.values()
    well = ok("network.tls-on" if is_on else "network.tls-off", *list(lines.values())[:1], count=len(filed))
    return worst(outcomes, otherwise=well)


def _mixed(switches: Mapping[int, str], lines: Mapping[int, Evidence]) -> CheckResult | None:
    on, off = (tuple(card for card, value in switches.items() if value == wanted) for wanted in ("1", "0"))
    if not (on and off):
        return None
    fix = fix_for("network.tls", is_dangerous=True)
    return fail("network.tls-mixed", *(lines[card] for card in (*on, *off)), fix=fix, on=on, off=off)


def _conf(context: Context) -> CheckResult:
    """Malformed lines of the file; the driver ignores them."""
    conf = context.facts.hccn.conf.value
    if conf is None or not (conf.by_device or conf.unreadable_lines):
        return _without_file(context) or skip("network.conf-none")
    if conf.unreadable_lines:
        lines = (Evidence(HCCN_CONF, line) for line in conf.unreadable_lines)
        fix = fix_for("network.conf", needs_root=True)
        return warn("network.conf-unreadable", *lines, fix=fix, lines=conf.unreadable_lines[:3])
    return ok("network.conf-ok", count=len(conf.by_device))


def _set(context: Context) -> CheckResult:
    """The few cards without an address although most others have one, in use or in the file."""
    outcomes = [_unread(context, "addresses"), _without_file(context)]
    counts = []
    for addresses, blind, where in (
        (in_use(context.facts), _blind_in_use(context), "hccn_tool -ip -g"),
        (in_file(context.facts), _blind_in_file(context), HCCN_CONF),
    ):
        having = {card: f"address_{card}={address.ip}" for card, address in addresses.items()}
        outcomes.append(_lacking(context, "network.address-missing", _SET_ADDRESS, where, having, blind))
        counts += [len(addresses)] if addresses else []
    well = ok("network.address-set", count=counts[0]) if counts else skip("network.address-none")
    return worst(outcomes, otherwise=well)


def _lacking(
    context: Context, name: str, fix: Fix, where: str, having: Mapping[int, str], blind: set[int]
) -> CheckResult | None:
    """The few cards that lack a value that most others have."""
    missing = tuple(sorted(cards_here(context) - set(having) - blind))
    if not missing or len(missing) >= len(having):
        return None
    shown = [*(f"none for card {card}" for card in missing), *list(having.values())[:2]]
    return warn(name, *(Evidence(where, text) for text in shown), fix=fix, cards=missing, count=len(having))


def _blind_in_use(context: Context, name: str = "addresses") -> set[int]:
    """The cards without a readable value, which is not the same as no value."""
    found = answers(context, name)
    values = getattr(context.facts.hccn, name).value or {}
    return {*(found.unread if found else ()), *(cards_here(context) - values.keys())}


def _blind_in_file(context: Context) -> set[int]:
    """A malformed line of the file may be about any card."""
    conf = context.facts.hccn.conf.value
    return cards_here(context) if conf is not None and conf.unreadable_lines else set()


def _same(context: Context) -> CheckResult:
    """The file against the present addresses. The driver writes the file to the cards at its start, and other programs
    read it; bonded ports have addresses of their own.
    """
    conf = context.facts.hccn.conf.value
    filed, live = in_file(context.facts), in_use(context.facts)
    bonded = {card for card, keys in (conf.by_device if conf else {}).items() if any("bond" in key for key in keys)}
    both = [card for card in filed if card in live and card not in bonded]
    blind_ones = _unread(context, "addresses") if filed else None
    other = [card for card in both if _differ(filed[card], live[card])]
    bad = None
    if other and has_address_fault(context):
        bad = skip("network.because-addresses")
    elif other:
        lines = [item for card in other for item in (filed[card].line, live[card].line)]
        words = tuple(f"{card}: {filed[card].ip} / {live[card].ip}" for card in other)
        bad = warn("network.address-differs", *lines, fix="network.address-differs", cards=words)
    well = ok("network.address-same", count=len(both)) if both else skip("network.address-one-side")
    return worst((bad, blind_ones, _without_file(context)), otherwise=well)


def _differ(filed: CardAddress, live: CardAddress) -> bool:
    is_other_mask = bool(filed.netmask and live.netmask and filed.netmask != live.netmask)
    return filed.ip != live.ip or is_other_mask


@_of_either
def _valid(_: Context, addresses: Addresses) -> CheckResult:
    bad = {card: address for card, address in addresses.items() if not address.is_usable}
    if bad:
        lines = (address.line for address in bad.values())
        texts = tuple(f"{card}: {address.ip} {address.netmask}".rstrip() for card, address in bad.items())
        return fail("network.address-invalid", *lines, fix=_SET_ADDRESS, addresses=texts)
    return ok("network.address-valid", count=len(addresses))


@_of_either
def _unique(context: Context, addresses: Addresses) -> CheckResult:
    usable = {card: address for card, address in addresses.items() if address.is_usable}
    counts = Counter(address.ip for address in usable.values())
    twice = sorted(ip for ip, count in counts.items() if count > 1)
    interfaces = context.facts.network.interfaces.value or ()
    hosts = {ip: interface.name for interface in interfaces for ip in interface.addresses}
    shared = sorted(ip for ip in counts if ip in hosts)
    outcomes: list[CheckResult | None] = []
    if twice:
        cards = tuple(card for card, address in usable.items() if address.ip in twice)
        lines = (usable[card].evidence for card in cards)
        outcomes.append(fail("network.address-twice", *lines, fix=_SET_ADDRESS, ip=tuple(twice), cards=cards))
    if shared:
        lines = (address.evidence for address in usable.values() if address.ip in shared)
        ips, interface = tuple(shared), hosts[shared[0]]
        outcomes.append(fail("network.address-of-host", *lines, fix=_SET_ADDRESS, ip=ips, interface=interface))
    return worst(outcomes, otherwise=ok("network.address-unique", count=len(usable)))


@_of_either
def _masks(_: Context, addresses: Addresses) -> CheckResult:
    """Two cards with different netmasks see different neighbours."""
    masks = _masks_of(addresses)
    if len(masks) < 2:
        return skip("network.address-none")
    well = ok("network.netmask-agrees", count=len(masks))
    return _outlying(fail, "network.netmask-differs", addresses, masks) or well


def _masks_of(addresses: Addresses) -> dict[int, str]:
    return {card: address.netmask for card, address in addresses.items() if address.netmask and address.is_usable}


@_of_either
def _subnets(context: Context, addresses: Addresses) -> CheckResult:
    """Cards may be in several subnets by design (four of two cards each is usual); a single one outside is an error."""
    networks = {card: str(addresses[card].network) for card in _masks_of(addresses)}
    if len(networks) < 2:
        return skip("network.address-none")
    if _outliers(_masks_of(addresses)):
        return skip("network.because-netmask")
    if _unique(context).status is Status.FAIL:
        return skip("network.because-twice")
    well = ok("network.subnet-ok", count=len(set(networks.values())))
    return _outlying(warn, "network.subnet-odd", addresses, networks) or well


def _outlying(
    make: Callable[..., CheckResult], name: str, addresses: Addresses, values: dict[int, str]
) -> CheckResult | None:
    """The result for the outliers among the cards' values, with the value that the others have."""
    lines = {card: address.line for card, address in addresses.items()}
    common = Counter(values.values()).most_common(1)[0][0]
    return about(make, name, lines, _outliers(values), fix=_SET_ADDRESS, common=common)


def _gateway(context: Context) -> CheckResult:
    """A gateway has to be in the subnet of its card, and not be the card itself."""
    filed, found = conf_values(context.facts, "gateway"), answers(context, "gateways")
    live = {card: gateway.ip for card, gateway in found.values.items()} if found else {}
    if has_address_fault(context):
        return skip("network.because-addresses")
    outcomes = [_unread(context, "gateways", "addresses"), _without_file(context)]
    counts = []
    for gateways, addresses, blind, where in (
        (live, in_use(context.facts), _blind_in_use(context, "gateways"), "hccn_tool -gateway -g"),
        (filed, in_file(context.facts), _blind_in_file(context), HCCN_CONF),
    ):
        usable = {card: ip for card, ip in gateways.items() if card in addresses and addresses[card].is_usable}
        having = {card: f"gateway of {card}: {ip}" for card, ip in gateways.items()}
        fix = fix_for("network.gateway-missing", needs_root=True)
        bare = {*blind, *stranded_cards(context), *(cards_here(context) - addresses.keys())}
        outcomes.append(_outside(usable, addresses))
        outcomes.append(_lacking(context, "network.gateway-missing", fix, where, having, bare))
        counts += [len(usable)] if usable else []
    well = ok("network.gateway-ok", count=counts[0]) if counts else skip("network.gateway-none")
    return worst(outcomes, otherwise=well)


def _outside(usable: Mapping[int, str], addresses: Addresses) -> CheckResult | None:
    """The cards whose gateway is outside of their subnet."""
    outside = sorted(card for card, ip in usable.items() if not _is_neighbour(ip, addresses[card]))
    if not outside:
        return None
    card = outside[0]
    source, network = addresses[card].evidence.command, str(addresses[card].network)
    lines = [Evidence(source, f"gateway of {item}: {usable[item]}; {addresses[item].line.line}") for item in outside]
    says = {"cards": tuple(outside), "gateway": usable[card], "network": network}
    return fail("network.gateway-outside", *lines, fix=fix_for("network.gateway", needs_root=True), **says)


def _is_neighbour(gateway: str, address: CardAddress) -> bool:
    import ipaddress

    try:
        return gateway != address.ip and (address.network is None or ipaddress.IPv4Address(gateway) in address.network)
    except ValueError:
        return False


def _mtu(context: Context) -> CheckResult:
    """The MTU of the cards, if it is set for several of them."""
    filed, found = conf_values(context.facts, "mtu"), answers(context, "mtus")
    lines = {card: Evidence(HCCN_CONF, f"mtu_{card}={value}") for card, value in sorted(filed.items())}
    outcomes = [_two_sizes(filed, lines), _without_file(context)]
    live: dict[int, str] = {}
    if found and found.values:  # an older tool does not support the query
        live = {card: str(value) for card, value in found.values.items()}
        outcomes += [_two_sizes(live, found.lines), _unread(context, "mtus")]
    silent = sorted(cards_here(context) - filed.keys() - live.keys()) if len(filed) > 1 and not live else []
    if silent:
        outcomes.append(unknown("network.mtu-some", *lines.values(), cards=tuple(silent)))
    count = max(len(filed), len(live))
    well = ok("network.mtu-agrees", *list(lines.values())[:1], count=count)
    return worst(outcomes, otherwise=well if count > 1 else skip("network.mtu-none"))


def _two_sizes(sizes: Mapping[int, str], lines: Mapping[int, Evidence]) -> CheckResult | None:
    if len(set(sizes.values())) < 2:
        return None
    common = Counter(sizes.values()).most_common(1)[0][0]
    shown = sorted(sizes, key=lambda card: (sizes[card] == common, card))
    fix = fix_for("network.mtu", needs_root=True)
    values = tuple(f"{card}: {sizes[card]}" for card in shown)
    return warn("network.mtu-differs", *(lines[card] for card in shown), fix=fix, values=values)


def _outliers(values: dict[int, str]) -> list[int]:
    """The outliers: cards that differ from all others, if those are enough to be the rule."""
    counts = Counter(values.values()).most_common()
    if len(counts) < 2 or counts[0][1] < _LEAST_FOR_ODD or any(count > 1 for _, count in counts[1:]) or len(counts) > 2:
        return []
    return [card for card, value in values.items() if value != counts[0][0]]


@given(lambda context: context.facts.hccn.rank_table.value, "network.rank-table-none")
def _table(_: Context, table: RankTable) -> CheckResult:
    wrong = _refusal(table)
    if wrong:
        says = {"path": table.path, "why": wrong}
        return fail("network.rank-table-bad", Evidence(table.path, wrong), fix="network.rank-table", **says)
    return ok("network.rank-table-ok", count=len(table.servers))


def _refusal(table: RankTable) -> str:
    """The first reason for HCCL to refuse the table, in the table's terms; "" for none."""
    if table.trouble:
        return table.trouble
    devices = [device for server in table.servers for device in server.devices]
    ranks, count = [device.rank for device in devices], table.server_count
    ips = [device.ip for device in devices if device.ip]
    twice = sorted({ip for ip in ips if ips.count(ip) > 1})
    checks = (
        (table.status != "completed", f"status {table.status or 'missing'}"),
        (count.isdigit() and int(count) != len(table.servers), f"server_count {count}"),
        (not devices, "device missing"),
        (None in ranks or sorted(rank or 0 for rank in ranks) != list(range(len(ranks))), f"rank_id {ranks}"),
        (any(device.card is None for device in devices), "device_id missing"),
        (bool(twice), f"device_ip {', '.join(twice)}"),
        (len(table.servers) > 1 and len(ips) < len(devices), "device_ip missing"),
        (table.version == "1.2" and any(not device.super_id for device in devices), "super_device_id missing"),
    )
    return next((words for is_wrong, words in checks if is_wrong), "")


def _table_addresses(context: Context) -> CheckResult:
    """HCCL compares each address of the table with that of the card (EI0014)."""
    table = context.facts.hccn.rank_table.value
    if table is None or _refusal(table):
        return skip("network.rank-table-none")
    live, found = in_use(context.facts), answers(context, "addresses")
    cards = live or in_file(context.facts)
    server = _own_server(context, table, {card: address.ip for card, address in cards.items()})
    if server is None or not cards:
        return skip("network.rank-table-elsewhere")
    named = {device.card for device in server.devices if device.card is not None}
    blind = {card: line for card, line in (found.unread if found and live else {}).items() if card in named}
    wrong = [
        (device, cards[device.card])
        for device in server.devices
        if device.card in cards and device.ip and device.ip != cards[device.card].ip
    ]
    bad = None
    if wrong:
        lines = [Evidence(table.path, f"device_id {item.card}, device_ip {item.ip}") for item, _ in wrong]
        lines += [own.evidence for _, own in wrong]
        says = {"cards": tuple(item.card for item, _ in wrong), "ip": wrong[0][0].ip, "own": wrong[0][1].ip}
        bad = fail("network.rank-table-differs", *lines, fix="network.rank-table-addresses", **says)
    well = ok("network.rank-table-agrees", count=len(named & cards.keys()))
    return worst((bad, unread_cards(context, blind, of=cards)), otherwise=well)


def _own_server(context: Context, table: RankTable, cards: dict[int, str]) -> Server | None:
    """This host's entry: by its address, by the addresses of its cards, or because it is the only one."""
    own = context.own_addresses
    named = [server for server in table.servers if server.id in own]
    if named or len(table.servers) == 1:
        return (named or list(table.servers))[0]
    shared = {server: sum(device.ip in cards.values() for device in server.devices) for server in table.servers}
    best = max(shared, key=lambda server: shared[server], default=None)
    return best if best is not None and shared[best] else None


CHECKS = (
    card_check("network.tls-agrees", ("hccn.conf",), "hicann/hccl fault diagnosis, EI0016 and EI0006", _tls),
    card_check("network.hccn-conf", (), "HCCN tool guide, /etc/hccn.conf", _conf),
    card_check("network.card-addresses", (), _ENV_PREP, _set),
    card_check("network.addresses-agree", (), _ENV_PREP, _same, level=2),
    card_check("network.addresses-valid", (), _ENV_PREP, _valid),
    card_check("network.addresses-unique", (), "hicann/hccl fault diagnosis, EI0006", _unique),
    card_check("network.netmasks-agree", (), "hicann/hccl fault diagnosis, EI0006", _masks),
    card_check("network.card-subnets", (), "hicann/hccl fault diagnosis, EI0006", _subnets),
    card_check("network.card-gateways", (), _ENV_PREP, _gateway),
    card_check("network.card-mtu", (), "HCCN tool guide, /etc/hccn.conf", _mtu),
)
RANK_TABLE = (
    card_check("network.rank-table", ("hccn.rank_table",), _DOCUMENT, _table),
    card_check("network.rank-table-addresses", (), _DOCUMENT, _table_addresses),
)
