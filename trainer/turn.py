"""What one turn of the loop made: the value that the loop hands to those who measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.engines.elsewhere import Spent
    from trainer.learner import Judged, Known, Update
    from trainer.types import Batch, Group


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of the loop made."""

    groups: list[Group]
    rewards_PG: Tensor
    batch: Batch
    known: Known
    judged: Judged
    update: Update
    num_drawn: int  # groups generated; more than `groups` where some were without signal and drawn again
    spent: Spent | None = None  # of generators in other processes; None: there are none
    reward_errors: int | None = None  # answers whose reward could not be had; None: one of them ends the run
    lag: int = 0  # steps that the weights which drew the answers were behind those that learnt from them
