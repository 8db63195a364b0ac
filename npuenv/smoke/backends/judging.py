"""Findings of a framework's run: one for each question of the smoke test, and the one that explains the others.

Values that a framework does not print, such as the sampler's weights, are not checked and reported as such.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.core.finding import Finding, Status
from npuenv.core.messages import Message
from npuenv.matrix.error_patterns import load_error_patterns
from npuenv.smoke.backends.monitor import is_accuracy
from npuenv.smoke.findings import Reading, finding, number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.diagnose.types import Cause
    from npuenv.smoke.run import Record

# From here on a diagnosis counts as certain; below, as possible.
_LIKELY = 0.65
# Metrics that are checked if a run prints them; the first two are required.
_NEEDED = ("critic/score/mean", "actor/grad_norm")
_WATCHED = ("actor/loss", "actor/pg_loss", "actor/kl_loss", "actor/entropy", *_NEEDED)
_UNSEEN = {
    "training.weights-published": "weights",
    "training.mask-exact": "mask",
    "training.logprobs-agree": "logprobs",
    "training.checkpoint-exact": "checkpoint",
}
# From causes to symptoms, as for the built-in trainer.
CAUSES = (
    "backend-cause", "backend-perhaps", "backend-pending", "backend-silent", "killed", "not-completed",
    "ended-in-silence", "not-finite", "backend-constant-reward", "backend-steps-missing", "backend-no-accuracy",
)  # fmt: skip


@dataclass(frozen=True)
class FrameworkRun(Reading):
    """The records of a framework's run."""

    diagnosed: Cause | None = None  # of one that did not complete

    @property
    def backend(self) -> str:
        return str((self.header or {}).get("backend"))

    @property
    def stopped(self) -> Record | None:
        """Why the run was ended from outside; None if it ended by itself."""
        return next((each for each in self.records if each.get("kind") == "stopped"), None)

    @property
    def is_completed(self) -> bool:
        return self.exit_code == 0 and self.stopped is None


def judge(records: Sequence[Record], *, exit_code: int | None, log: str) -> tuple[Finding, ...]:
    """The findings of a run. A log is diagnosed only if the run did not complete."""
    run = FrameworkRun(records, exit_code, log.strip().rpartition("\n")[2])
    if not run.is_completed:
        run = replace(run, diagnosed=_diagnosed(log))
    return (*(question(run) for question in QUESTIONS), *_unseen(run))


def _diagnosed(log: str) -> Cause | None:
    """What a failed run's log shows, judged as a pasted report; None if it shows no cause."""
    from npuenv.diagnose import Verdict, diagnose
    from npuenv.host.report import read_paste

    found = diagnose(read_paste(log.encode("utf-8", "replace")))
    return found.causes[0] if found.verdict is Verdict.CAUSE else None


def _completed(run: FrameworkRun) -> Finding:
    check, stopped, code = "training.completed", run.stopped, run.exit_code
    args: dict[str, object] = {"backend": run.backend, "reason": run.log_tail}
    if stopped is not None and stopped.get("why") == "pending":
        args["demand"] = str(stopped.get("demand"))
        return finding(check, Status.FAIL, "backend-pending", args, evidence=stopped)
    if run.diagnosed is not None:
        cause = load_error_patterns().causes[run.diagnosed.id]
        args["says"] = Message(f"diagnose.cause-{cause.id}", texts=cause.says)
        key = "backend-cause" if run.diagnosed.confidence >= _LIKELY else "backend-perhaps"
        return finding(check, Status.FAIL, key, args, evidence=run.diagnosed.line.shown)
    if stopped is not None:
        return finding(
            check, Status.FAIL, "backend-silent", {**args, "seconds": stopped.get("seconds")}, evidence=stopped
        )
    if code is not None and code < 0:
        return finding(check, Status.FAIL, "killed", {"signal": -code}, evidence=run.log_tail)
    if code != 0:
        key = "not-completed" if run.log_tail else "ended-in-silence"
        shown = "-" if code is None else code
        return finding(check, Status.FAIL, key, {**args, "code": shown}, evidence=run.log_tail)
    return _all_steps(run, check)


