"""Checks of the cards that npu-smi lists: present, healthy, complete and free."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, Check, card_check, fail, fix_for, ok, skip, unknown, warn, worst
from npuenv.checks.npu.boards import (
    TABLE,
    TOOLS,
    first_by,
    interface_is_down,
    one_of_each,
    unread_of,
    unread_rows,
    with_table,
)
from npuenv.core.fact import Evidence, State
from npuenv.facts.collector import was_asked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npuenv.checks.base import CheckResult, Context
    from npuenv.facts.npu import Holder
    from npuenv.facts.npu.queries import Board
    from npuenv.facts.npu.smi import Card, SmiTable

_FAULTS = (
    "npu-smi transcripts; event codes: Ascend/mind-cluster docs, Container Manager, default fault code configuration; "
    "DCMI reference, dcmi_get_device_health: 0xFFFFFFFF"
)
_SLICES = "hiascend.com techArticles 20251212-1: hard slices support inference only"
_IDLE_AT_MOST = 0.25  # of a card's memory; npuenv's own threshold
_FULL_PERCENT = 100
_ACTIONS = ("none", "request", "work", "free", "reset", "separate")  # from harmless to fatal
_TRY_CPU = fix_for("npu.try-cpu", ("npuenv", "up", "--for", "cpu"))


def _label(card: Card) -> str:
    return f"{card.npu}.{card.chip}"


def _labels(cards: Iterable[Card]) -> tuple[str, ...]:
    return tuple(map(_label, cards))


def _names(context: Context, table: SmiTable) -> str:
    """ "8 x 910B3 (a2)": the chips by name, with the generation if the matrix knows it."""
    words = []
    for name, count in Counter(card.name or "?" for card in table.cards).items():
        row = context.matrix.hardware_of_chip(name)
        words.append(f"{count} x {name}" + (f" ({row.id})" if row else ""))
    return ", ".join(words)


def _present(context: Context) -> CheckResult:
    """Cards by the table; if that fails, by the device nodes; without either, the evidence that was checked."""
    facts = context.facts
    if context.framework == "cpu":
        return skip("skip-cpu")
    nodes = facts.npu.nodes.value
    looked = (*facts.npu.smi.evidence, *facts.npu.nodes.evidence, *facts.npu.pci_devices.evidence)
    if facts.npu.smi.value is not None and facts.npu.smi.value.cards:
        return ok("npu.cards-present-ok", *facts.npu.smi.evidence, cards=_names(context, facts.npu.smi.value))
    if nodes is not None and nodes.cards and not was_asked(facts.npu.smi):
        return ok("npu.cards-present-nodes", *facts.npu.nodes.evidence, count=len(nodes.cards))
    if nodes is not None and nodes.cards:
        return _nodes_alone(context, looked, len(nodes.cards))
    if interface_is_down(context):
        return skip("npu.see-npu-smi")
    if facts.npu.pci_devices.value:
        fix = "npu.driver-install"
        return fail("npu.cards-present-pci-only", *looked, fix=fix, count=len(facts.npu.pci_devices.value))
    has_answer = facts.npu.smi.is_known or facts.npu.smi_trouble.is_known
    if not has_answer and (nodes is None or facts.npu.smi.state is State.UNKNOWN):
        return unknown("npu.cards-present-unknown", *looked)
    # The message claims nothing about sources that were not checked.
    name = "fail" if facts.npu.pci_devices.is_known else "fail-no-bus"
    return fail(f"npu.cards-present-{name if was_asked(facts.npu.smi) else 'no-node'}", *looked, fix=_TRY_CPU)


def _nodes_alone(context: Context, looked: tuple[Evidence, ...], count: int) -> CheckResult:
    """Device nodes without a card in a table. A failing tool is reported by its own check."""
    npu = context.facts.npu
    if npu.smi_trouble.is_known or npu.smi.state is State.ABSENT:
        return skip("npu.see-npu-smi")
    if npu.smi.is_known:
        reported = npu.smi.evidence[0].line if npu.smi.evidence else ""
        return warn("npu.cards-present-none-listed", *looked, fix="npu.driver-sees-none", count=count, said=reported)
    return warn("npu.cards-present-nodes-only", *looked, count=count)


@with_table
def _healthy(context: Context, table: SmiTable) -> CheckResult:
    details = {f"{item.npu}.{item.chip}": item for item in context.facts.npu.health.value or () if item.status != "OK"}
    codes = {name: item.codes for name, item in details.items() if item.codes}
    reported_unhealthy = {name for name, item in details.items() if item.status != "UNKNOWN"}
    dead = [card for card in table.cards if card.health == "Critical"]
    rest = [card for card in table.cards if card not in dead]
    coded = [card for card in rest if _label(card) in codes]
    is_plain = {card: card.health not in ("OK", None, "UNKNOWN") or _label(card) in reported_unhealthy for card in rest}
    plain = [card for card in rest if is_plain[card] and card not in coded]
    unreported = [card for card in rest if card.health == "UNKNOWN" and card not in (*coded, *plain)]
    outcomes = [
        _critical([card for card in dead if card.power_w == 0.0], "dead"),
        _critical([card for card in dead if card.power_w != 0.0], "critical"),
        _with_codes(context, coded, tuple(dict.fromkeys(code for card in coded for code in codes[_label(card)]))),
        _unsaid(unreported),
        unread_rows(table.cards, lambda card: card.health is not None),
        unread_of(context, "health"),
        _to_look_at(plain, "npu.cards-healthy-alarm", "npu.card-alarm"),
    ]
    if not table.is_complete or not any(card.health for card in table.cards):
        outcomes.append(unknown("npu.cards-healthy-unknown", *_rows(table.cards)))
    return worst(outcomes, otherwise=ok("npu.cards-healthy-ok", count=len(table.cards)))


def _rows(cards: Iterable[Card]) -> Iterator[Evidence]:
    return (Evidence("npu-smi info", card.line) for card in cards)


def _critical(cards: list[Card], name: str) -> CheckResult | None:
    fix = fix_for(f"npu.card-{name}")
    return fail(f"npu.cards-healthy-{name}", *_rows(cards), fix=fix, cards=_labels(cards)) if cards else None


def _unsaid(cards: list[Card]) -> CheckResult | None:
    """UNKNOWN is the tool's word for a chip whose health the driver does not know. A slice of a card may have none."""
    if any(card.is_virtual for card in cards):
        return unknown("npu.cards-healthy-untold", *_rows(cards), cards=_labels(cards))
    return _to_look_at(cards, "npu.cards-healthy-untold", "npu.card-untold")


