"""Findings of a run's records: one for each question, and the one that explains the others. Pure."""

from __future__ import annotations

import functools
import math
import signal
from typing import TYPE_CHECKING

from npuenv.core.finding import Finding, Status
from npuenv.core.messages import Message
from npuenv.smoke.findings import (
    MACHINE,
    SECOND_OPINION,
    WRONG,
    Reading,
    accuracy_rises,
    finding,
    is_calibrated,
    number,
    too_little,
)
from npuenv.smoke.run import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.smoke.run import Record

    _OfStage = Callable[[Reading, Record], Finding]

SCHEMA = "npuenv.metrics/1"
# float32 on one machine: sampler and learner add in different order (measured 1e-6 to 1e-5).
LOGPROB_TOLERANCE = 1e-3
# With 8-bit products or weights, or another engine: the largest over a run, and the mean of a step.
_ROUNDED_TOLERANCE = (4.0, 0.05)
_KL = "actor/kl_loss"
_WATCHED = ("actor/loss", "actor/pg_loss", _KL, "actor/entropy", "critic/score/mean")
# Estimators whose baseline comes from the other answers to the same prompt.
_BY_GROUP = ("grpo", "rloo", "opo", "reinforce_plus_plus_baseline")

# What the second opinion finds before anything that is measured otherwise.
_EARLIER = (
    "gradients-not-summed", "state-changed", "prompts-repeat", "prompts-differ", "answers-cut", "rows-repeat",
    "rewards-wrong", "sampler-weights-failed",
)  # fmt: skip

# Questions from causes to symptoms: of several failures the first one in this order explains the others.
CAUSES = (
    "other-schema", "import-failed", "device-failed", "arithmetic-wrong", "decoder-wrong", "out-of-memory",
    "collective-failed", "reward-raises", "reward-hangs", "full-disk", "cannot-save", "rank-died", "part-lost",
    "generator-lost", "stale-weights", "collective-broken", "lr-zero", "nan-gradient", "not-finite", "no-end-token",
    "rows-repeat", "same-answers", "no-answer-ends", "answers-cut", "mask-failed", "gradients-not-summed",
    "ranks-differ", "state-changed", "sampler-weights-failed", "prompts-repeat", "prompts-differ", "reward-not-finite",
    "shuffled-reward", "rewards-wrong", "constant-reward", "group-of-one", "group-of-one-raw", "no-signal",
    "rewards-lost", *(wrong for wrong in WRONG if wrong not in _EARLIER), "logprobs-differ", "zero-advantage",
    "steps-left-out", "weights-still", "tensors-still", "validation-differs", "checkpoint-failed", "next-step-differs",
    "no-validation", "memory-short", "packages-failed", "first-use-failed", "stage-broken", "killed",
    "ended-in-silence", "cut-off", "not-completed", "accuracy-falls", "accuracy-does-not-rise",
)  # fmt: skip


def judge(records: Sequence[Record], *, exit_code: int | None, log_tail: str = "") -> tuple[Finding, ...]:
    """The findings of a run, one for each question the smoke test asks."""
    reading = Reading(records, exit_code, log_tail)
    found = tuple(question(reading) for question in QUESTIONS)
    failed = [each.says.key for each in found if each.status is Status.FAIL]
    if failed != ["smoke.accuracy-does-not-rise"] or is_calibrated(reading):
        return found
    return tuple(too_little(reading, each) if each.says.key in failed else each for each in found)


def cause(findings: Sequence[Finding], causes: Sequence[str] = CAUSES) -> Finding | None:
    """The failure that explains the others; without failures the first unknown; None if all is fine."""
    failed = [each for each in findings if each.status is Status.FAIL]
    if failed:
        return min(failed, key=lambda each: causes.index(each.says.key.partition(".")[2]))
    return next((each for each in findings if each.status is Status.UNKNOWN), None)


def _completed(run: Reading) -> Finding:
    check, end = "training.completed", run.end
    if run.header is not None and run.header.get("schema") != SCHEMA:
        return finding(check, Status.UNKNOWN, "other-schema", {"schema": str(run.header.get("schema"))})
    if (died := _dead_rank(run)) is not None:
        return finding(check, Status.FAIL, "rank-died", {"rank": died.get("rank"), "how": _how(died)}, evidence=died)
    if run.is_completed and end is not None:
        args = {"steps": end.get("steps_done"), "seconds": f"{number(end, 'wall_s'):.1f}"}
        return finding(check, Status.OK, "completed", args)
    loss = _loss(run)
    reason = str((loss or end or {}).get("reason") or run.log_tail.strip().rpartition("\n")[2])
    if "No space left on device" in reason:
        return finding(check, Status.FAIL, "full-disk", {"reason": reason}, evidence=reason)
    if run.exit_code is not None and run.exit_code < 0:
        return finding(check, Status.FAIL, "killed", {"signal": -run.exit_code}, evidence=reason)
    if run.exit_code == 0 and not reason:
        return finding(check, Status.FAIL, "cut-off", {"name": METRICS})
    if not reason:
        return finding(check, Status.FAIL, "ended-in-silence", {"code": run.exit_code})
    args = {"code": "-" if run.exit_code is None else run.exit_code, "reason": reason}
    return finding(check, Status.FAIL, "part-lost" if loss else "not-completed", args, evidence=reason)


