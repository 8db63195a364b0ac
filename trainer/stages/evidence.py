"""What a second look at a run asks and finds, and the copies it is based on.

Each question is a `stage` record. `Tap` takes copies of what passes between the calls of a step: rows, gradients,
moments, weights. It wraps calls of a finished trainer from outside, as `trainer.faults` does, and changes nothing of
what they do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from trainer.distributed import local
from trainer.metrics.records import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from trainer.algorithms.losses import Totals
    from trainer.distributed import World
    from trainer.metrics.records import Records
    from trainer.models.decoder import ModelOutput
    from trainer.trainer import Trainer
    from trainer.types import Batch

# What may be wrong with each, causes first.
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "prompts": ("prompts-repeat", "prompts-differ"),
    "samples": (
        *("answers-cut", "rows-repeat", "samples-repeat", "mask-on-observations", "answers-misplaced"),
        *("sampler-weights-failed", "sampler-logprobs-wrong"),
    ),
    "heldout": ("heldout-overlaps",),
    "batch": ("batch-differs", "rewards-wrong"),
    "mini-batches": ("mini-batches-differ", "order-differs"),
    "schedules": ("lr-off-schedule", "noise-off-schedule", "noise-repeats", "kl-coef-off"),
    "reference": ("reference-not-start", "reference-moved", "reference-logprobs-wrong"),
    "state": ("state-changed", "restore-incomplete"),
    "recomputed": (
        *("learner-logprobs-wrong", "advantages-wrong", "loss-wrong", "gradients-not-summed", "gradient-missing"),
        *("gradient-wrong", "clip-wrong", "optimizer-wrong", "critic-wrong", "metrics-wrong"),
    ),
}


@dataclass(slots=True)
class Results:
    """Of each question on this rank: what is wrong first, how often it was asked, why it was not."""

    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUESTIONS, 0))
    skipped: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(QUESTIONS))
    broken: dict[str, str] = field(default_factory=dict)  # why an answer could not be computed
    errors: dict[str, float] = field(default_factory=dict)  # the largest of each kind
    spent: Progress = field(default_factory=Progress)

    def fail(self, question: str, wrong: str, **details: Any) -> None:
        """Keeps it, unless something is known that explains it."""
        order, known = QUESTIONS[question], self.failed.get(question)
        if known is None or order.index(wrong) < order.index(known["wrong"]):
            self.failed[question] = {"wrong": wrong, **details}

    def skip(self, questions: tuple[str, ...], reason: str | None) -> None:
        """A reason why these are not asked; the first one stays."""
        for question in questions:
            self.skipped[question] = self.skipped[question] or reason

    def measure(self, name: str, error: float) -> float:
        """The error itself; the largest of each name is in the record."""
        self.errors[name] = max(self.errors.get(name, 0.0), error)
        return error

    def write(self, records: Records, world: World) -> None:
        """A stage for each question, from what any rank found; a collective."""
        ranks = world.gather(self.failed)
        for question in QUESTIONS:
            failed = next((each[question] for each in ranks if question in each), None)
            reason, skipped = self.broken.get(question), self.skipped[question]
            if failed is None and skipped is None and reason is None and not self.asked[question]:
                skipped = "no step could be held against it"
            is_open = failed is None and (skipped is not None or reason is not None)
            values: dict[str, Any] = {"passed": None if is_open else failed is None, "reason": reason}
            if is_open and reason is None:
                values["skipped"] = skipped
            if question == "recomputed":
                values["errors"] = self.errors
            seconds = self.spent.seconds.get(question, 0.0)
            records.write(
                "stage", name=question, seconds=seconds, steps=self.asked[question], **values, **(failed or {})
            )


@dataclass(slots=True)
class Update:
    """One optimizer step as it passed by; tensors are on the CPU, floats in float64, and only of a step looked at."""

    rows: list[int]
    passes: list[int] = field(default_factory=list)  # the rows of its forward passes
    weights: dict[str, Tensor] = field(default_factory=dict)  # that the gradient was taken at
    wide: dict[str, Tensor] = field(default_factory=dict)  # that the optimizer moves: its copies of bfloat16 weights
    first: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)
    logprobs: list[tuple[list[int], Tensor]] = field(default_factory=list)  # rows of each pass, and theirs [rows, T]
    gradients: dict[str, Tensor | None] = field(default_factory=dict)  # summed over the ranks, not clipped
    shares: dict[str, Tensor] = field(default_factory=dict)  # the sum of what each pass adds to the gradient
    sizes: dict[str, Tensor] = field(default_factory=dict)  # and of their absolute values
    metrics: Mapping[str, float] = field(default_factory=dict)
    lr: float = math.nan


# What passed by on the way to a snapshot of the state.
_SEEN = ("rows", "passes", "shares", "sizes", "logprobs")


class Tap:
    """The updates of the step at hand."""

    def __init__(self, trainer: Trainer, spent: Progress, *, on_update: Callable[[], None]) -> None:
        """`on_update` is called before the first mini batch of a step."""
        self._trainer, self._spent, self._on_update = trainer, spent, on_update
        self.looks = False  # whether tensors are copied
        self.updates: list[Update] = []
        self.after: Update | None = None  # the state after the last update, before the engine gets its weights
        self.critic: Update | None = None  # its state before the step
        self._done = 0  # optimizer steps before this one
        self._hooks: list[Any] = []
        self._passes: list[list[int]] = []  # of this update, whose log-probabilities are still to come
        self._wrap()

    def begin(self, *, looks: bool) -> None:
        """A new step."""
        self.looks, self.updates, self.after, self.critic, self._passes = looks, [], None, None, []
        self._done = self._trainer.learner.optimizer_steps
        if looks and self._trainer.learner.critic is not None:
            self.critic = self.of_critic()

    def of_critic(self) -> Update:
        """The critic's present state."""
        optimizer: Any = self._trainer.learner.critic._optimizer  # type: ignore[union-attr]
        return _state_of(optimizer.parameters, optimizer.adamw)

    def _wrap(self) -> None:
        learner, trainer = self._trainer.learner, self._trainer
        mini_batches, micro_batches = learner.split_mini_batches, learner.split_micro_batches
        reduce_metrics, lr, sync_weights = learner.reduce_metrics, learner.lr, trainer.sync_weights
        token_logprobs = learner.model.token_logprobs

        def seen_mini_batches(batch: Batch) -> Iterator[Tensor]:
            self._on_update()
            for rows in mini_batches(batch):
                self.updates.append(Update(rows.tolist()))
                yield rows

        def seen_micro_batches(batch: Batch, rows: Tensor) -> tuple[list[Tensor], Totals]:
            passes, totals = micro_batches(batch, rows)
            if self.updates and not self.updates[-1].passes:  # a part that is split again is no other part
                self.updates[-1].passes = [row for each in passes for row in each.tolist()]
                self._passes = [each.tolist() for each in passes] if self.looks else []
                self._follow_gradients(self.updates[-1])
            return passes, totals

        def seen_token_logprobs(batch: Batch, **settings: Any) -> ModelOutput:
            found = token_logprobs(batch, **settings)
            if self._passes and (rows := self._passes.pop(0)):
                self.updates[-1].logprobs.append((rows, double(found.logprobs_BT)))
            return found

        def seen_metrics(shares: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
            metrics = reduce_metrics(shares)
            while self._hooks:
                self._hooks.pop().remove()
            if self.updates:
                if self.looks:
                    seen = {name: getattr(self.updates[-1], name) for name in _SEEN}
                    self.updates[-1] = replace(self._snapshot(), **seen)
                self.updates[-1].metrics = metrics
            return metrics

        def seen_lr() -> float:
            rate = lr()
            # After the optimizer's step it is the next one's.
            if self.updates and learner.optimizer_steps < self._done + len(self.updates):
                self.updates[-1].lr = rate
            return rate

        def seen_sync(step: int) -> None:
            due = trainer.config.optim.optimizer_steps_per_batch
            is_after = learner.optimizer_steps - self._done == due
            if self.looks and self.after is None and is_after:
                self.after = self._snapshot()
            sync_weights(step)

        tapped: Any = learner
        tapped.split_mini_batches, tapped.split_micro_batches = seen_mini_batches, seen_micro_batches
        tapped.reduce_metrics, tapped.lr = seen_metrics, seen_lr
        tapped.model.token_logprobs = seen_token_logprobs
        tapped = trainer
        tapped.sync_weights = seen_sync

    def _follow_gradients(self, update: Update) -> None:
        """Adds up in float64 what each pass of an update adds to the gradients of its rank."""
        trainer = self._trainer
        # With checkpointing the hooks are called twice, for the block by itself and for the whole.
        is_twice = trainer.config.model.gradient_checkpointing
        if not self.looks or is_twice or trainer.learner.is_sharded or trainer.world.size > 1:
            return

        def add(gradient: Tensor, name: str) -> None:
            share = double(gradient)
            update.shares[name] = update.shares.get(name, 0.0) + share
            update.sizes[name] = update.sizes.get(name, 0.0) + share.abs()

        named = trainer.learner.model.named_parameters()
        self._hooks = [
            each.register_hook(partial(add, name=name))  # type: ignore[no-untyped-call]
            for name, each in named
            if each.requires_grad
        ]

    def _snapshot(self) -> Update:
        with self._spent.phase("recomputed"):
            learner = self._trainer.learner
            return _state_of(dict(learner.model.named_parameters()), learner.optimizer.adamw)


def _state_of(named: Mapping[str, Tensor], adamw: Any) -> Update:
    return Update(
        [],
        weights={name: double(each) for name, each in named.items()},
        wide={name: double(adamw.master.get(name, each)) for name, each in named.items()},
        first={name: double(each) for name, each in adamw.first.items()},
        second={name: double(each) for name, each in adamw.second.items()},
        gradients={name: None if each.grad is None else double(each.grad) for name, each in named.items()},
    )


def double(tensor: Tensor) -> Tensor:
    """A copy on the CPU in float64; of a sharded tensor this rank's rows."""
    return local(tensor).detach().to("cpu", torch.float64, copy=True)


def marks(trainer: Trainer) -> dict[str, list[float]]:
    """The norm of every tensor of the learner's state: cheap, and equal for equal bits."""
    learner = trainer.learner
    parts = {
        "weights": list(learner.parameters().values()),
        "first moments": list(learner.optimizer.adamw.first.values()),
        "second moments": list(learner.optimizer.adamw.second.values()),
    }
    norms = {name: torch._foreach_norm([each.detach() for each in tensors]) for name, tensors in parts.items()}
    return {name: torch.stack([each.float() for each in some]).tolist() for name, some in norms.items()}


def first_other_mark(left: Mapping[str, list[float]], right: Mapping[str, list[float]]) -> str | None:
    """The part of the state in which two marks differ; a NaN equals itself."""
    return next((name for name in left if list(map(str, left[name])) != list(map(str, right[name]))), None)


def whole_state(trainer: Trainer) -> dict[str, Any]:
    """All that the next step depends on, read from where it lies and not from what a checkpoint holds."""
    learner, prompts = trainer.learner, trainer.prompts
    adamw = learner.optimizer.adamw
    critic: Any = learner.critic
    reference = {} if learner.reference is None else dict(learner.reference.named_parameters())
    return {
        "weights": learner.parameters(),
        "first moments": adamw.first,
        "second moments": adamw.second,
        "float32 weights": adamw.master,
        "number of updates": learner.optimizer_steps,
        "KL coefficient": learner.kl_coef,
        "reference policy": {name: local(each) for name, each in reference.items()},
        "critic": {} if critic is None else critic._optimizer.state(),
        "order of groups": learner.generator.get_state(),
        "order of prompts": (prompts.generator.get_state(), prompts._num_taken),
        # Generators in other processes serve both.
        "sampler's random numbers": None if trainer.remote is not None else trainer.engine.random_state(),
    }
