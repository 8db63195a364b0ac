"""The card table for checks: there, or the verdict in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import skip, unread, unsure
from npuenv.core.fact import Evidence, State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.checks.base import CheckResult, Context
    from npuenv.facts.collect import Facts
    from npuenv.facts.npu.smi import Card

# Known where npu-smi failed, absent where it gave a table: a check that reads this fact is run in both cases.
TABLE = ("npu.smi_trouble",)


def has_sign_of_cards(facts: Facts) -> bool:
    """Whether anything hints at an NPU: a node, a table, a PCI device, a driver, npu-smi, or a torch device."""
    npu, devices = facts.npu, facts.python.devices.value
    has_cards = any(fact.value is not None and fact.value.cards for fact in (npu.nodes, npu.smi))
    is_there = npu.driver.is_known or npu.smi_trouble.is_known or bool(npu.pci_devices.value)
    return has_cards or is_there or bool(devices and devices.count)


def interface_is_down(context: Context) -> bool:
    """Whether npu-smi is here and the driver's interface below it does not start."""
    trouble = context.facts.npu.smi_trouble.value
    if trouble is None:
        return False
    from npuenv.facts.npu.smi import Trouble  # only where npu-smi failed: a healthy machine needs no parser

    return trouble.kind is Trouble.INIT


def without_table(context: Context) -> CheckResult | None:
    """What a check about listed cards comes to where none is listed; None where some are.

    A tool that does not work is reported once, by the check of the tool.
    """
    npu = context.facts.npu
    if npu.smi.value is not None and npu.smi.value.cards:
        return None
    if npu.smi_trouble.is_known:
        return unsure("npu.see-npu-smi", *npu.smi_trouble.evidence)
    if npu.smi.state is State.UNKNOWN:
        return unsure("unknown-input", *npu.smi.evidence, facts=("npu.smi",))
    return skip("no-table")


def unread_of(context: Context, name: str) -> CheckResult | None:
    """Unknown for the cards that the fact `npu.NAME` lacks; None where it has all of them.

    That a card does not answer at all is reported once, by the check for that.
    """
    lacking = (context.facts.npu.unread.value or {}).get(name, {})
    reported = set(context.facts.npu.silent.evidence) if context.facts.npu.silent.value else set()
    rest = {card: line for card, line in lacking.items() if line not in reported}
    return unread(rest) if rest or not lacking else skip("because", cause="cards.answer")


def unread_rows(cards: Sequence[Card], has: Callable[[Card], bool]) -> CheckResult | None:
    """Unknown for the cards whose row lacks something that the rows of others have; no card of some kinds has it."""
    blind = {f"{card.npu}.{card.chip}": Evidence("npu-smi info", card.line) for card in cards if not has(card)}
    return unread(blind) if any(map(has, cards)) else None
