"""Checks of the machinery, collected over a run: answers, rewards, mask, update, weights, log-probabilities.

Each returns `passed` together with its counts. If nothing was measured, as in a run that resumes after its last step,
`passed` is None, and so is every number that cannot be computed; counts are 0.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainer.types import Stop
from trainer.weights import same_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from trainer.types import Batch, Group

# float32, the same sums in another order: 1e-6 to 1e-5 measured; another set of weights: 1e-2 and more.
LOGPROB_LIMIT = 1e-3
# Elements of each tensor that are saved to detect whether it changed.
_SAMPLED = 4096
NOTHING = "no step was taken: nothing was measured"


def _verdict(count: int, is_right: bool) -> dict[str, Any]:
    """Whether it passed; None with a reason if nothing was measured."""
    return {"passed": is_right} if count else {"passed": None, "reason": NOTHING}


def first_difference(left: Iterable[tuple[str, Tensor]], right: Mapping[str, Tensor]) -> str | None:
    """The first name that only one side has or whose tensors differ in a bit; None when there is none.

    Goes through all of `left`, holding one tensor at a time: to make it may be a collective.
    """
    first, seen = None, set()
    for name, tensor in left:
        seen.add(name)
        if first is None and (name not in right or not same_bits(tensor, right[name])):
            first = name
    return first or next((extra for extra in right if extra not in seen), None)


@dataclass(slots=True)
class MaskCheck:
    """Compares each batch's mask with the rollouts' own record of the generated tokens."""

    batches: int = 0
    generated_tokens: int = 0
    masked_tokens: int = 0
    wrong_rows: int = 0

    def add(self, groups: Sequence[Group], batch: Batch, *, may_lack: bool = False) -> None:
        """Counts tokens, and rows whose mask is not on exactly the generated tokens; `may_lack`: or on some of them."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        expected = [list(each.response_mask or (True,) * len(each.tokens)) for each in rollouts]
        found = batch.mask_BT.tolist()
        self.batches += 1
        self.generated_tokens += sum(sum(row) for row in expected)
        self.masked_tokens += sum(sum(row) for row in found)
        pairs = zip(expected, found, strict=True)
        for row, masked in pairs:
            extra = [on and not generated for on, generated in zip(masked, row, strict=False)]
            is_other = any(extra) if may_lack else row != masked[: len(row)]
            self.wrong_rows += is_other or any(masked[len(row) :])

    def result(self) -> dict[str, Any]:
        return {**_verdict(self.batches, self.wrong_rows == 0), **asdict(self)}


@dataclass(slots=True)
class WeightsCheck:
    """Compares the engine's weights with the learner's after each publishing, bit for bit."""

    publishes: int = 0
    tensors: int = 0
    unequal: int = 0
    first_step: int | None = None  # the first unequal step; None: there is none
    first_name: str | None = None

    def add(self, step: int, learner: Iterable[tuple[str, Tensor]], engine: Mapping[str, Tensor]) -> None:
        self.publishes += 1
        self.tensors = len(engine)
        name = first_difference(learner, engine)
        if name is not None:
            self.unequal += 1
            if self.first_step is None:
                self.first_step, self.first_name = step, name

    def result(self) -> dict[str, Any]:
        return {**_verdict(self.publishes, self.unequal == 0), **asdict(self)}


@dataclass(slots=True)
class LogprobsCheck:
    """The difference between the engine's log-probabilities and the learner's, over the run."""

    limit: float = LOGPROB_LIMIT  # for the largest
    mean_limit: float = LOGPROB_LIMIT  # for the mean of a step
    steps: int = 0
    largest: float = 0.0
    mean: float = 0.0  # the largest of the steps' means
    kl: float = 0.0  # the largest of the steps' estimates of KL(engine || learner)

    def add(self, difference: float, mean: float = 0.0, kl: float = 0.0) -> None:
        self.steps += 1
        self.largest = worse(self.largest, difference)
        self.mean = worse(self.mean, mean)
        self.kl = worse(self.kl, abs(kl))

    def result(self) -> dict[str, Any]:
        passed = self.largest <= self.limit and self.mean <= self.mean_limit
        unknown = {} if self.steps else dict.fromkeys(("largest", "mean", "kl"))
        return {**_verdict(self.steps, passed), **asdict(self), **unknown}


def worse(known: float, new: float) -> float:
    """The larger one; a NaN, once seen, stays."""
    return known if known > new or known != known else new


@dataclass(slots=True)
class GenerationCheck:
    """How the answers came: how many ended by themselves, and whether a group's answers differ."""

    end_token: int | None
    answers: int = 0
    ended: int = 0
    empty: int = 0
    tokens: int = 0
    groups: int = 0
    groups_of_one_text: int = 0  # groups of several answers that are all the same

    def add(self, groups: Sequence[Group]) -> None:
        for group in groups:
            texts = {rollout.tokens for rollout in group.rollouts}
            self.groups += 1
            self.groups_of_one_text += len(group.rollouts) > 1 and len(texts) == 1
            self.answers += len(group.rollouts)
            self.ended += sum(rollout.stop is not Stop.LENGTH for rollout in group.rollouts)
            self.empty += sum(not rollout.tokens for rollout in group.rollouts)
            self.tokens += sum(len(rollout.tokens) for rollout in group.rollouts)

    def result(self) -> dict[str, Any]:
        passed = self.end_token is not None and self.ended > 0 and self.empty < self.answers
        return {**_verdict(self.answers, passed), **asdict(self)}


