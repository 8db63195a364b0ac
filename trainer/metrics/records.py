"""The record file: one JSON object a line, each line flushed, so that another process can follow it.

Followers receive every record: `loggers.Loggers` forwards the numbers, `advice.Advisor` adds a record at the end.
Imports no torch.
"""

from __future__ import annotations

import errno
import json
import math
import os
import traceback
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

FILE = "metrics.jsonl"
# The records of an earlier run in the same folder, unless this one resumes it.
PREVIOUS = "metrics.previous.jsonl"
SCHEMA = "npuenv.metrics/1"


class Follower(Protocol):
    """Receives records. It never raises; its output is a record of its own."""

    def read(self, record: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        """Takes a record that has been written; gives back records to write after it, none as a rule."""

    def finish(self) -> Iterable[Mapping[str, Any]]:
        """Records to write before the last one."""


class Records:
    """An open record file; without `append` an older one is replaced. Raises OSError if it cannot be written."""

    def __init__(self, folder: Path, *, append: bool = False, followers: Sequence[Follower] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if not append and (folder / FILE).is_file() and not (folder / FILE).is_symlink():
            (folder / FILE).replace(folder / PREVIOUS)
        self._followers = list(followers)
        # At the end even where another process has written meanwhile: why a run ended is added from outside.
        self._file: TextIO = open(  # noqa: SIM115
            folder / FILE,
            "a" if append else "w",
            encoding="utf-8",
            opener=lambda path, flags: os.open(path, flags | os.O_APPEND, 0o666),
        )

    def write(self, kind: str, **values: Any) -> None:
        """Appends one record. Floats that JSON cannot hold become the texts `nan`, `inf` and `-inf`."""
        record = plain({"kind": kind, **values})
        if kind == "end":
            for follower in self._followers:
                self._append(follower.finish())
        self._append([record])
        for follower in self._followers:
            self._append(follower.read(record))

    def _append(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            self._file.write(json.dumps(plain(record), allow_nan=False) + "\n")
            self._file.flush()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


class NoRecords(Records):
    """The records of a rank that writes none."""

    def __init__(self) -> None:
        """Opens nothing."""

    def write(self, kind: str, **values: Any) -> None:
        """Writes nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes nothing."""


def one_line(error: BaseException, longest: int | None = None) -> str:
    """An error as the reason in a record, without line breaks. Example: `OSError: No space left on device`."""
    text = " ".join(str(error).split())
    is_cut = longest is not None and len(text) > longest
    return f"{type(error).__name__}: {text[:longest]}{'...' if is_cut else ''}"


def plain(value: Any) -> Any:
    """The value with every float that is not finite as text, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


# The stage of an error, so that a failed run still records where and why.

# A part of a file's path, or of it and a function's name, and the stage that runs it; the innermost match decides.
_PLACES: Mapping[str, str] = {
    "trainer/saving/checkpoint.py": "checkpoint",
    "trainer/tasks/": "reward",
    "trainer/engines/": "generation",
    "trainer/rollouts.py collect": "generation",
    "trainer/rollouts.py demonstrate": "generation",
    "trainer/loop.py update_policy": "update",
    "trainer/learner.py": "update",
    "trainer/distributed.py all_reduce": "collective",
    "trainer/distributed.py _reduce": "collective",
    "trainer/distributed.py gather(": "collective",
    "trainer/distributed.py barrier": "collective",
    "trainer/distributed.py join": "collective",
    "trainer/distributed.py leave": "collective",
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def stage_of_error(error: BaseException) -> dict[str, Any] | None:
    """The values of the `stage` record for an error; None if its stage is recorded already or unknown.

    `cause` names the failure: import-failed, generator-lost, stale-weights, reward-hangs, reward-raises, out-of-memory,
    full-disk, cannot-save, or broken.
    """
    name, cause = _place(error)
    if name is None:
        return None
    reason = " ".join(str(error).split()) or type(error).__name__
    return {"name": name, "seconds": None, "passed": False, "cause": cause, "reason": reason}


def _place(error: BaseException) -> tuple[str | None, str]:
    kind = type(error).__name__
    if kind == "StageFailed":
        return None, ""
    if kind in ("GeneratorLost", "StaleWeights"):
        return "generation", "generator-lost" if kind == "GeneratorLost" else "stale-weights"
    if kind in ("RewardBroken", "RewardHung"):
        return "reward", "reward-hangs" if kind == "RewardHung" else "reward-raises"
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError" or "out of memory" in str(error).lower():
        return "memory", "out-of-memory"
    if isinstance(error, ImportError):
        return "import", "import-failed"
    stage = _innermost(error)
    if stage == "checkpoint" and isinstance(error, OSError):
        return stage, "full-disk" if error.errno in _NO_ROOM else "cannot-save"
    return stage, "broken"


def _innermost(error: BaseException) -> str | None:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        place = f"{frame.filename} {frame.name}(".replace("\\", "/")
        for part, stage in _PLACES.items():
            if part in place:
                return stage
    return None
