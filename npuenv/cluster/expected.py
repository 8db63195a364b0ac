"""Whether a node has what the inventory says of it. Start from `cards`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks import Finding, Status
from npuenv.cluster.agree.cards import numbers
from npuenv.facts.base import Evidence, State
from npuenv.facts.npu.visible import VARIABLE, visible
from npuenv.messages import Message

if TYPE_CHECKING:
    from npuenv.cluster.types import Node
    from npuenv.facts.collect import Facts

_SOURCE = "the inventory"


def cards(node: Node, facts: Facts, source: str) -> Finding | None:
    """The number of cards against the inventory's `cards=`; None where it says nothing about them."""
    if node.cards is None:
        return None
    table = facts.npu.smi
    found = len(table.value.cards) if table.value else len(numbers(facts))
    environment = facts.environment.value or {}
    seen = visible(environment, found)
    if found and seen != found:
        value = environment[VARIABLE]
        args = {"found": found, "seen": seen or 0, "expected": node.cards, "source": source, "value": value}
        is_right = seen == node.cards
        status = Status.OK if is_right else Status.UNKNOWN if seen is None else Status.FAIL
        word = "as-expected" if is_right else "unread" if seen is None else "other"
        line = Evidence("environment", f"{VARIABLE}={value}")
        says = Message(f"cluster.cards-visible-{word}", args)
        return Finding("cluster.cards", status, says, (line, *table.evidence[:1]), _SOURCE, None)
    args = {"found": found, "expected": node.cards, "source": source}
    if table.state is State.UNKNOWN and not found:
        status, says = Status.UNKNOWN, "cards-unknown"
    elif found == node.cards:
        status, says = Status.OK, "cards-as-expected"
    else:
        status, says = Status.FAIL if found < node.cards else Status.WARN, "cards-other"
    return Finding("cluster.cards", status, Message(f"cluster.{says}", args), table.evidence[:1], _SOURCE, None)