def _dead_rank(run: Reading) -> Record | None:
    """The record of the rank that ended first; None if rank 0 failed by an error of its own, which its `end` record
    has.
    """
    died = next((each for each in run.records if each.get("kind") == "ranks" and each.get("passed") is False), None)
    if died is None or died.get("rank") is None:
        return None
    is_own_error = died.get("rank") == 0 and number(died, "code") > 0 and run.end is not None
    return None if is_own_error else died


def _loss(run: Reading) -> Record | None:
    """The record of the loss that ended a placed run, if it was no rank: a generator, a node, or a hang of all."""
    found = (each for each in reversed(run.records) if each.get("kind") == "ranks" and each.get("rank") is None)
    return next(found, None)


def _how(died: Record) -> Message | str:
    """How a rank ended: by a signal, or with an exit code."""
    code = died.get("code")
    if not isinstance(code, int):
        return str(died.get("reason"))
    if code >= 0:
        return Message("smoke.rank-ended", {"code": code})
    known = {each.value: each.name for each in signal.Signals}
    return Message("smoke.rank-killed", {"signal": known.get(-code, str(-code))})


def _of_stage(name: str, check: str) -> Callable[[_OfStage], Callable[[Reading], Finding]]:
    """Decorates a question about one stage: the function gets its record if the trainer measured it without failing."""

    def decorate(question: _OfStage) -> Callable[[Reading], Finding]:
        @functools.wraps(question)
        def ask(run: Reading) -> Finding:
            stage = run.stage(name)
            if stage is None or _is_open(stage):
                return _not_measured(check, name, stage)
            return question(run, stage) if stage.get("cause") is None else _broken(check, stage)

        return ask

    return decorate


@_of_stage("generation", "training.generation-ends")
def _generation(run: Reading, stage: Record) -> Finding:
    check = "training.generation-ends"
    args = {"answers": stage.get("answers"), "ended": stage.get("ended"), "groups": stage.get("groups")}
    if stage.get("end_token") is None:
        return finding(check, Status.FAIL, "no-end-token", args, evidence=stage)
    if number(stage, "groups_of_one_text") == number(stage, "groups") and run.setting("rollouts_per_prompt") != 1:
        return finding(check, Status.FAIL, "same-answers", args, evidence=stage)
    if not number(stage, "ended") > 0:
        return finding(check, Status.FAIL, "no-answer-ends", args, evidence=stage)
    return finding(check, Status.OK, "generation", args, evidence=stage)


@_of_stage("reward", "training.reward")
def _reward(run: Reading, stage: Record) -> Finding:
    check, key = "training.reward", _wrong_reward(run, stage)
    args = {
        "answers": stage.get("answers"),
        "low": f"{number(stage, 'lowest'):g}",
        "high": f"{number(stage, 'highest'):g}",
        "useful": stage.get("groups_with_signal"),
        "groups": stage.get("groups"),
        "differ": stage.get("differ"),
        "judged": stage.get("judged_again"),
        "bad": stage.get("not_finite"),
        "lost": stage.get("lost"),
    }
    if key is not None:
        return finding(check, Status.FAIL, key, args, evidence=stage)
    if number(stage, "differ") > 0:
        return finding(check, Status.WARN, "reward-not-repeatable", args, evidence=stage)
    if number(stage, "errors") > 0:
        args |= {"errors": stage.get("errors"), "reason": stage.get("first_error")}
        return finding(check, Status.WARN, "reward-errors", args, evidence=stage)
    return finding(check, Status.OK, "reward-fine", args, evidence=stage)


