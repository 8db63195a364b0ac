"""Checks of a launch's rank table: whether HCCL can read it, and whether its addresses are those of the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import CheckResult, Context, card_check, fail, fix_for, given, ok, skip, worst
from npuenv.checks.network import card_addresses
from npuenv.checks.network.answers import answers, unread_cards
from npuenv.core.fact import Evidence

if TYPE_CHECKING:
    from npuenv.facts.hccn.conf import RankTable, Server

_DOCUMENT = "hicann/hccl user guide, rank table; fault diagnosis, EI0004 and EI0014"


@given(lambda context: context.facts.hccn.rank_table.value, "network.rank-table-none")
def _table(_: Context, table: RankTable) -> CheckResult:
    wrong = _wrong(table)
    if wrong:
        fix = fix_for("network.rank-table")
        return fail("network.rank-table-bad", Evidence(table.path, wrong), fix=fix, path=table.path, why=wrong)
    return ok("network.rank-table-ok", count=len(table.servers))


def _wrong(table: RankTable) -> str:
    """The first reason for HCCL to refuse the table, in the table's terms; "" for none."""
    if table.trouble:
        return table.trouble
    devices = [device for server in table.servers for device in server.devices]
    ranks = [device.rank for device in devices]
    ips = [device.ip for device in devices if device.ip]
    twice = sorted({ip for ip in ips if ips.count(ip) > 1})
    checks = (
        (table.status != "completed", f"status {table.status or 'missing'}"),
        (
            table.server_count.isdigit() and int(table.server_count) != len(table.servers),
            f"server_count {table.server_count}",
        ),
        (not devices, "device missing"),
        (None in ranks or sorted(rank or 0 for rank in ranks) != list(range(len(ranks))), f"rank_id {ranks}"),
        (any(device.card is None for device in devices), "device_id missing"),
        (bool(twice), f"device_ip {', '.join(twice)}"),
        (len(table.servers) > 1 and len(ips) < len(devices), "device_ip missing"),
        (table.version == "1.2" and any(not device.super_id for device in devices), "super_device_id missing"),
    )
    return next((words for is_wrong, words in checks if is_wrong), "")


def _addresses(context: Context) -> CheckResult:
    """HCCL compares each address of the table with that of the card (EI0014)."""
    table = context.facts.hccn.rank_table.value
    if table is None or _wrong(table):
        return skip("network.rank-table-none")
    live, found = card_addresses.in_use(context.facts), answers(context, "addresses")
    cards = live or card_addresses.in_file(context.facts)
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
        device, address = wrong[0]
        lines = [Evidence(table.path, f"device_id {item.card}, device_ip {item.ip}") for item, _ in wrong]
        lines += [own.evidence for _, own in wrong]
        fix = fix_for("network.rank-table-addresses")
        numbers = tuple(item.card for item, _ in wrong)
        bad = fail("network.rank-table-differs", *lines, fix=fix, cards=numbers, ip=device.ip, own=address.ip)
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
    card_check("network.rank-table", ("hccn.rank_table",), _DOCUMENT, _table),
    card_check("network.rank-table-addresses", (), _DOCUMENT, _addresses),
)
