"""The interface between the loop and the engines that generate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.types import Rollout

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn."""

    rollouts_per_prompt: int
    max_new_tokens: int
    temperature: float
    is_greedy: bool = False  # the likeliest token each time; the temperature then only scales the log-probabilities
    # One number per prompt, below 2**31, that alone decides its samples, whatever other prompts are in the call; empty:
    # the engine's own random numbers, in the order of its calls.
    seeds: tuple[int, ...] = ()


class Engine(Protocol):
    """Generates with its own weights, which change only through `load_weights`."""

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> list[tuple[Rollout, ...]]:
        """For each prompt, in order, `rollouts_per_prompt` answers; log-probabilities are those at the temperature."""

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over the values of the weights; keeps no reference to them."""

    def weights(self) -> Mapping[str, Tensor]:
        """The weights that the next answer will be drawn with, under the learner's names."""

    def sleep(self) -> None:
        """Releases device memory until `wake`; does nothing if the engine shares the learner's process and memory."""

    def wake(self) -> None:
        """Takes the memory back; the weights are to be received anew after it."""

    def random_state(self) -> Tensor:
        """The state of its random numbers."""

    def restore_random_state(self, state: Tensor) -> None:
        """Continues from a state that `random_state` gave."""
