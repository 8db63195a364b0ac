"""Resumes from the checkpoint of an output folder: checks which settings may have changed, and continues its records.

On a CPU a resumed run computes the same bits as one that was never stopped, from any step: the state holds the weights,
the moments, the reference policy (or its fingerprint, see `origin`), the random numbers of prompts, answers and mini
batches, and the coefficient of the divergence.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting, Config, differing
from trainer.metrics.records import FILE
from trainer.saving import manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FOLDER = "checkpoint"
_EARLIER = "manifest.earlier-run.json"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The point to resume a run from."""

    step: int
    changed: Mapping[str, tuple[Any, Any]]  # settings with another value than before, and both values


@dataclass(frozen=True, slots=True)
class ContinuedRecords:
    """What became of the records of the run so far."""

    num_dropped: int  # lines about steps after the checkpoint, and the end of the earlier process
    ended: Mapping[str, Any] | None  # how that one ended, if it could say so
    num_validated: int | None  # prompts of the evaluation before the first step; None: there was none


def find(out: Path, config: Config, command: str = "train") -> ResumePoint | None:
    """The point to resume from; None for a new run: `resume=false`, or `auto` if nothing was saved.

    Raises BadSetting if there is nothing to resume from, or if a setting that must stay has changed.
    """
    if config.run.resume == "false":
        return None
    try:
        saved = manifest.read(out / FOLDER)
    except (manifest.CorruptCheckpoint, OSError) as error:
        raise BadSetting(f"resume={config.run.resume}: {error}") from error
    if saved is None and config.run.resume == "auto" and not any((out / FOLDER).glob("state-*")):
        return None
    if saved is None or saved.step is None:
        raise BadSetting(f"resume={config.run.resume}: {out / FOLDER} holds no checkpoint of a run to go on from")
    before = {"command": "train", **saved.settings}
    if before.pop("command") != command:
        raise BadSetting(f"resume={config.run.resume}: {out / FOLDER} holds the checkpoint of another kind of run")
    changed, refused = differing(before, config)
    if refused:
        differences = ", ".join(f"{name}={now} (was {before})" for name, (before, now) in sorted(refused.items()))
        raise BadSetting(
            f"resume={config.run.resume}: a run goes on with the settings that it began with, not {differences}"
        )
    if config.run.epochs == 0 and config.run.steps < saved.step:
        raise BadSetting(f"resume={config.run.resume}: {saved.step} steps are done, steps={config.run.steps} is less")
    if config.run.epochs:
        changed.pop("steps", None)  # they follow from the epochs, later
    return ResumePoint(saved.step, changed)


def saved_step(out: Path) -> int | None:
    """The step of the existing checkpoint; None if there is no readable one."""
    try:
        saved = manifest.read(out / FOLDER)
    except (manifest.CorruptCheckpoint, OSError):
        return None  # called while a run ends; a damaged checkpoint is reported at the next start
    return saved.step if saved is not None else None


def set_aside(out: Path) -> None:
    """Renames an old run's manifest, so that it is not mistaken for that of a new run before its first save.

    The earlier state itself stays until then.
    """
    earlier = out / FOLDER / manifest.MANIFEST
    if earlier.is_file():
        os.replace(earlier, earlier.with_name(_EARLIER))


def continue_records(out: Path, step: int) -> ContinuedRecords:
    """Removes the records after those of `step`, which will be written again.

    A line that was truncated by a crash is removed with them. Raises OSError.
    """
    path = out / FILE
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    records = [_record(line) for line in lines]
    end = next((at for at, record in enumerate(records) if record is None or _is_later(record, step)), len(lines))
    if end < len(lines):
        unfinished = path.with_name(f"{FILE}.unfinished")
        with unfinished.open("wb") as file:
            file.writelines(lines[:end])
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    remaining = [record for record in records[:end] if record is not None]
    ends = [record for record in records[end:] if record is not None and record.get("kind") == "end"]
    return ContinuedRecords(
        num_dropped=len(lines) - end,
        ended={name: ends[-1].get(name) for name in ("status", "reason")} if ends else None,
        num_validated=_validated(remaining),
    )


def _record(line: bytes) -> dict[str, Any] | None:
    """The record in a line; None for an incomplete line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if line.endswith(b"\n") and isinstance(record, dict) else None


def _is_later(record: Mapping[str, Any], step: int) -> bool:
    kind = record.get("kind")
    if kind == "eval":
        return record.get("when") == "after" or int(record.get("step") or 0) > step
    if kind == "stage" and "cause" in record:
        return True  # why the earlier process ended, which is no failure of the resumed run
    return kind in ("end", "ranks") or (kind == "step" and int(record.get("step") or 0) > step)


def _validated(records: Sequence[Mapping[str, Any]]) -> int | None:
    before = [each for each in records if each.get("kind") == "eval" and each.get("when") == "before"]
    return before[-1].get("num_prompts") if before else None