def _wrong_reward(run: Reading, stage: Record) -> str | None:
    """The message key for wrong rewards; None if they are fine."""
    is_single, convention = run.setting("rollouts_per_prompt") == 1, (run.header or {}).get("convention")
    is_raw = isinstance(convention, dict) and convention.get("group_of_one") == "reward"
    alone = "group-of-one-raw" if is_raw else "group-of-one"
    wrong = {
        "reward-not-finite": number(stage, "not_finite") != 0,
        "shuffled-reward": stage.get("is_reordered") is not False,
        "constant-reward": not number(stage, "highest") > number(stage, "lowest"),
        alone: is_single and run.setting("estimator") in _BY_GROUP,
        "no-signal": not number(stage, "groups_with_signal") > 0 and not is_single,
        "rewards-lost": number(stage, "lost") != 0,
    }
    return next((key for key, is_so in wrong.items() if is_so), None)


@_of_stage("update", "training.weights-move")
def _update(_: Reading, stage: Record) -> Finding:
    check, still = "training.weights-move", stage.get("still")
    args = {
        "lr": f"{number(stage, 'lr_highest'):g}",
        "moved": f"{number(stage, 'moved'):.1e}",
        "bad": stage.get("not_finite"),
        "steps": stage.get("steps"),
    }
    wrong = {
        "lr-zero": not number(stage, "lr_highest") > 0,
        "steps-left-out": number(stage, "not_finite") != 0,
        "weights-still": not 0 < number(stage, "moved") < math.inf,
    }
    for key, is_so in wrong.items():
        if is_so:
            return finding(check, Status.FAIL, key, args, evidence=stage)
    if isinstance(still, list) and still:
        args |= {"count": len(still), "tensors": stage.get("tensors"), "name": still[0]}
        return finding(check, Status.FAIL, "tensors-still", args, evidence=stage, fix_key="step-wrong")
    return finding(check, Status.OK, "weights-move", args, evidence=stage)


def _advantages(run: Reading) -> Finding:
    check = "training.advantages"
    is_single = run.setting("rollouts_per_prompt") == 1  # a group of one never differs from itself
    useful = [step for step in run.steps if is_single or number(step, "groups_with_signal") > 0]
    if not useful:
        return finding(check, Status.UNKNOWN, "no-useful-steps")
    args = {"steps": len(useful)}
    # Different answers give a loss of exactly 0 only by chance, and not in every step.
    if all(number(step, "actor/pg_loss") == 0.0 for step in useful):
        return finding(check, Status.FAIL, "zero-advantage", args, evidence=useful[0])
    return finding(check, Status.OK, "advantages", args)


def _losses_finite(run: Reading) -> Finding:
    check = "training.losses-finite"
    if not run.steps:
        return finding(check, Status.UNKNOWN, "no-steps")
    # Without a reference policy there is no divergence to measure; older records have a 0.
    may_lack = {_KL} if run.setting("kl_coef") == 0 else set()
    for step in run.steps:
        for name in _WATCHED:
            if name not in step and name in may_lack:
                continue
            if not math.isfinite(number(step, name)):
                args = {"name": name, "value": str(step.get(name)), "step": step.get("step")}
                return finding(check, Status.FAIL, "not-finite", args, evidence=step)
        if not math.isfinite(number(step, "actor/grad_norm")):
            args = {"value": str(step.get("actor/grad_norm")), "step": step.get("step")}
            return finding(check, Status.FAIL, "nan-gradient", args, evidence=step)
    return finding(check, Status.OK, "finite", {"steps": len(run.steps)})


def _logprobs_agree(run: Reading) -> Finding:
    check = "training.logprobs-agree"
    if not run.steps:
        return finding(check, Status.UNKNOWN, "no-steps")
    if run.setting("noise_stages"):
        return finding(check, Status.SKIP, "logprobs-noisy")
    if run.setting("off_policy"):
        return finding(check, Status.SKIP, "logprobs-off-policy")
    if run.setting("engine") == "scripted":
        return finding(check, Status.SKIP, "logprobs-scripted")
    largest = _highest(run.steps, "training/rollout_logprobs_diff_max")
    mean = _highest(run.steps, "training/rollout_logprobs_diff_mean")
    limit, mean_limit = _logprob_limits(run)
    args = {
        "largest": f"{largest:.1e}",
        "limit": f"{limit:g}",
        "mean": f"{mean:.1e}",
        "kl": f"{_highest(run.steps, 'training/rollout_kl'):.1e}",
    }
    if largest <= limit and mean <= mean_limit:
        return finding(check, Status.OK, "logprobs-agree", args)
    return finding(check, Status.FAIL, "logprobs-differ", args)


def _logprob_limits(run: Reading) -> tuple[float, float]:
    """The limits of the largest difference and of the mean; the exact ones unless a setting causes rounding."""
    is_rounded = run.setting("dtype") == "bfloat16" or run.setting("matmul_precision") in ("high", "medium")
    rounded = is_rounded or run.setting("engine") == "vllm"
    return _ROUNDED_TOLERANCE if rounded else (LOGPROB_TOLERANCE, LOGPROB_TOLERANCE)


