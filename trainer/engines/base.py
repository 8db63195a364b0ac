"""The interface between the loop and the engines that generate; random numbers per prompt instead of per engine.

With a seed per prompt the answers are the same in any engine and with any neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from trainer.models.ops import truncated_logprobs
from trainer.types import Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn."""

    rollouts_per_prompt: int
    max_new_tokens: int
    temperature: float
    is_greedy: bool = False  # the likeliest token each time; the temperature then only scales the log-probabilities
    # Tokens are drawn among the `top_k` likeliest (0: all), and of these the fewest with a share of `top_p`; the
    # log-probabilities are those of that draw. A greedy answer reads neither.
    top_p: float = 1.0
    top_k: int = 0
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


class LocalEngine:
    """What engines share whose model and random numbers are in this process."""

    _generator: torch.Generator

    def sleep(self) -> None:
        """Nothing: the weights stay, and caches live only within `generate`."""

    def wake(self) -> None:
        """Nothing: `sleep` released nothing."""

    def random_state(self) -> Tensor:
        return self._generator.get_state()

    def restore_random_state(self, state: Tensor) -> None:
        self._generator.set_state(state)


# The largest seed that every engine takes.
_LARGEST_SEED = 2**31 - 1


def new_seeds(count: int, generator: torch.Generator) -> tuple[int, ...]:
    """A seed for each of `count` prompts."""
    return tuple(torch.randint(_LARGEST_SEED, (count,), generator=generator).tolist())


def uniform(sampling: Sampling, num_prompts: int, *, dtype: torch.dtype, device: torch.device | str) -> Tensor | None:
    """A number from 0 to 1, the latter excluded, for each token of each answer [T, P*G]; None without seeds."""
    if not sampling.seeds or sampling.is_greedy:
        return None
    if len(sampling.seeds) != num_prompts:
        raise ValueError(f"{len(sampling.seeds)} seeds for {num_prompts} prompts")
    shape = (sampling.max_new_tokens, sampling.rollouts_per_prompt)
    numbers = [torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) for seed in sampling.seeds]
    return torch.cat(numbers, dim=1).to(device)


def sampling_logprobs(logits_RV: Tensor, sampling: Sampling) -> Tensor:
    """The log-probability of each token of being drawn; of a greedy answer that at the temperature."""
    top_p, top_k = (1.0, 0) if sampling.is_greedy else (sampling.top_p, sampling.top_k)
    return truncated_logprobs(logits_RV, sampling.temperature, top_p, top_k)


def pick(probs_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """The token of each row in whose interval of the cumulated probabilities the row's number falls.

    Intervals are half-open, so a token with probability 0 is never drawn.
    """
    bounds_RV = probs_RV.cumsum(dim=1)
    return (bounds_RV[:, :-1] <= uniform_R[:, None] * bounds_RV[:, -1:]).sum(dim=1)


def until_end(tokens: list[int], logprobs: list[float], end: int | None) -> Rollout:
    """One answer of the tokens up to the first end token, that included, or of all of them."""
    if end is None or end not in tokens:
        return Rollout(tuple(tokens), tuple(logprobs), Stop.LENGTH)
    length = tokens.index(end) + 1
    return Rollout(tuple(tokens[:length]), tuple(logprobs[:length]), Stop.END)
