"""The card table for checks, or the result that replaces it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from npuenv.checks.base import skip, unknown, unread
from npuenv.core.fact import Evidence, State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.checks.base import CheckResult, Context
    from npuenv.facts.collect import Facts
    from npuenv.facts.npu.smi import Card, SmiTable

# Known if npu-smi failed, absent if it gave a table: a check that reads this fact runs in both cases.
TABLE = ("npu.smi_trouble",)


def has_sign_of_cards(facts: Facts) -> bool:
    """Whether there is any sign of an NPU: a node, a table, a PCI device, a driver, npu-smi, or a torch device."""
    npu, devices = facts.npu, facts.python.devices.value
    has_cards = any(fact.value is not None and fact.value.cards for fact in (npu.nodes, npu.smi))
    is_there = npu.driver.is_known or npu.smi_trouble.is_known or bool(npu.pci_devices.value)
    return has_cards or is_there or bool(devices and devices.count)


def interface_is_down(context: Context) -> bool:
    """Whether npu-smi is present but the driver interface does not start."""
    trouble = context.facts.npu.smi_trouble.value
    if trouble is None:
        return False
    from npuenv.facts.npu.smi import Trouble  # only if npu-smi failed: a healthy machine does not need the parser

    return trouble.kind is Trouble.INIT


def with_table(judge: Callable[[Context, SmiTable], CheckResult]) -> Callable[[Context], CheckResult]:
    """Decorates a check of the listed cards: the function gets the table if it lists any.

    A tool that does not work is reported once, by the check of the tool.
    """

    @functools.wraps(judge)
    def check(context: Context) -> CheckResult:
        npu = context.facts.npu
        if npu.smi.value is not None and npu.smi.value.cards:
            return judge(context, npu.smi.value)
        if npu.smi_trouble.is_known:
            return unknown("npu.see-npu-smi", *npu.smi_trouble.evidence)
        if npu.smi.state is State.UNKNOWN:
            return unknown("unknown-input", *npu.smi.evidence, facts=("npu.smi",))
        return skip("no-table")

    return check


def unread_of(context: Context, name: str) -> CheckResult | None:
    """Unknown for the cards that the fact `npu.NAME` lacks; None if it has all of them.

    A card that does not answer at all is reported once, by the check for that.
    """
    lacking = (context.facts.npu.unread.value or {}).get(name, {})
    reported = set(context.facts.npu.silent.evidence) if context.facts.npu.silent.value else set()
    rest = {card: line for card, line in lacking.items() if line not in reported}
    return unread(rest) if rest or not lacking else skip("because", cause="cards.answer")


def unread_rows(cards: Sequence[Card], has: Callable[[Card], bool]) -> CheckResult | None:
    """Unknown for the cards whose row lacks a value that others have; on some kinds no card has it."""
    blind = {f"{card.npu}.{card.chip}": Evidence("npu-smi info", card.line) for card in cards if not has(card)}
    return unread(blind) if any(map(has, cards)) else None