def _highest(steps: Sequence[Record], name: str) -> float:
    """The highest value over the steps; NaN if any step has no finite one."""
    values = [number(step, name) for step in steps]
    return max(values) if all(math.isfinite(value) for value in values) else math.nan


def _validated(run: Reading) -> Finding:
    check, counts = "training.validated", {}
    for record in run.records:
        if record.get("kind") == "eval" and number(record, "num_prompts") > 0:
            counts[record.get("when")] = int(number(record, "num_prompts"))
    stage = run.stage("validation") or {}
    if number(stage, "samples_differ") > 0:
        args = {"differ": stage["samples_differ"], "checked": stage.get("samples_checked")}
        return finding(check, Status.FAIL, "validation-differs", args, evidence=stage, fix_key="trainer-wrong")
    if "before" in counts and "after" in counts:
        args = {"before": counts["before"], "after": counts["after"]}
        return finding(check, Status.OK, "validated", args, evidence=run.stage("validation") or "")
    if not run.is_completed:
        return _not_measured(check, "validation")
    missing = "smoke.moment-both" if not counts else f"smoke.moment-{'after' if 'before' in counts else 'before'}"
    return finding(check, Status.FAIL, "no-validation", {"when": Message(missing)})


def _checkpoint(run: Reading) -> Finding:
    """Whether the state was restored, and whether the next step is identical: the second may fail independently."""
    check, stage = "training.checkpoint-exact", run.stage("checkpoint") or {}
    is_back = stage.get("restored_equal") is True and stage.get("next_step_equal") is False
    if stage.get("cause") is not None or not is_back:
        return _measured("checkpoint", check)(run)
    for other in ("sampler-weights", "ranks-agree"):
        if (run.stage(other) or {"passed": True}).get("passed") is False:
            return finding(check, Status.UNKNOWN, f"next-step-after-{other}", evidence=stage)
    args = {"name": stage.get("next_step_first_different") or "-"}
    return finding(check, Status.FAIL, "next-step-differs", args, evidence=stage)


def _ranks(run: Reading) -> Finding:
    check, stage = "training.ranks-agree", run.stage("ranks-agree")
    ranks = run.setting("ranks")
    if stage is None:
        return finding(check, Status.SKIP, "one-rank") if ranks in (None, 1) else _not_measured(check, "ranks-agree")
    if _is_open(stage) or stage.get("steps") == 0:  # older records have False here
        return _not_measured(check, "ranks-agree", stage)
    if stage.get("passed") is True:
        return finding(check, Status.OK, "ranks-agree", {"ranks": ranks}, evidence=stage)
    args = {"ranks": str(stage.get("ranks")), "step": stage.get("first_step")}
    return finding(check, Status.FAIL, "ranks-differ", args, evidence=stage)


def _measured(name: str, check: str) -> Callable[[Reading], Finding]:
    """A question that the trainer answered itself with yes or no; its record is the evidence."""

    @_of_stage(name, check)
    def question(_: Reading, stage: Record) -> Finding:
        status, key = (Status.OK, name) if stage.get("passed") is True else (Status.FAIL, f"{name}-failed")
        return finding(check, status, key, evidence=stage)

    return question


def _is_open(stage: Record) -> bool:
    """Whether the trainer could not measure: no step ran, or there was no memory for it."""
    return stage.get("passed") is None and stage.get("cause") is None


def _not_measured(check: str, name: str, stage: Record | None = None) -> Finding:
    """`stage`: the trainer's record of it, above all the reason."""
    return finding(check, Status.UNKNOWN, "not-measured", {"name": name}, evidence=stage or "")


def _broken(check: str, stage: Record) -> Finding:
    """A stage in which the run failed; its `cause` says how."""
    key = str(stage.get("cause"))
    args = {"reason": str(stage.get("reason")), "name": str(stage.get("name"))}
    return finding(check, Status.FAIL, key if key in CAUSES else "stage-broken", args, evidence=stage)


QUESTIONS: Sequence[Callable[[Reading], Finding]] = (
    _completed,
    *MACHINE,
    _generation,
    _reward,
    _advantages,
    _measured("mask", "training.mask-exact"),
    *SECOND_OPINION,
    _update,
    _losses_finite,
    _measured("sampler-weights", "training.weights-published"),
    _ranks,
    _logprobs_agree,
    _validated,
    accuracy_rises,
    _checkpoint,
)