def _to_look_at(cards: list[Card], name: str, fix: str) -> CheckResult | None:
    """A warning about cards of which npu-smi tells more when asked; None without any."""
    if not cards:
        return None
    ask = fix_for(fix, ("npu-smi", "info", "-t", "health", "-i", str(cards[0].npu)))
    return warn(name, *_rows(cards), fix=ask, cards=_labels(cards))


def _with_codes(context: Context, cards: list[Card], codes: tuple[str, ...]) -> CheckResult | None:
    """The most severe event code decides; a code without a table entry counts as worth a look."""
    if not cards:
        return None
    actions = {row.action for row in map(context.matrix.npu_fault, codes) if row is not None}
    action = next((each for each in reversed(_ACTIONS) if each in actions), "unnamed")
    fix = fix_for(f"npu.card-fault-{action}")
    says = fail if action in ("reset", "separate") else warn
    labels = _labels(cards)
    answers = first_by(context.facts.npu.health, lambda item: f"{item.npu}.{item.chip}" not in labels)
    lines = (line for pair in itertools.zip_longest(_rows(cards), answers) for line in pair if line)
    return says("npu.cards-healthy-codes", *lines, fix=fix, cards=labels, codes=codes)


@with_table
def _supported(context: Context, table: SmiTable) -> CheckResult:
    names = sorted({card.name for card in table.cards if card.name})
    rows = {name: context.matrix.hardware_of_chip(name) for name in names}
    refused = [name for name, row in rows.items() if row is not None and not row.accepted]
    outcomes = [unread_rows(table.cards, lambda card: card.name is not None)]
    shown = context.facts.npu.smi.evidence
    if refused:
        outcomes.append(fail("npu.cards-supported-fail", *shown, names=tuple(refused), fix=_TRY_CPU))
    unsupported = [name for name, row in rows.items() if row is None]
    if unsupported or not names:
        outcomes.append(unknown("npu.cards-supported-unknown", *shown, names=tuple(unsupported) or ("?",)))
    return worst(outcomes, otherwise=ok("npu.cards-supported-ok", names=tuple(names)))


@with_table
def _free(context: Context, table: SmiTable) -> CheckResult:
    # Idle is not zero memory: a card without work holds 3 to 5 GB. Other containers' processes are not listed.
    busy = tuple(sorted({process.npu for process in table.processes}))
    is_read = {card: None not in (card.hbm_used_mib, card.hbm_total_mib) for card in table.cards}
    blind = unread_rows(table.cards, lambda card: card.npu in busy or is_read[card])
    well = ok("npu.cards-free-ok", count=len(table.cards))
    return worst((_in_use(context, table, busy) or _unlisted(table), blind), otherwise=well)


