"""Findings of the second opinion: what the trainer recomputed or drew again, and holds against its own steps. Pure.

Each stage names what is wrong on that link's own evidence (`wrong`); what follows from it is not blamed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from npuenv.core.finding import Finding, Status
from npuenv.smoke.reading import Reading, finding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Causes first. The arithmetic of a step is wrong in the trainer's code or on the device; all else can only be the code.
_ARITHMETIC = (
    "learner-logprobs-wrong",
    "reference-logprobs-wrong",
    "advantages-wrong",
    "loss-wrong",
    "gradients-not-summed",
    "gradient-missing",
    "gradient-wrong",
    "clip-wrong",
    "optimizer-wrong",
    "critic-wrong",
    "sampler-logprobs-wrong",
)
WRONG = (
    "prompts-repeat",
    "prompts-differ",
    "heldout-overlaps",
    "batch-differs",
    "rewards-wrong",
    "mini-batches-differ",
    "order-differs",
    "reference-not-start",
    "reference-moved",
    "state-changed",
    "lr-off-schedule",
    "noise-off-schedule",
    "noise-repeats",
    "kl-coef-off",
    "answers-cut",
    "rows-repeat",
    "samples-repeat",
    "mask-on-observations",
    "answers-misplaced",
    "sampler-weights-failed",
    *_ARITHMETIC,
    "metrics-wrong",
    "restore-incomplete",
)
# The trainer's stages, each a check `training.NAME`.
STAGES = ("prompts", "samples", "heldout", "batch", "mini-batches", "schedules", "reference", "state", "recomputed")


def _finding(run: Reading, name: str) -> Finding:
    check, stage = f"training.{name}", run.stage(name) or {}
    if stage.get("passed") is True:
        return finding(check, Status.OK, f"{name}-fine", {"steps": stage.get("steps")}, evidence=stage)
    if stage.get("passed") is None and stage.get("skipped"):
        return finding(check, Status.SKIP, "no-second-opinion", {"reason": str(stage["skipped"])}, evidence=stage)
    wrong = str(stage.get("wrong"))
    if stage.get("passed") is None or wrong not in WRONG:
        return finding(check, Status.UNKNOWN, "not-measured", {"name": name}, evidence=stage)
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in stage.items()}
    is_code = wrong not in _ARITHMETIC or (run.header or {}).get("device") == "cpu"
    fix_key = "trainer-wrong" if is_code else "step-wrong"
    return finding(check, Status.FAIL, wrong, shown, evidence=stage, fix_key=fix_key)


QUESTIONS: Sequence[Callable[[Reading], Finding]] = tuple(partial(_finding, name=name) for name in STAGES)
