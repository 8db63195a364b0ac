"""The smoke test: starts the packaged trainer in a target environment, follows its records and judges them.

The trainer measures and never judges; `judge` turns its records into findings, whose worst is the verdict. What the
records do not hold is unknown, not fine. Start from `start`, `follow` and `judge`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npuenv.checks import Finding, Fix, Status
from npuenv.errors import BadInput, StepFailed
from npuenv.facts.base import Evidence
from npuenv.host.running import Running
from npuenv.host.writing import claimed
from npuenv.messages import Message

Record = Mapping[str, Any]

METRICS = "metrics.jsonl"
LOG = "trainer.log"
SCHEMA = "npuenv.metrics/1"
# One-sided: how improbable an accuracy gain by pure chance must be before it counts as learning.
SIGNIFICANCE = 1e-3
# float32 on one machine: sampler and learner compute the same sums in another order (measured 1e-6 to 1e-5).
LOGPROB_TOLERANCE = 1e-3
# No record for this long means the run hangs. The first operator compilation on a card takes minutes.
SILENCE_LIMIT_S = 600.0
_SOURCE = "the run's own records"
# Byte code is kept on purpose: compiling torch's modules anew costs 1.2 s at every start.
_NEVER_INHERITED = ("PYTHONHOME", "PYTHONSTARTUP", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "CONDA_PREFIX")


@dataclass(frozen=True, slots=True)
class Target:
    """Where the trainer runs: a Python executable, and a folder that takes the records."""

    python: Path
    out: Path


def start(target: Target, settings: Mapping[str, str]) -> Running:
    """Starts `python -m trainer` in the target with a folder on its path that holds only the trainer.

    It starts in an empty working folder, so that no module lying about is imported by accident. Raises BadInput when
    the target has no such Python or the output folder cannot be used.
    """
    if not target.python.is_file():
        raise BadInput(Message("smoke.no-python", {"path": str(target.python)}), Message("smoke.no-python-hint"))
    scene = _prepare(target.out)
    # -P (from 3.11) keeps the working folder off the path; before that the folder is merely empty.
    argv = [str(target.python), "-m", "trainer", "--out", str(target.out.resolve())]
    argv += [f"{key}={value}" for key, value in settings.items()]
    env = {"PYTHONPATH": str(scene / "path"), "PYTHONSAFEPATH": "1"}
    try:
        return Running(argv, cwd=scene / "work", env=env, log=target.out / LOG, unset=_NEVER_INHERITED)
    except OSError as error:
        args = {"path": str(target.python), "reason": error.strerror or str(error)}
        raise BadInput(Message("smoke.bad-python", args), Message("smoke.no-python-hint")) from error


def _prepare(out: Path) -> Path:
    """Makes the output folder with its `scene`: `path` with a link to the trainer alone, and an empty `work`."""
    scene = out / "scene"
    try:
        _refuse_foreign(out)
        for folder in (scene / "path", scene / "work"):
            folder.mkdir(parents=True, exist_ok=True)
        for old in (METRICS, LOG):
            (out / old).unlink(missing_ok=True)
        link = scene / "path" / "trainer"
        link.unlink(missing_ok=True)
        link.symlink_to(Path(__file__).resolve().parent.parent / "trainer", target_is_directory=True)
    except OSError as error:
        raise _bad_out(out, error) from error
    return scene


def _refuse_foreign(out: Path) -> None:
    # A run that was stopped before its first record leaves nothing but the scene and the log.
    if out.is_dir() and any(out.iterdir()) and not ((out / METRICS).exists() or (out / "scene").is_dir()):
        raise BadInput(Message("smoke.foreign-out", {"path": str(out)}), Message("smoke.foreign-out-hint"))


def _bad_out(out: Path, error: OSError) -> BadInput:
    args = {"path": str(out), "reason": error.strerror or str(error)}
    return BadInput(Message("smoke.bad-out", args), Message("smoke.bad-out-hint"))


@contextlib.contextmanager
def sole_use(out: Path) -> Iterator[None]:
    """Keeps a second smoke test away from the folder while the block runs: the two would mix their records.

    Raises BadInput when one is at work there, or the folder cannot be used.
    """
    with contextlib.ExitStack() as stack:
        try:
            _refuse_foreign(out)
            is_mine = stack.enter_context(claimed(str(out / "scene" / "running")))
        except OSError as error:
            raise _bad_out(out, error) from error
        if not is_mine:
            raise BadInput(Message("smoke.busy", {"path": str(out)}), Message("smoke.foreign-out-hint"))
        yield


def follow(running: Running, out: Path, *, silence_limit_s: float = SILENCE_LIMIT_S) -> Iterator[Record]:
    """Each record as the trainer writes it, until it has ended.

    Raises StepFailed when nothing was written for `silence_limit_s`; the caller stops the process.
    """
    path, rest, offset = out / METRICS, b"", 0
    last = time.monotonic()
    while True:
        has_ended = running.wait(0.05) is not None
        fresh = _read_from(path, offset)
        offset += len(fresh)
        *lines, rest = (rest + fresh).split(b"\n")
        for line in lines:
            last = time.monotonic()
            yield parse_record(line.decode("utf-8", "replace"))
        if has_ended and not fresh:
            return
        if time.monotonic() - last > silence_limit_s:
            args = {"seconds": round(silence_limit_s), "log": str(out / LOG)}
            raise StepFailed(Message("smoke.silent", args), Message("smoke.silent-hint"))


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as records:
            records.seek(offset)
            return records.read()
    except FileNotFoundError:
        return b""  # the trainer has not come to its first record yet


def tail_of_log(out: Path) -> str:
    """The last line that the trainer wrote to its log, or an empty text."""
    path = out / LOG
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else ""


def parse_record(line: str) -> Record:
    """One line of metrics.jsonl. A line that is no JSON object becomes a record of kind `unreadable`."""
    try:
        record = json.loads(line)
    except ValueError:
        return {"kind": "unreadable", "line": line}
    return record if isinstance(record, dict) else {"kind": "unreadable", "line": line}


def judge(records: Sequence[Record], *, exit_code: int | None, log_tail: str = "") -> tuple[Finding, ...]:
    """The findings of a run, one for each question the smoke test asks; pure."""
    steps = [record for record in records if record.get("kind") == "step"]
    return (
        _completed(records, exit_code, log_tail),
        _losses_finite(steps),
        _accuracy_rises(records),
        _logprobs_agree(records),
        _measured(records, "mask", "training.mask-exact"),
        _measured(records, "sampler-weights", "training.weights-published"),
        _measured(records, "checkpoint", "training.checkpoint-exact"),
    )


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


def _completed(records: Sequence[Record], exit_code: int | None, log_tail: str) -> Finding:
    end = next((record for record in records if record.get("kind") == "end"), None)
    header = next((record for record in records if record.get("kind") == "header"), None)
    if header is not None and header.get("schema") != SCHEMA:
        return _finding("training.completed", Status.UNKNOWN, "other-schema", {"schema": str(header.get("schema"))})
    if end is not None and end.get("status") == "completed" and exit_code == 0:
        args = {"steps": end.get("steps_done"), "seconds": f"{end.get('wall_s', math.nan):.1f}"}
        return _finding("training.completed", Status.OK, "completed", args)
    reason = (end or {}).get("reason") or log_tail.strip().rpartition("\n")[2]
    if exit_code is not None and exit_code < 0:
        return _finding("training.completed", Status.FAIL, "killed", {"signal": -exit_code}, line=str(reason))
    if exit_code == 0 and not reason:
        return _finding("training.completed", Status.FAIL, "cut-off", {"name": METRICS})
    if not reason:
        return _finding("training.completed", Status.FAIL, "ended-in-silence", {"code": exit_code})
    args = {"code": "-" if exit_code is None else exit_code, "reason": reason}
    return _finding("training.completed", Status.FAIL, "not-completed", args, line=str(reason))


def _losses_finite(steps: Sequence[Record]) -> Finding:
    if not steps:
        return _finding("training.losses-finite", Status.UNKNOWN, "no-steps", {})
    watched = ("loss", "policy_loss", "kl", "entropy", "grad_norm", "reward_mean")
    for step in steps:
        for name in watched:
            value = step.get(name)
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                args = {"name": name, "value": str(value), "step": step.get("step")}
                return _finding("training.losses-finite", Status.FAIL, "not-finite", args, line=json.dumps(dict(step)))
    return _finding("training.losses-finite", Status.OK, "finite", {"steps": len(steps)})


def _accuracy_rises(records: Sequence[Record]) -> Finding:
    before, after = (_answers(records, when) for when in ("before", "after"))
    if before is None or after is None or len(before) != len(after) or not before:
        return _finding("training.accuracy-rises", Status.UNKNOWN, "no-evaluation", {})
    chance = gain_by_chance(before, after)
    args: dict[str, object] = {
        "before": f"{sum(before)}/{len(before)}",
        "after": f"{sum(after)}/{len(after)}",
        "chance": f"{chance:.1e}",
        "limit": f"{SIGNIFICANCE:g}",
    }
    line = f"held-out greedy answers right: {args['before']} before, {args['after']} after; p = {args['chance']}"
    if chance < SIGNIFICANCE:
        return _finding("training.accuracy-rises", Status.OK, "accuracy-rises", args, line=line)
    return _finding("training.accuracy-rises", Status.FAIL, "accuracy-does-not-rise", args, line=line)


def _answers(records: Sequence[Record], when: str) -> list[int] | None:
    for record in records:
        if record.get("kind") == "eval" and record.get("when") == when and record.get("split") == "heldout":
            correct = record.get("correct")
            if isinstance(correct, list) and all(answer in (0, 1) for answer in correct):
                return [int(answer) for answer in correct]
    return None


def _logprobs_agree(records: Sequence[Record]) -> Finding:
    check = "training.logprobs-agree"
    values = [record.get("sampler_learner_logprob_diff_max") for record in records if record.get("kind") == "step"]
    if not values:
        return _finding(check, Status.UNKNOWN, "no-steps", {})
    numbers = [value for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
    largest = max(numbers, default=math.nan) if len(numbers) == len(values) else math.nan
    args = {"largest": f"{largest:.1e}", "limit": f"{LOGPROB_TOLERANCE:g}"}
    if largest <= LOGPROB_TOLERANCE:
        return _finding(check, Status.OK, "logprobs-agree", args)
    return _finding(check, Status.FAIL, "logprobs-differ", args)


def _measured(records: Sequence[Record], name: str, check: str) -> Finding:
    """A yes or no that the trainer measured itself; its record is the evidence."""
    found = [record for record in records if record.get("kind") == "check" and record.get("name") == name]
    if not found:
        return _finding(check, Status.UNKNOWN, "not-measured", {"name": name})
    failed = next((record for record in found if record.get("passed") is not True), None)
    shown = json.dumps({key: value for key, value in (failed or found[-1]).items() if key != "kind"})
    key = name if failed is None else f"{name}-failed"
    return _finding(check, Status.OK if failed is None else Status.FAIL, key, {}, line=shown)


def _finding(check: str, status: Status, key: str, args: Mapping[str, object], *, line: str = "") -> Finding:
    fix = Fix(says=Message(f"smoke.{check.partition('.')[2]}-fix")) if status is Status.FAIL else None
    evidence = (Evidence(METRICS, line),) if line else ()
    return Finding(check, status, Message(f"smoke.{key}", args), evidence, _SOURCE, fix)


def default_out(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for a run's records when none is given: in the user's state folder."""
    environ = os.environ if environ is None else environ
    state = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME", "/"), ".local", "state")
    return Path(state) / "npuenv" / "smoke-train"