def _in_use(context: Context, table: SmiTable, busy: tuple[int, ...]) -> CheckResult | None:
    """The users of the cards; None if there are none."""
    held = [card for card in table.cards if _holds_memory(table, card)]
    if not busy and not held:
        return None
    texts = (f"NPU {card.npu}: {card.hbm_used_mib} of {card.hbm_total_mib} MiB, no process" for card in held)
    lines = [Evidence("npu-smi info", text) for text in texts]
    if not busy:
        return warn("npu.cards-free-held", *lines, fix="npu.card-held", cards=_labels(held))
    rows = context.facts.npu.holders.evidence
    if held:
        return warn("npu.cards-free-both", *lines, *rows, fix="npu.card-held", npus=busy, cards=_labels(held))
    holders = context.facts.npu.holders.value or ()
    account = context.facts.machine.account.value
    name = _who(holders, account.uid if account else None)
    pids = tuple(str(holder.pid) for holder in holders)
    pids = pids or tuple(dict.fromkeys(str(process.pid) for process in table.processes))
    fix = fix_for(f"npu.free-{name}")
    if name == "own":
        fix = fix_for("npu.free-own", ("kill", *(str(holder.pid) for holder in holders)), is_dangerous=True)
    elif name == "busy":
        fix = fix_for("npu.free-busy", ("ps", "-fp", ",".join(pids)))
    return warn(f"npu.cards-free-{name}", *rows, fix=fix, npus=busy, pids=pids)


def _unlisted(table: SmiTable) -> CheckResult | None:
    """The result if the processes of some card could not be read; None if all were."""
    return unknown("npu.cards-processes-unknown", npus=table.unlisted) if table.unlisted else None


def _who(holders: tuple[Holder, ...], uid: int | None) -> str:
    """The owner of the processes, if all have the same."""
    if not holders:
        return "busy"
    if all(holder.is_zombie for holder in holders):
        return "zombie"
    if all(holder.is_here and holder.uid is not None for holder in holders) and uid is not None:
        owners = {holder.uid for holder in holders}
        return "own" if owners == {uid} else "other" if uid not in owners else "busy"
    return "container" if all(holder.is_in_container and not holder.is_here for holder in holders) else "busy"


def _holds_memory(table: SmiTable, card: Card) -> bool:
    """Whether a card uses more memory than an idle one, but has no process in the table.

    At most 3.4 GB of 32 (A2) and 5.2 of 84 (950) were seen on idle cards.
    """
    if card.npu not in table.listed or any(process.npu == card.npu for process in table.processes):
        return False
    return bool(card.hbm_used_mib and card.hbm_total_mib and card.hbm_used_mib > card.hbm_total_mib * _IDLE_AT_MOST)


@with_table
def _stuck(context: Context, table: SmiTable) -> CheckResult:
    """An AI core at full load without a process."""
    if context.in_container:
        return skip("npu.sees-own-only")
    with_process = {process.npu for process in table.processes}
    idle = [card for card in table.cards if card.npu in table.listed and card.npu not in with_process]
    stuck = [card for card in idle if card.busy_percent == _FULL_PERCENT and not _holds_memory(table, card)]
    lines = (Evidence("npu-smi info", f"NPU {card.npu}: {card.busy_percent} %, no process") for card in stuck)
    reported = warn("npu.cards-stuck-warn", *lines, fix="npu.card-stuck", cards=_labels(stuck)) if stuck else None
    blind = unread_rows(idle, lambda card: card.busy_percent is not None)
    well = ok("npu.cards-stuck-ok", count=len(idle)) if idle else skip("npu.cards-stuck-skip")
    return worst((reported or _unlisted(table), blind), otherwise=well)


@with_table
def _complete(context: Context, table: SmiTable) -> CheckResult:
    """Cards that the bus, `-m` or gaps in the numbering show and the table lacks."""
    nodes = context.facts.npu.nodes.value
    if context.in_container or any(card.is_virtual for card in table.cards):
        return skip("npu.sees-own-only")
    if not table.is_complete:
        return unknown("npu.cards-healthy-unknown")
    if nodes is not None and nodes.cards and len(nodes.cards) != len(table.cards):
        return skip("npu.complete-see-nodes")
    missing = _lost_on_bus(context, table) or _unmapped(context, table)
    missing = missing or _between_neighbours(table) or _half_pairs(table)
    if missing:
        evidence = (*context.facts.npu.pci_addresses.evidence, *context.facts.npu.mapped.evidence)
        return warn("npu.cards-complete-warn", *evidence, fix="npu.card-missing", cards=missing)
    return ok("npu.cards-complete-ok", count=len(table.cards))


