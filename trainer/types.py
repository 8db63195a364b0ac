"""The values that pass through the loop: prompts, rollouts, groups of them, and the tensors made from them.

No behaviour here. Shapes in the whole trainer: B rows, T tokens, V vocabulary, P prompts, G rollouts per prompt,
D size of a head, K key-value heads, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Stop(Enum):
    """Why a rollout has no further token."""

    END = "end"  # the model said the end token, which is the last of the rollout's tokens
    LENGTH = "length"  # the allowed number of tokens was reached


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question with its only right answer. Example: `7+5=`, its token ids, `12`."""

    text: str
    tokens: tuple[int, ...]
    expected: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """One answer: generated tokens (the end token included) with the log-probability the sampler gave each."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Stop


@dataclass(frozen=True, slots=True)
class Group:
    """All answers to one prompt; they share a baseline. The same prompt drawn twice makes two groups."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rollouts as tensors: one row each, prompt and answer next to each other, padding on the right only.

    Example, prompt of 2 tokens and answers of 2 and 1: tokens [[4, 11, 5, 18], [4, 11, 18, 17]],
    mask [[0, 0, 1, 1], [0, 0, 1, 0]].
    """

    tokens_BT: Tensor  # int64; the pad token where nothing stands
    mask_BT: Tensor  # bool; true on generated tokens, the end token included
    sampler_logprobs_BT: Tensor  # of the token in the same place; 0 where the mask is off
    advantages_B: Tensor
