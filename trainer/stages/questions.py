"""What a run is held against beside `Watch`, and what was found: each question is a `stage` record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainer.metrics.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.distributed import World
    from trainer.metrics.records import Records

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
