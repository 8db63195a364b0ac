"""The values of the training loop: prompts, rollouts, groups of them, and the tensors made from them.

No behaviour here. Shapes in the whole trainer: P prompts, G rollouts per prompt, B = P*G rows, T tokens of the longest
answer, S tokens of the longest prompt, V vocabulary, H hidden size, K key-value heads, D size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class Stop(Enum):
    """Why a rollout has no further token."""

    END = "end"  # the model sampled the end token, which is the last of the rollout's tokens
    LENGTH = "length"  # the allowed number of tokens was reached
    TERMINATED = "done"  # the environment ended the episode


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question with what is needed to judge an answer. Example: `7+5=`, its token ids, `12`."""

    text: str
    tokens: tuple[int, ...]
    expected: str
    extra: Mapping[str, Any] = field(default_factory=dict)  # for rewards and environments: data_source, seed, ...


@dataclass(frozen=True, slots=True)
class Rollout:
    """One answer: its tokens (the end token included) with the log-probability the engine gave each.

    In an episode of several turns the tokens include the observations in between: there `response_mask` is false and
    the log-probability 0. The tokens are those that were sampled and appended, never text encoded again.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Stop
    response_mask: tuple[bool, ...] = ()  # per token; empty: the model sampled every one
    reward: float | None = None  # an environment's reward for the complete episode; None: the task scores the answer
    is_valid: tuple[bool, ...] = ()  # per turn with an environment: an action could be read from it


@dataclass(frozen=True, slots=True)
class Group:
    """All answers to one prompt; they share a baseline. The same prompt drawn twice makes two groups."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    baseline: float | None = None  # the reward of a greedy answer; remax only
    parts: tuple[tuple[float, ...], ...] = ()  # the components of each answer's reward; gdpo only


@dataclass(frozen=True, slots=True)
class Batch:
    """Rollouts as tensors: each prompt once, each answer one row, both padded on the right only.

    Example, one prompt of 2 tokens with answers of 2 and 1: prompts [[4, 11]], lengths [2], prompt_of [0, 0],
    tokens [[5, 18], [18, 17]], mask [[1, 1], [1, 0]].
    """

    prompts_PS: Tensor  # int64; the pad token where there is none
    prompt_lengths_P: Tensor  # int64
    prompt_of_B: Tensor  # int64, never falling: the row's prompt
    tokens_BT: Tensor  # int64; the pad token where there is none
    mask_BT: Tensor  # bool; true on the model's own tokens, the end token included
    lengths_B: Tensor  # int64; tokens of the row, including observations
    rollout_logprobs_BT: Tensor  # 0 where the mask is off
    rewards_B: Tensor  # of the complete answer
    baselines_B: Tensor | None = None  # of complete batches only, as the next: the reward of a greedy answer
    parts_BK: Tensor | None = None  # the components of the rewards