def _lost_on_bus(context: Context, table: SmiTable) -> tuple[str, ...]:
    """Bus addresses without a listed card; virtual functions are on the bus of their card."""
    addresses = context.facts.npu.pci_addresses.value or ()
    if not all(card.bus_id for card in table.cards):
        return ()  # some cards print no address, so none can be missing
    seen = {_bus(card.bus_id or "") for card in table.cards}
    return tuple(location for location in addresses if _bus(location) not in seen)


def _bus(address: str) -> str:
    """`0000:c1` of `0000:C1:00.0`."""
    return address.casefold().rpartition(":")[0]


def _unmapped(context: Context, table: SmiTable) -> tuple[str, ...]:
    rows = context.facts.npu.mapped.value or ()
    seen = {(card.npu, card.chip) for card in table.cards}
    chips = {(row.npu, row.chip) for row in rows if row.chip is not None and row.name.startswith("Ascend")}
    return tuple(f"NPU {npu}.{chip}" for npu, chip in sorted(chips - seen))


def _between_neighbours(table: SmiTable) -> tuple[str, ...]:
    """Gaps between numbers, if most are present: a virtual machine may have just two or four cards of its host."""
    npus = {card.npu for card in table.cards}
    gaps = [number for number in range(min(npus), max(npus)) if number not in npus]
    return tuple(f"NPU {number}" for number in gaps) if len(gaps) * 2 < len(npus) else ()


def _half_pairs(table: SmiTable) -> tuple[str, ...]:
    """Cards with one chip if the others have two."""
    chips = Counter(card.npu for card in table.cards)
    most = max(chips.values())
    return tuple(f"NPU {npu}" for npu, count in sorted(chips.items()) if count < most)


@with_table
def _one_kind(context: Context, table: SmiTable) -> CheckResult:
    """By the table's names, and by the exact ones if available: the table calls every A3 chip Ascend910."""
    names = {card.name for card in table.cards if card.name}
    chips = context.facts.npu.chips.value or ()
    exact = {_exact_name(chip) for chip in chips if chip.chip_name}
    different = names if len(names) > 1 else exact
    outcomes = [unread_rows(table.cards, lambda card: card.name is not None), unread_of(context, "chips")]
    if len(different) > 1:
        by_chip = different is exact
        evidence = one_of_each(context.facts.npu.chips, _exact_name) if by_chip else context.facts.npu.smi.evidence
        names_seen = tuple(sorted(different))
        outcomes.append(warn("npu.cards-one-kind-warn", *evidence, fix="npu.one-kind", names=names_seen))
    return worst(outcomes, otherwise=ok("npu.cards-one-kind-ok", count=len(table.cards)))


def _exact_name(chip: Board) -> str:
    return " ".join(filter(None, (chip.chip_name, chip.npu_name)))


@with_table
def _whole(context: Context, table: SmiTable) -> CheckResult:
    """Slices of a card are for inference only."""
    slices = [card for card in table.cards if card.is_virtual]
    if not slices:
        return ok("npu.cards-whole-ok")
    if context.framework in ("verl", "roll"):
        return fail("npu.cards-whole-fail", fix="npu.whole-card", count=len(slices))
    return ok("npu.cards-whole-slices", count=len(slices))


_ONE_KIND = "Ascend/mind-cluster docs: mixed insertion of cards is not supported"
CHECKS = (
    Check("cards.present", (), TOOLS, _present, required_for=NPU_FRAMEWORKS),
    card_check("cards.healthy", ("npu.smi",), _FAULTS, _healthy, required_for=NPU_FRAMEWORKS),
    card_check("cards.supported", TABLE, "matrix hardware", _supported, required_for=NPU_FRAMEWORKS),
    card_check("cards.complete", TABLE, TOOLS, _complete),
    card_check("cards.one-kind", TABLE, _ONE_KIND, _one_kind),
    card_check("cards.whole", TABLE, _SLICES, _whole),
    card_check("cards.free", TABLE, TOOLS, _free),
    card_check("cards.stuck", TABLE, "npu-smi info of an Ascend950PR host: 100 % and Alarm without a process", _stuck),
)