def _all_steps(run: FrameworkRun, check: str) -> Finding:
    wanted = run.setting("steps")
    done = len({step.get("step") for step in run.steps})
    args: dict[str, object] = {"backend": run.backend, "done": done, "steps": wanted}
    if not isinstance(wanted, int) or done < wanted:
        return finding(check, Status.FAIL, "backend-steps-missing", args)
    header, end = run.header or {}, run.end or {}
    args |= {"release": header.get("release"), "cards": run.setting("cards")}
    return finding(check, Status.OK, "backend-completed", {**args, "seconds": f"{number(end, 'wall_s'):.0f}"})


def _losses_finite(run: FrameworkRun) -> Finding:
    check, steps = "training.losses-finite", run.steps
    if not steps:
        return finding(check, Status.UNKNOWN, "no-steps")
    for step in steps:
        for name in _WATCHED:
            if name in step and not math.isfinite(number(step, name)):
                args = {"name": name, "value": str(step.get(name)), "step": step.get("step")}
                return finding(check, Status.FAIL, "not-finite", args, evidence=_brief(step))
    missing = next((name for name in _NEEDED if any(name not in step for step in steps)), None)
    if missing is None and not any("actor/loss" in step for step in steps):
        missing = "actor/loss"
    if missing is not None:
        return finding(check, Status.UNKNOWN, "backend-no-number", {"backend": run.backend, "name": missing})
    seen = tuple(name for name in _WATCHED if all(name in step for step in steps))
    return finding(check, Status.OK, "backend-finite", {"names": seen, "steps": len(steps)})


def _reward(run: FrameworkRun) -> Finding:
    check, steps = "training.reward", run.steps
    if not steps:
        return finding(check, Status.UNKNOWN, "no-steps")
    names = ("critic/score/min", "critic/score/max", "critic/score/mean")
    if not all(name in step for step in steps for name in names[:2]):
        args = {"backend": run.backend, "name": "critic/score/min, critic/score/max"}
        return finding(check, Status.UNKNOWN, "backend-no-number", args)
    lows, highs = ([number(step, name) for step in steps] for name in names[:2])
    shown: dict[str, object] = {"low": f"{min(lows):g}", "high": f"{max(highs):g}", "steps": len(steps)}
    # Within one step, where answers to the same prompt are compared: two steps may differ by their prompts.
    if not any(high > low for low, high in zip(lows, highs, strict=True)):
        return finding(check, Status.FAIL, "backend-constant-reward", shown, evidence=_brief(steps[0]))
    return finding(check, Status.OK, "backend-reward", shown)


def _validated(run: FrameworkRun) -> Finding:
    check = "training.validated"
    found = [each for each in run.records if each.get("kind") == "eval"]
    args: dict[str, object] = {"backend": run.backend, "name": "validation"}
    if not found:
        is_missed = run.is_completed and bool(run.steps)
        key = "backend-no-accuracy" if is_missed else "not-measured"
        return finding(check, Status.FAIL if is_missed else Status.UNKNOWN, key, args)
    name = next(name for name in found[-1] if is_accuracy(name))
    values = tuple(f"{number(each, name):.3f}" for each in found if name in each)
    if not all(math.isfinite(number(each, name)) for each in found if name in each):
        details: dict[str, object] = {"name": name, "value": str(found[-1].get(name)), "step": found[-1].get("step")}
        return finding(check, Status.FAIL, "not-finite", details, evidence=_brief(found[-1]))
    return finding(check, Status.OK, "backend-validated", {"name": name, "values": values})


def _unseen(run: FrameworkRun) -> list[Finding]:
    """Findings about values that a framework does not print."""
    args = {"backend": run.backend}
    return [finding(check, Status.SKIP, f"backend-unseen-{what}", args) for check, what in _UNSEEN.items()]


def _brief(record: Record) -> dict[str, object]:
    """The part of a record that a finding is based on; the complete record has a hundred numbers."""
    selected = ("step", *_WATCHED, "critic/score/min", "critic/score/max")
    return {name: value for name, value in record.items() if name in selected or is_accuracy(name)}


QUESTIONS: tuple[Callable[[FrameworkRun], Finding], ...] = (_completed, _losses_finite, _reward, _validated)