@dataclass(slots=True)
class RewardCheck:
    """The rewards over the run: are they finite, do they differ, are they those of their answers, do they arrive."""

    answers: int = 0
    not_finite: int = 0
    lowest: float = float("inf")
    highest: float = float("-inf")
    first_spread: float | None = None  # highest less lowest of the first batch
    groups: int = 0
    groups_with_signal: int = 0
    judged_again: int = 0  # answers of one batch with different rewards that were judged a second time
    differ: int = 0  # of those, how many got another reward
    is_reordered: bool = False  # the rewards of both times are the same numbers, in another order
    lost: int = 0  # rewards that the batch for the learner does not hold

    @property
    def wants_second_opinion(self) -> bool:
        """Whether no batch whose rewards differ has been judged again yet."""
        return self.judged_again == 0

    def add(self, rewards_PG: Tensor, batch: Batch, again_PG: Tensor | None = None) -> None:
        """A step's rewards, as scored, as packed, and as scored again."""
        found = rewards_PG.detach().double().cpu()
        finite = found[torch.isfinite(found)]
        self.answers += found.numel()
        self.not_finite += found.numel() - finite.numel()
        if finite.numel():
            self.lowest = min(self.lowest, float(finite.min()))
            self.highest = max(self.highest, float(finite.max()))
        if self.first_spread is None:
            self.first_spread = float(found.max() - found.min())
        self.groups += len(found)
        self.groups_with_signal += int((found.amax(dim=1) > found.amin(dim=1)).sum())
        packed = batch.rewards_B.detach().double().cpu()
        self.lost += int((packed != found.reshape(-1)).sum()) if packed.numel() == found.numel() else found.numel()
        if again_PG is not None and float(found.max()) > float(found.min()):
            again = again_PG.detach().double().cpu()
            self.judged_again = found.numel()
            self.differ = int((again != found).sum())
            same_numbers = torch.equal(again.reshape(-1).sort().values, found.reshape(-1).sort().values)
            self.is_reordered = self.differ > 0 and same_numbers

    def result(self) -> dict[str, Any]:
        is_right = self.not_finite == 0 and self.lost == 0 and not self.is_reordered
        passed = is_right and self.highest > self.lowest and self.groups_with_signal > 0
        unknown = {} if self.answers > self.not_finite else dict.fromkeys(("lowest", "highest"))
        return {**_verdict(self.answers, passed), **asdict(self), **unknown}


@dataclass(slots=True)
class UpdateCheck:
    """Did the optimizer move the weights: learning rate, gradient, and how far a sample of each tensor went."""

    start: dict[str, tuple[Tensor, float]]  # the first values of each tensor, and the sum of all, as they were
    steps: int = 0
    lr_highest: float = 0.0
    grad_norm_highest: float = 0.0
    grad_norm_lowest: float = float("inf")
    not_finite: int = 0  # steps whose gradient's norm was not finite

    @classmethod
    def begin(cls, weights: Mapping[str, Tensor]) -> UpdateCheck:
        """Keeps the first values of each tensor that should move, and their sum."""
        return cls({name: (_sample(weight).clone(), _sum(weight)) for name, weight in weights.items()})

    def add(self, lr: float, grad_norm: float) -> None:
        self.steps += 1
        self.lr_highest = max(self.lr_highest, lr)
        if not math.isfinite(grad_norm):
            self.not_finite += 1
            return
        self.grad_norm_highest = max(self.grad_norm_highest, grad_norm)
        self.grad_norm_lowest = min(self.grad_norm_lowest, grad_norm)

    def result(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """The result; `moved` is the length of the change divided by the length of the weights at the start."""
        pairs = [(_sample(weights[name]).double(), old.double()) for name, (old, _) in self.start.items()]
        still = [
            name
            for name, (old, total) in self.start.items()
            if torch.equal(_sample(weights[name]), old) and _sum(weights[name]) == total
        ]
        way = math.sqrt(sum(float((new - old).square().sum()) for new, old in pairs))
        size = math.sqrt(sum(float(old.square().sum()) for _, old in pairs))
        moved = way / size if size else way
        has_finite = self.steps > self.not_finite
        return {
            **_verdict(self.steps, self.not_finite == 0 and self.lr_highest > 0 and 0 < moved < math.inf),
            "steps": self.steps,
            "lr_highest": self.lr_highest if self.steps else None,
            "grad_norm_highest": self.grad_norm_highest if has_finite else None,
            "grad_norm_lowest": self.grad_norm_lowest if has_finite else None,
            "not_finite": self.not_finite,
            "moved": moved,
            "tensors": len(pairs),
            "tensors_moved": len(pairs) - len(still),
            # The first step of adapters moves one of the two factors alone.
            "still": still if self.steps > 1 else [],
        }


def _sample(weight: Tensor) -> Tensor:
    return weight.detach().reshape(-1)[:_SAMPLED]


def _sum(weight: Tensor) -> float:
    return float(weight.detach().sum(dtype=torch.float64 if weight.device.type == "cpu" else torch.float32))


@dataclass(slots=True)
class Agreement:
    """Whether all ranks hold the same weights after each step, by their fingerprints."""

    steps: int = 0
    unequal: int = 0
    first_step: int | None = None  # the first unequal step; None: there is none
    ranks: tuple[int, ...] = ()  # that differed from rank 0 there

    def add(self, step: int, marks: Sequence[int]) -> None:
        self.steps += 1
        others = tuple(rank for rank, value in enumerate(marks) if value != marks[0])
        if others:
            self.unequal += 1
            if self.first_step is None:
                self.first_step, self.ranks = step, others

    def result(self) -> dict[str, Any]:
        return {"passed": self.unequal == 0 if self.steps else None, **asdict(self), "ranks": list(self.ranks)}
