"""Whether a node has what the inventory says of it. Start from `cards`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks import Finding, Status
from npuenv.cluster.consistency.cards import numbers
from npuenv.core.fact import Evidence, State
from npuenv.core.messages import Message
from npuenv.facts.npu.visible import VARIABLE, visible

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
        return _of_session(node, source, found, seen, Evidence("environment", f"{VARIABLE}={environment[VARIABLE]}"))
    args = {"found": found, "expected": node.cards, "source": source}
    if table.state is State.UNKNOWN and not found:
        status, says = Status.UNKNOWN, "cards-unknown"
    elif found == node.cards:
        status, says = Status.OK, "cards-as-expected"
    else:
        status, says = Status.FAIL if found < node.cards else Status.WARN, "cards-other"
    return Finding("cluster.cards", status, Message(f"cluster.{says}", args), table.evidence[:1], _SOURCE, None)


def _of_session(node: Node, source: str, found: int, seen: int | None, line: Evidence) -> Finding:
    """Where the session hides cards of the node: `seen` of `found`; None: nobody can tell."""
    if seen is None:
        status, word = Status.UNKNOWN, "unread"
    else:
        status, word = (Status.OK, "as-expected") if seen == node.cards else (Status.FAIL, "other")
    value = line.line.partition("=")[2]
    args = {"found": found, "seen": seen, "expected": node.cards, "source": source, "value": value}
    return Finding("cluster.cards", status, Message(f"cluster.cards-visible-{word}", args), (line,), _SOURCE, None)
