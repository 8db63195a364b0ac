"""What the findings of a run are made of: access to its records, the trainer's stages, and whether it learnt. Pure.

`judge` beside this file asks the questions and selects the finding that explains the others.
"""

from __future__ import annotations

import functools
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Fix, Status
from npuenv.core.messages import Message
from npuenv.smoke.run import METRICS, Record

if TYPE_CHECKING:
    from collections.abc import Callable


_SOURCE = "the run's own records"
# Characters of a reason in a sentence; the evidence has the complete text.
LONGEST_REASON = 120
# A location in a library's own source, of no use to the user: [/__w/pytorch/.../pair.cc:537]
_SOURCE_PLACE = re.compile(r"\[/[^\]\s]*\]\s*")
_SENTENCE_END = re.compile(r"[.!?](?=\s+[A-Z])|。")


@dataclass(frozen=True)
class Reading:
    """The records of a run, and how its process ended. `exit_code` None: it was still running."""

    records: Sequence[Record]
    exit_code: int | None
    log_tail: str

    @cached_property
    def steps(self) -> list[Record]:
        return [record for record in self.records if record.get("kind") == "step"]

    @cached_property
    def header(self) -> Record | None:
        return next((record for record in self.records if record.get("kind") == "header"), None)

    @cached_property
    def end(self) -> Record | None:
        """The last one: with several ranks a first `end` may come before the run is over."""
        return next((record for record in reversed(self.records) if record.get("kind") == "end"), None)

    @property
    def is_completed(self) -> bool:
        return self.end is not None and self.end.get("status") == "completed" and self.exit_code == 0

    @property
    def steps_done(self) -> int:
        done = number(self.end or {}, "steps_done")
        return int(done) if math.isfinite(done) else len(self.steps)

    def setting(self, name: str) -> Any:
        """The value of a setting of the run; None without a header."""
        settings = (self.header or {}).get("settings")
        return settings.get(name) if isinstance(settings, Mapping) else None

    def stage(self, name: str) -> Record | None:
        """The record of a stage: the first that did not pass, else the last; None if there is none."""
        found = [each for each in self.records if each.get("kind") == "stage" and each.get("name") == name]
        return next((each for each in found if each.get("passed") is False), found[-1] if found else None)

    def answers(self, when: str) -> list[int] | None:
        """0 or 1 for each held-out prompt of an evaluation; None if there is no readable one."""
        for record in self.records:
            if record.get("kind") == "eval" and record.get("when") == when and record.get("split") == "heldout":
                correct = record.get("correct")
                if isinstance(correct, list) and all(answer in (0, 1) for answer in correct):
                    return [int(answer) for answer in correct]
        return None


def finding(
    check: str,
    status: Status,
    key: str,
    args: Mapping[str, object] | None = None,
    *,
    evidence: Record | str = "",
    fix_key: str = "",
) -> Finding:
    """A finding with the message `smoke.KEY`; a failure has the next step `smoke.KEY-fix`, or that of `fix_key`."""
    line = evidence if isinstance(evidence, str) else json.dumps({k: v for k, v in evidence.items() if k != "kind"})
    fix = Fix(says=Message(f"smoke.{fix_key or key}-fix")) if status is Status.FAIL else None
    shown = (Evidence(METRICS, line),) if line else ()
    shortened = {name: brief(value) if name == "reason" else value for name, value in (args or {}).items()}
    return Finding(check, status, Message(f"smoke.{key}", shortened), shown, _SOURCE, fix)


def brief(reason: object) -> object:
    """A reason for use in a sentence: shortened, without locations in a library's source and without ASCII art.

    A text longer than `LONGEST_REASON` ends after its first sentence, or with an ellipsis. Other values are returned
    unchanged.
    """
    if not isinstance(reason, str):
        return reason
    plain = "".join(each for each in reason if unicodedata.category(each) != "So" and each not in "\ufe0f\u200d")
    text = " ".join(_SOURCE_PLACE.sub("", plain).split())
    if len(text) <= LONGEST_REASON:
        return text
    ended = _SENTENCE_END.search(text)
    first = text[: ended.start()] if ended else text
    return first if len(first) <= LONGEST_REASON else f"{first[: LONGEST_REASON - 1].rstrip()}…"


