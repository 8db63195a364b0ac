"""The seam between the loop and whatever generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.types import Group, Prompt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn."""

    rollouts_per_prompt: int
    max_new_tokens: int
    temperature: float
    is_greedy: bool = False  # the likeliest token each time; the temperature then only scales the log-probabilities


class Engine(Protocol):
    """Generates with weights of its own, which change only through `receive`."""

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Group]:
        """One group per prompt, in order."""

    def receive(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over the values of the weights; keeps no reference to them."""

    def weights(self) -> Mapping[str, Tensor]:
        """The weights that the next answer will be drawn with."""

    def random_state(self) -> Tensor:
        """The state of its random numbers."""

    def restore_random_state(self, state: Tensor) -> None:
        """Continues from a state that `random_state` gave."""
