"""How verl counts the cards of a placement: so many on each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.preflight.memory.types import Cards, Placement


@dataclass(frozen=True, slots=True)
class OnNodes:
    """A placement as verl takes it: it is told numbers of cards, not which."""

    nodes: int
    train: int  # cards of a node that train
    infer: int  # cards of a node that generate: the same ones in a colocated placement
    visible: tuple[int, ...] | None  # the cards of a node that the run may see; None: all of them


def on_nodes(cards: Cards, placement: Placement) -> OnNodes:
    """The placement by node. Raises: BadInput where it differs from node to node, for verl has no words for that."""
    train, infer = _by_node(cards, placement.train), _by_node(cards, placement.infer)
    used = tuple(sorted({*train, *infer}))
    # Supervised training generates nothing: `infer` may be empty.
    if not train or used != tuple(range(len(used))):
        raise _uneven(placement)
    seen = tuple(tuple(sorted({*train.get(node, ()), *infer.get(node, ())})) for node in used)
    counts = {(len(train.get(node, ())), len(infer.get(node, ()))) for node in used}
    if len(counts) != 1 or len(set(seen)) != 1:
        raise _uneven(placement)
    [(trains, infers)] = counts
    return OnNodes(len(used), trains, infers, None if len(seen[0]) == cards.per_node else seen[0])


def _by_node(cards: Cards, numbers: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Node -> the numbers on it. Raises: BadInput for a card that does not exist."""
    absent = [number for number in numbers if not 0 <= number < cards.count]
    if absent:
        args = {"card": absent[0], "last": cards.count - 1}
        raise BadInput(Message("launch.no-card", args), Message("launch.no-card-hint", args))
    nodes = sorted({number // cards.per_node for number in numbers})
    return {
        node: tuple(sorted({each % cards.per_node for each in numbers if each // cards.per_node == node}))
        for node in nodes
    }


def _uneven(placement: Placement) -> BadInput:
    args = {"train": _list(placement.train), "infer": _list(placement.infer)}
    return BadInput(Message("launch.uneven", args), Message("launch.uneven-hint"))


def _list(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers) or "-"
