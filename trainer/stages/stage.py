"""The result of a stage, and its record."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainer.metrics.records import Records


class StageFailed(RuntimeError):
    """A stage after which the run cannot continue; its record has been written. `name` is the stage's."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Stage:
    """One answer of the machine or of the run."""

    passed: bool | None  # None: unknown, or does not apply; the reason says which
    reason: str | None = None  # None: nothing beyond the measurements
    measured: Mapping[str, Any] = field(default_factory=dict)


def run(name: str, probe: Callable[[], Stage], records: Records) -> Stage:
    """Runs a probe, times it and records the result; an exception means that it did not pass."""
    began = time.perf_counter()
    try:
        stage = probe()
    except Exception as error:  # a missing or failing operator is a result of the probe
        stage = Stage(False, f"{type(error).__name__}: {' '.join(str(error).split())}")
    write(records, name, stage, time.perf_counter() - began)
    return stage


def write(records: Records, name: str, stage: Stage, seconds: float) -> None:
    """One `stage` record."""
    records.write("stage", name=name, seconds=seconds, passed=stage.passed, reason=stage.reason, **dict(stage.measured))


def announce(records: Records, what: str, *, may_take_s: float) -> None:
    """Writes a `note` that a long phase begins, with the number of seconds for which silence is normal."""
    records.write("note", what=what, may_take_s=may_take_s)
