"""Checkpoints: the manifest that names the valid state, and where a run resumes and continues its records.

`checkpoint` writes and reads the state itself, `publish` the trained model. A file gets its name only once its bytes
are written. Imports no torch.

On a CPU a resumed run computes the same bits as one that was never stopped, from any step: the state holds the weights,
the moments, the reference policy (or its fingerprint), the random numbers of prompts, answers and mini batches, and the
coefficient of the divergence.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting, Config, differing
from trainer.metrics.records import FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CHECKPOINT, MANIFEST = "checkpoint", "manifest.json"
_EARLIER = "manifest.earlier-run.json"
# A disk with less room than this is full: file systems keep some blocks back.
FULL = 1 << 20
# Under which a sharded state has its tensors when it is loaded.
STORED = "stored"
# The name of an incomplete state; a save takes seconds, so older ones are remains.
UNFINISHED_FILE, UNFINISHED_SHARDS = "state.unfinished", "shards-*.unfinished"

State = dict[str, Any]


class CorruptCheckpoint(Exception):
    """A checkpoint that differs from what was saved; the text says how."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The result of a save; also the manifest."""

    file: str
    sha256: str
    bytes: int
    tensors: int
    step: int | None = None  # of the state, if it names one
    settings: dict[str, Any] = field(default_factory=dict)  # of the run, if the state holds them
    files: dict[str, str] = field(default_factory=dict)  # of a sharded state, whose `file` is a folder: their digests


def read_manifest(folder: Path) -> Saved | None:
    """The last complete manifest; None if nothing was saved. Raises CorruptCheckpoint for one of another format.

    Unknown entries are ignored: a later version may write more.
    """
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Saved(**{each.name: found[each.name] for each in fields(Saved) if each.name in found})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path} is no manifest of a checkpoint: {error}") from error


def name_in_manifest(saved: Saved, folder: Path) -> None:
    """Makes a state that is on the disk the good one, and removes every other, finished or not. Raises OSError."""
    written = folder / "manifest.unfinished"
    try:
        written.write_text(json.dumps(asdict(saved)) + "\n", encoding="utf-8")
    except OSError:
        written.unlink(missing_ok=True)
        raise
    put_in_place(written, folder / MANIFEST)
    for old in (*folder.glob("state-*"), folder / UNFINISHED_FILE, *folder.glob(UNFINISHED_SHARDS)):
        if old.name == saved.file or not old.exists():
            continue
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


def put_in_place(unfinished: Path, place: Path) -> None:
    """Gives a file its name once its bytes are on the disk; then the name survives a crash, too."""
    sync_file(unfinished)
    os.replace(unfinished, place)
    sync_folder(place.parent)


def sync_file(path: Path) -> None:
    """Until its bytes are on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Until the names in it are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems whose folders cannot be synchronised
            raise
    finally:
        os.close(folder)


def flatten(state: State, prefix: str = "") -> dict[str, Any]:
    """Nested names joined by `/`. Example: {"a": {"b": 1}} -> {"a/b": 1}"""
    flat: dict[str, Any] = {}
    for name, value in state.items():
        flat |= flatten(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


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


def find_resume_point(out: Path, config: Config, command: str = "train") -> ResumePoint | None:
    """The point to resume from; None for a new run: `resume=false`, or `auto` if nothing was saved.

    Raises BadSetting if there is nothing to resume from, or if a setting that must stay has changed.
    """
    if config.run.resume == "false":
        return None
    try:
        saved = read_manifest(out / CHECKPOINT)
    except (CorruptCheckpoint, OSError) as error:
        raise BadSetting(f"resume={config.run.resume}: {error}") from error
    if saved is None and config.run.resume == "auto" and not any((out / CHECKPOINT).glob("state-*")):
        return None
    if saved is None or saved.step is None:
        raise BadSetting(f"resume={config.run.resume}: {out / CHECKPOINT} holds no checkpoint of a run to go on from")
    before = {"command": "train", **saved.settings}
    if before.pop("command") != command:
        raise BadSetting(f"resume={config.run.resume}: {out / CHECKPOINT} holds the checkpoint of another kind of run")
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
        saved = read_manifest(out / CHECKPOINT)
    except (CorruptCheckpoint, OSError):
        return None  # called while a run ends; a damaged checkpoint is reported at the next start
    return saved.step if saved is not None else None


def set_manifest_aside(out: Path) -> None:
    """Renames an old run's manifest, so that it is not mistaken for that of a new run before its first save.

    The earlier state itself stays until then.
    """
    earlier = out / CHECKPOINT / MANIFEST
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
