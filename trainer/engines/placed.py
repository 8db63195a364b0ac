"""The generators that `trainer.placement` has given to this process; any other process has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.engines.elsewhere import Generator
    from trainer.engines.serving import Order


@dataclass(frozen=True, slots=True)
class Places:
    """As `remote.Pool` wants them: how many, and how one is started at each, also anew."""

    count: int
    start: Callable[[int, Order], Generator]
    sharers: int = 1  # at most so many ranks of the run have one in common
    sends: bool = True  # whether this rank sends weights, for itself and for those that share


_here: list[Places] = []


def give(places: Places | None) -> None:
    """Gives them to this process, in place of those that it had."""
    _here[:] = [places] if places is not None else []


def mine() -> Places | None:
    """None: nothing else generates for this process."""
    return _here[0] if _here else None
