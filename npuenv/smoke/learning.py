"""Whether the run learnt: held-out accuracy before and after, and what it means if it did not rise. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from npuenv.core.finding import Finding, Status
from npuenv.smoke.reading import Reading, finding, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# One-sided: how improbable an accuracy gain by pure chance must be before it counts as learning.
SIGNIFICANCE = 1e-3
# The settings with which the default run was verified to learn (20 seeds); with others this is not guaranteed.
CALIBRATED_STEPS = 200
CALIBRATED: Mapping[str, object] = {
    "task": "successor",
    "distractors": 1,
    "reward": "partial",
    "reward_function": "",
    "max_new_tokens": 0,
    "path": "",
    "layers": 1,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "intermediate": 128,
    "lora_rank": 0,
    "engine": "builtin",
    "prompts_per_step": 16,
    "rollouts_per_prompt": 8,
    "temperature": 1.0,
}


def gain_by_chance(before: Sequence[int], after: Sequence[int]) -> float:
    """The probability of at least this many gains among the changed answers if each change were a coin toss.

    `before` and `after` are 0 or 1 per prompt, in the same order. One-sided exact sign test on the discordant pairs
    (McNemar's exact test). Example: ten prompts wrong before and right after -> 2**-10.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} answers before, {len(after)} after: not the same prompts")
    gains = sum(1 for old, new in zip(before, after, strict=True) if new > old)
    losses = sum(1 for old, new in zip(before, after, strict=True) if new < old)
    changed = gains + losses
    return float(sum(math.comb(changed, k) for k in range(gains, changed + 1)) / 2**changed)


def accuracy_rises(run: Reading) -> Finding:
    """Whether accuracy rose by more than chance explains; failed if it did not change or fell."""
    check, before, after = "training.accuracy-rises", run.answers("before"), run.answers("after")
    if before is None or after is None or len(before) != len(after) or not before:
        return finding(check, Status.UNKNOWN, "no-evaluation")
    chance = gain_by_chance(before, after)
    args: dict[str, object] = {
        "before": f"{sum(before)}/{len(before)}",
        "after": f"{sum(after)}/{len(after)}",
        "chance": f"{chance:.1e}",
        "limit": f"{SIGNIFICANCE:g}",
    }
    line = f"held-out greedy answers right: {args['before']} before, {args['after']} after; p = {args['chance']}"
    if chance < SIGNIFICANCE:
        return finding(check, Status.OK, "accuracy-rises", args, evidence=line)
    fall = gain_by_chance(after, before)
    if fall < SIGNIFICANCE:
        return finding(check, Status.FAIL, "accuracy-falls", {**args, "chance": f"{fall:.1e}"}, evidence=line)
    return finding(check, Status.FAIL, "accuracy-does-not-rise", args, evidence=line)


def is_calibrated(run: Reading) -> bool:
    """Whether the run had the default length, task, reward, model and rollouts.

    A run with verl's defaults, above all a learning rate for large models, is not expected to learn this task.
    """
    is_default = _steps_done(run) >= CALIBRATED_STEPS and not (run.header or {}).get("assumed")
    return is_default and all(run.setting(name) in (None, value) for name, value in CALIBRATED.items())


def _steps_done(run: Reading) -> int:
    done = number(run.end or {}, "steps_done")
    return int(done) if math.isfinite(done) else len(run.steps)


def too_little(run: Reading, flat: Finding) -> Finding:
    """The finding instead of a failure to learn, if everything else is fine and the run was not expected to learn."""
    task = run.setting("task")
    key = "too-little" if task in (None, CALIBRATED["task"]) else "too-little-task"
    args = {**flat.says.args, "steps": _steps_done(run), "task": task}
    return finding(flat.check, Status.UNKNOWN, key, args, evidence=flat.evidence[0].line)