def number(record: Record, name: str) -> float:
    """A number of a record, also from a text like "NaN", which JSON cannot represent; NaN for any other value."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except ValueError:
        return math.nan


# The largest error of a product in units of its deviation: rounding of float32 and of 16 bits, with room.
_ARITHMETIC = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 6e-2}


def packages(run: Reading) -> Finding:
    """Ray, tensordict and vllm, if installed."""
    stage = run.stage("packages") or {}
    args = _versions(stage)
    skipped = stage.get("skipped")
    if stage.get("passed") is None and isinstance(skipped, list) and skipped:
        args = {"names": ", ".join(map(str, skipped))}
        return finding("training.packages", Status.SKIP, "packages-skipped", args)
    return _stage_finding(run, "packages", "training.packages", "packages-failed", args, when_null="packages-none")


def imported(run: Reading) -> Finding:
    """torch and, on an NPU, torch_npu."""
    stage = run.stage("import") or {}
    args = {"torch": stage.get("torch"), "seconds": f"{number(stage, 'seconds'):.1f}", "reason": stage.get("reason")}
    return _stage_finding(run, "import", "training.imports", "import-failed", args)


def device(run: Reading) -> Finding:
    """Whether the device exists, and tensors come back from it unchanged."""
    stage = run.stage("device") or {}
    args = {"device": stage.get("card") if stage.get("type") != "cpu" else "cpu", "reason": stage.get("reason")}
    cpu = {"threads": stage.get("num_threads"), "cores": stage.get("cores"), "precision": stage.get("matmul_precision")}
    found = _stage_finding(run, "device", "training.device", "device-failed", args)
    if found.status is Status.OK and stage.get("type") == "cpu":
        return finding(found.check, Status.OK, "device-cpu", cpu, evidence=stage)
    return found


def arithmetic(run: Reading) -> Finding:
    """Products against float64: the record's own result and its errors, each against this file's limits."""
    check, stage = "training.arithmetic", run.stage("matmul")
    if stage is None:
        return finding(check, Status.UNKNOWN, "not-measured", {"name": "matmul"})
    args = {"device": stage.get("device"), "reason": stage.get("reason"), "error": _worst(stage)}
    if stage.get("passed") is not True or not _is_small(stage):
        return finding(check, Status.FAIL, "arithmetic-wrong", args, evidence=stage)
    return finding(check, Status.OK, "arithmetic", args, evidence=stage)


def decoder(run: Reading) -> Finding:
    """A small decoder's log-probabilities and gradient, on the device and on the CPU."""
    stage = run.stage("decoder") or {}
    args = {"forward": f"{number(stage, 'logprob_error'):.1e}", "backward": f"{number(stage, 'gradient_error'):.1e}"}
    return _stage_finding(run, "decoder", "training.gradients", "decoder-wrong", args)


def memory(run: Reading) -> Finding:
    """The memory that the run still needs against the free memory."""
    stage = run.stage("memory") or {}
    args = {
        "needed": f"{number(stage, 'needed_bytes') / (1 << 20):.0f}",
        "free": f"{number(stage, 'free_bytes') / (1 << 20):.0f}",
        "reason": stage.get("reason"),
    }
    failed = "out-of-memory" if stage.get("cause") == "out-of-memory" else "memory-short"
    return _stage_finding(run, "memory", "training.memory", failed, args, when_null="memory-unsaid")


def collective(run: Reading) -> Finding:
    """Whether the ranks' sums are correct."""
    stage = run.stage("collective") or {}
    args = {"ranks": stage.get("ranks"), "reason": stage.get("reason")}
    failed = "collective-failed" if stage.get("cause") is None else "collective-broken"  # during the run
    return _stage_finding(run, "collective", "training.collective", failed, args, when_null="collective-none")


def first_use(run: Reading) -> Finding:
    """The duration of the first generation and the first gradient, if operators are compiled for them."""
    stage = run.stage("warm-up") or {}
    args = {"seconds": f"{number(stage, 'seconds'):.0f}", "reason": stage.get("reason")}
    return _stage_finding(run, "warm-up", "training.first-use", "first-use-failed", args, when_null="nothing-compiled")


def _stage_finding(
    run: Reading, name: str, check: str, failed: str, args: Mapping[str, object], *, when_null: str = ""
) -> Finding:
    """The finding of a stage with the result yes, no or, if `when_null` is a message, not applicable."""
    stage = run.stage(name)
    if stage is None:
        return finding(check, Status.UNKNOWN, "not-measured", {"name": name})
    if stage.get("passed") is True:
        return finding(check, Status.OK, f"{name}-fine", args, evidence=stage)
    if stage.get("passed") is None:
        if when_null:
            return finding(check, Status.SKIP, when_null, args)
        return finding(check, Status.UNKNOWN, "not-measured", {"name": name})
    return finding(check, Status.FAIL, failed, args, evidence=stage)


