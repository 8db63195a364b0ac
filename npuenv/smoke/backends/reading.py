"""Parses the output of verl and ROLL, line by line, into records of kind `step`, `eval` and `pending`.

Both run in Ray, which adds `(TaskRunner pid=87031) ` and colours to the lines of its processes.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from npuenv.core.json_input import JsonError, loads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
        metrics = loads(line[start:], has_nan=True)
    except JsonError:
        return {}
    return {name: float(value) for name, value in metrics.items() if "/" in name and _is_number(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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
