"""Reads the output of verl and ROLL, line by line, into records of kind `step`, `eval` and `pending`.

`follow` yields those of a running framework, and ends a run that hangs. Both frameworks run in Ray, which adds
`(TaskRunner pid=87031) ` and colours to the lines of its processes.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import JsonError, parse_json
from npuenv.smoke.backends.starting import DRIVER_LOGS
from npuenv.smoke.run import LOG, METRICS, read_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from npuenv.host.background import Running
    from npuenv.smoke.backends.starting import InstalledFramework, RunOptions


_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# (autoscaler +6s) Error: No available node types can fulfill resource request {'NPU': 1.0}. Add suitable ...  [2.41]
_UNFULFILLED = re.compile(r"No available node types can fulfill resource requests? (\{[^{}]*\})")
#  {'NPU': 1.0, 'CPU': 3.0} * 8 (STRICT_PACK): 1+ pending placement groups   [ray status, 2.60]
_DEMAND = re.compile(r"^\s*(\{[^{}]*\}[^:]*): \d+\+ pending (?:tasks/actors|placement groups)")
# (TaskRunner pid=222265) step:34 - global_seqlen/min:419336 - actor/pg_loss:0.0423 - critic/score/mean:-0.018 - ...
_VERL = re.compile(r"(?:^|\s)step:(\d+) - (\S.*)")
# With numpy 2 a value is printed as np.float64(0.12).
_WRAPPED = re.compile(r"np\.\w+\((.*)\)")
_ROLL_STEP = re.compile(r"pipeline step (\d+) finished")
_TRAINED = ("actor/", "critic/")


def without_colours(line: str) -> str:
    """A line without colours."""
    return _COLOUR.sub("", line)


def pending(line: str) -> dict[str, Any] | None:
    """The record of a demand that Ray cannot satisfy; None for another line."""
    found = _UNFULFILLED.search(line) or _DEMAND.search(line)
    return {"kind": "pending", "demand": found.group(1).strip()} if found else None


class Verl:
    """Reads the console of verl: a line for each step, `step:0` being the validation before training.

    Source: verl verl/utils/logger/aggregate_logger.py (`concat_dict_to_str`), the same from 0.5.0 on.
    """

    def read(self, line: str) -> Iterator[dict[str, Any]]:
        """The records of one line."""
        found = _VERL.search(line)
        if found:
            yield from _records(int(found.group(1)), _values(found.group(2)))


def _values(text: str) -> dict[str, float]:
    """`actor/lr:2e-06 - actor/loss:np.float64(0.1)` -> {"actor/lr": 2e-06, "actor/loss": 0.1}"""
    found = {}
    for part in text.split(" - "):
        name, _, value = part.strip().rpartition(":")
        wrapped = _WRAPPED.fullmatch(value)
        try:
            found[name] = float(wrapped.group(1) if wrapped else value)
        except ValueError:
            continue  # another process wrote into the line, or it is not a number
    return {name: value for name, value in found.items() if name}


class Roll:
    """Reads ROLL's log: its metrics as one JSON object, then `pipeline step N finished`, which gives their step.

    Source: alibaba/ROLL roll/pipeline/rlvr/rlvr_pipeline.py @1bc12057 and agentic_pipeline.py, `run`.

    Its steps count from 0, the records from 1.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}

    def read(self, line: str) -> Iterator[dict[str, Any]]:
        """The records of one line; a step's come with the line that closes it."""
        ended = _ROLL_STEP.search(line)
        if ended:
            yield from _records(int(ended.group(1)) + 1, self._metrics)
            self._metrics = {}
            return
        self._metrics |= _object(line)


def _object(line: str) -> dict[str, float]:
    """The numbers of the JSON object of metrics at the end of a line; empty if there is none."""
    start = line.find('{"')
    if start < 0 or "/" not in line[start:]:
        return {}
    try:
        metrics = parse_json(line[start:], has_nan=True)
    except JsonError:
        return {}
    return {name: float(value) for name, value in metrics.items() if "/" in name and type(value) in (int, float)}