def _versions(stage: Record) -> dict[str, object]:
    installed = [
        f"{name} {found.get('version')}"
        for name, found in stage.items()
        if isinstance(found, dict) and found.get("version")
    ]
    return {"names": ", ".join(installed), "reason": stage.get("reason")}


def _errors(stage: Record) -> dict[str, float]:
    errors = stage.get("errors")
    return {str(name): number(errors, name) for name in errors} if isinstance(errors, dict) else {}


def _is_small(stage: Record) -> bool:
    errors = _errors(stage)
    is_exact = stage.get("precision") == "highest"
    limits = {**_ARITHMETIC, "float32": _ARITHMETIC["float32"] if is_exact else _ARITHMETIC["bfloat16"]}
    return bool(errors) and all(error <= limits.get(name, 0.0) for name, error in errors.items())


def _worst(stage: Record) -> str:
    return ", ".join(f"{name} {error:.1e}" for name, error in _errors(stage).items()) or "-"


MACHINE: Sequence[Callable[[Reading], Finding]] = (
    packages,
    imported,
    device,
    arithmetic,
    decoder,
    memory,
    collective,
    first_use,
)


# What the trainer recomputed or drew again, and holds against its own steps. Each stage names what is wrong on that
# link's own evidence (`wrong`); what follows from it is not blamed.

# Causes first. The arithmetic of a step is wrong in the trainer's code or on the device; all else can only be the code.
_BY_ARITHMETIC = (
    "learner-logprobs-wrong", "reference-logprobs-wrong", "advantages-wrong", "loss-wrong", "gradients-not-summed",
    "gradient-missing", "gradient-wrong", "clip-wrong", "optimizer-wrong", "critic-wrong", "sampler-logprobs-wrong",
)  # fmt: skip
WRONG = (
    "prompts-repeat", "prompts-differ", "heldout-overlaps", "batch-differs", "rewards-wrong", "mini-batches-differ",
    "order-differs", "reference-not-start", "reference-moved", "state-changed", "lr-off-schedule",
    "noise-off-schedule", "noise-repeats", "kl-coef-off", "answers-cut", "rows-repeat", "samples-repeat",
    "mask-on-observations", "answers-misplaced", "sampler-weights-failed", *_BY_ARITHMETIC, "metrics-wrong",
    "restore-incomplete",
)  # fmt: skip
# The trainer's stages, each a check `training.NAME`.
STAGES = ("prompts", "samples", "heldout", "batch", "mini-batches", "schedules", "reference", "state", "recomputed")


def _second_opinion(run: Reading, name: str) -> Finding:
    check, stage = f"training.{name}", run.stage(name) or {}
    if stage.get("passed") is True:
        return finding(check, Status.OK, f"{name}-fine", {"steps": stage.get("steps")}, evidence=stage)
    if stage.get("passed") is None and stage.get("skipped"):
        return finding(check, Status.SKIP, "no-second-opinion", {"reason": str(stage["skipped"])}, evidence=stage)
    wrong = str(stage.get("wrong"))
    if stage.get("passed") is None or wrong not in WRONG:
        return finding(check, Status.UNKNOWN, "not-measured", {"name": name}, evidence=stage)
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in stage.items()}
    is_code = wrong not in _BY_ARITHMETIC or (run.header or {}).get("device") == "cpu"
    fix_key = "trainer-wrong" if is_code else "step-wrong"
    return finding(check, Status.FAIL, wrong, shown, evidence=stage, fix_key=fix_key)


SECOND_OPINION: Sequence[Callable[[Reading], Finding]] = tuple(
    functools.partial(_second_opinion, name=name) for name in STAGES
)


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
    is_default = run.steps_done >= CALIBRATED_STEPS and not (run.header or {}).get("assumed")
    return is_default and all(run.setting(name) in (None, value) for name, value in CALIBRATED.items())


def too_little(run: Reading, flat: Finding) -> Finding:
    """The finding instead of a failure to learn, if everything else is fine and the run was not expected to learn."""
    task = run.setting("task")
    key = "too-little" if task in (None, CALIBRATED["task"]) else "too-little-task"
    args = {**flat.says.args, "steps": run.steps_done, "task": task}
    return finding(flat.check, Status.UNKNOWN, key, args, evidence=flat.evidence[0].line)
