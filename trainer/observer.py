"""What a step of the loop made, and the interface of those who follow the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.algorithms.update_metrics import UpdateMetrics
    from trainer.engines.generator_client import GeneratorStats
    from trainer.learner import ForwardOutputs, StepAdvantages
    from trainer.types import Batch, Group


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step of the loop made."""

    groups: list[Group]
    rewards_PG: Tensor
    batch: Batch
    logprobs: ForwardOutputs
    advantages: StepAdvantages
    update: UpdateMetrics
    num_generated: int  # groups generated; more than `groups` where some had no signal and others were drawn
    stats: GeneratorStats | None = None  # of generators in other processes; None: there are none
    reward_errors: int | None = None  # answers whose reward could not be had; None: one of them ends the run
    staleness: int = 0  # steps that the weights which drew the answers were behind those that learnt from them
    seconds: float = 0.0


class Observer:
    """Follows a run; the loop does not know what it does."""

    def on_start(self) -> None:
        """Before the first step."""

    def on_step_start(self, step: int) -> None:
        """Before a step, when everything that the one before it brought about is done."""

    def on_step(self, step: int, result: StepResult) -> None:
        """After a step."""

    def on_end(self) -> None:
        """After the last step."""
