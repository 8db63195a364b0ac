"""Measurements of the machinery, collected over a run: mask, published weights, log-probabilities.

Each gives back `passed` together with what was counted; nothing is assumed where nothing was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.types import Batch, Group

# float32, the same sums in another order: 1e-6 to 1e-5 measured; another set of weights: 1e-2 and more.
LOGPROB_LIMIT = 1e-3


def same_bits(left: Tensor, right: Tensor) -> bool:
    """True when shape, dtype and every bit agree: a NaN equals itself and 0.0 is not -0.0."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(_bytes(left), _bytes(right))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def first_difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> str | None:
    """The first name that only one side has or whose tensors differ in a bit; None when there is none."""
    for name in [*left, *(extra for extra in right if extra not in left)]:
        if name not in left or name not in right or not same_bits(left[name], right[name]):
            return name
    return None


@dataclass(slots=True)
class MaskCheck:
    """Compares each batch's mask with what the sampler says it generated."""

    batches: int = 0
    generated_tokens: int = 0
    masked_tokens: int = 0
    rows_with_wrong_start: int = 0

    def add(self, groups: Sequence[Group], batch: Batch) -> None:
        """Counts tokens, and rows whose first masked token does not stand right after the prompt."""
        self.batches += 1
        self.generated_tokens += sum(len(rollout.tokens) for group in groups for rollout in group.rollouts)
        self.masked_tokens += int(batch.mask_BT.sum())
        starts = [len(group.prompt.tokens) for group in groups for _ in group.rollouts]
        # argmax of a row without any true is 0, which is no prompt's length
        first_B = batch.mask_BT.to(torch.int64).argmax(dim=1)
        self.rows_with_wrong_start += int((first_B != torch.tensor(starts, device=first_B.device)).sum())

    def result(self) -> dict[str, Any]:
        is_exact = self.generated_tokens == self.masked_tokens and self.rows_with_wrong_start == 0
        return {
            "passed": self.batches > 0 and is_exact,
            "batches": self.batches,
            "generated_tokens": self.generated_tokens,
            "masked_tokens": self.masked_tokens,
            "rows_with_wrong_start": self.rows_with_wrong_start,
        }


@dataclass(slots=True)
class WeightsCheck:
    """Compares the sampler's weights with the learner's after each publishing, bit for bit."""

    publishes: int = 0
    unequal: int = 0
    first_step: int | None = None  # the first unequal step; None: there is none
    first_name: str | None = None
    tensors: int = 0

    def add(self, step: int, learner: Mapping[str, Tensor], sampler: Mapping[str, Tensor]) -> None:
        self.publishes += 1
        self.tensors = len(learner)
        name = first_difference(learner, sampler)
        if name is not None:
            self.unequal += 1
            if self.first_step is None:
                self.first_step, self.first_name = step, name

    def result(self) -> dict[str, Any]:
        return {
            "passed": self.publishes > 0 and self.unequal == 0,
            "publishes": self.publishes,
            "tensors": self.tensors,
            "unequal": self.unequal,
            "first_step": self.first_step,
            "first_name": self.first_name,
        }


@dataclass(slots=True)
class LogprobsCheck:
    """The largest difference between the sampler's log-probabilities and the learner's, over the run."""

    steps: int = 0
    largest: float = 0.0

    def add(self, difference: float) -> None:
        self.steps += 1
        # written so that a NaN, once seen, stays
        self.largest = self.largest if self.largest > difference or self.largest != self.largest else difference

    def result(self) -> dict[str, Any]:
        return {
            "passed": self.steps > 0 and self.largest <= LOGPROB_LIMIT,
            "steps": self.steps,
            "largest": self.largest,
            "limit": LOGPROB_LIMIT,
        }