def _records(step: int, values: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """The record of a training step, and that of its evaluation, if any."""
    accuracy = {name: value for name, value in values.items() if is_accuracy(name)}
    if accuracy:
        yield {"kind": "eval", "step": step, **_plain(accuracy)}
    if any(name.startswith(_TRAINED) for name in values):
        loss = next(
            (values[name] for name in ("actor/loss", "actor/total_loss", "actor/pg_loss") if name in values), None
        )
        shown = {} if loss is None else {"actor/loss": loss}
        yield {"kind": "step", "step": step, **_plain({**values, **shown})}


def is_accuracy(name: str) -> bool:
    """Whether a metric is the accuracy of held-out answers.

    verl renamed it: val/test_score/SOURCE, then val-core/SOURCE/acc/mean@1. ROLL: val/score/mean, val_correct/all/mean.
    """
    return name.startswith(("val-core/", "val/test_score/", "val_correct/")) or (
        name.startswith("val/") and name.endswith("score/mean")
    )


def _plain(values: Mapping[str, float]) -> dict[str, float | str]:
    """JSON has no NaN and no infinity: they become text."""
    return {name: value if math.isfinite(value) else str(value) for name, value in values.items()}


_READERS: dict[str, Callable[[], Verl | Roll]] = {"verl": Verl, "roll": Roll}
SCHEMA = "npuenv.backend-metrics/1"
_POLL_S = 0.1


@dataclass
class _Timeouts:
    """The time of the last output, and since when Ray waits for resources. Updated with each line."""

    silence_limit_s: float
    pending_limit_s: float
    heard: float
    waits_since: float | None = None
    demand: str = ""

    def note(self, record: dict[str, Any] | None) -> None:
        """Updates the times: a demand of Ray's starts the waiting, a step ends it, and other lines change neither."""
        now = time.monotonic()
        if record is not None and record["kind"] == "pending":
            self.waits_since = self.waits_since or now
            self.demand = str(record["demand"])
            return
        self.heard = now
        if record is not None:
            self.waits_since = None

    def over(self) -> dict[str, Any] | None:
        """The reason to end the run now; None while there is none."""
        now = time.monotonic()
        if self.waits_since is not None and now - self.waits_since > self.pending_limit_s:
            return {"kind": "stopped", "why": "pending", "demand": self.demand, "seconds": round(self.pending_limit_s)}
        if now - self.heard > self.silence_limit_s:
            return {"kind": "stopped", "why": "silent", "seconds": round(self.silence_limit_s)}
        return None


def header(found: InstalledFramework, requested: RunOptions, *, cards: int) -> dict[str, Any]:
    """The first record of a run."""
    return {
        "kind": "header",
        "schema": SCHEMA,
        "backend": found.framework,
        "release": found.release,
        "settings": {"steps": requested.steps, "cards": cards, "model": requested.model, **requested.overrides},
    }


def follow(running: Running, out: Path, first: dict[str, Any], requested: RunOptions) -> Iterator[dict[str, Any]]:
    """Each record as the log shows it, also written to the records' file, until the run has ended.

    The last record is `end` with the exit code and the wall time. If this process ended the run, a `stopped` record
    before it gives the reason.
    """
    began = time.monotonic()
    with (out / METRICS).open("w", encoding="utf-8") as saved:
        yield _keep(first, saved)
        for record in _followed(running, out, str(first["backend"]), requested):
            yield _keep(record, saved)
        wall_s = round(time.monotonic() - began, 3)
        yield _keep({"kind": "end", "code": running.poll(), "wall_s": wall_s}, saved)


def _keep(record: dict[str, Any], saved: Any) -> dict[str, Any]:
    saved.write(json.dumps(record) + "\n")
    saved.flush()
    return record


def _followed(running: Running, out: Path, framework: str, requested: RunOptions) -> Iterator[dict[str, Any]]:
    timeouts = _Timeouts(requested.silence_limit_s, requested.pending_limit_s, time.monotonic())
    new_reader = _READERS[framework]
    tails: dict[Path, _Tail] = {}
    seen: set[tuple[object, object]] = set()
    while True:
        has_ended = running.wait(_POLL_S) is not None
        for path in _logs(out):
            tail = tails.setdefault(path, _Tail(path, new_reader()))
            for record in _parsed(tail.fresh(is_last=has_ended), tail.reader, timeouts):
                if record["kind"] == "pending" or (record["kind"], record["step"]) not in seen:
                    seen.add((record["kind"], record.get("step")))
                    yield record
        if has_ended:
            return
        over = timeouts.over()
        if over is not None:
            running.stop()
            yield over
            return


def _logs(out: Path) -> list[Path]:
    """The console's log, and the log file of ROLL's driver: a step may be in either, or in both."""
    return [out / LOG, *sorted((out / "scene" / "data" / DRIVER_LOGS).glob("log_rank_DRIVER*.log"))]


@dataclass
class _Tail:
    """A growing log: the read offset, and the last incomplete line."""

    path: Path
    reader: Verl | Roll
    offset: int = 0
    rest: bytes = b""

    def fresh(self, *, is_last: bool) -> list[bytes]:
        """The lines added since the last call; at the end of the run also an incomplete one."""
        text = read_from(self.path, self.offset)
        self.offset += len(text)
        *lines, self.rest = (self.rest + text).split(b"\n")
        if is_last and self.rest:
            lines, self.rest = [*lines, self.rest], b""
        return lines


def _parsed(lines: Iterable[bytes], read: Verl | Roll, timeouts: _Timeouts) -> Iterator[dict[str, Any]]:
    for raw in lines:
        line = without_colours(raw.decode("utf-8", "replace"))
        demand = pending(line)
        records = [demand] if demand is not None else list(read.read(line))
        if not records:
            timeouts.note(None)
        for record in records:
            timeouts.note(record)
            yield record
