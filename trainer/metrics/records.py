"""The record file: one JSON object a line, each line flushed, so that another process can follow it. No torch.

`Progress` has the times that go into it. Followers receive every record: `Loggers` sends the numbers to TensorBoard,
wandb or swanlab as well, the last two offline, `advice.Advisor` adds a record at the end. A logger whose package is
missing or that fails is dropped with a `note` record: training continues, and the record file is complete without any
logger. Nothing is imported unless the header's `loggers` setting names it.
"""

from __future__ import annotations

import errno
import importlib
import json
import math
import os
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from trainer.metrics.meter import Meter


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
    "trainer/generator.py build_": "generation",
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


# The times of a run.


@dataclass(slots=True)
class Progress:
    """Started when it is made; times in seconds."""

    started: float = field(default_factory=time.perf_counter)
    steps_done: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by phase, over the run so far
    settle: Callable[[], None] | None = None  # waits for the device's queued work; None: nothing is queued
    meter: Meter | None = None  # of operations and memory; None: they are not measured
    _before: dict[str, float] = field(default_factory=dict)

    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time of the block to a named phase, however it ends."""
        began = time.perf_counter()
        try:
            yield
            if self.settle is not None:
                self.settle()
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def since_last_step(self) -> dict[str, float]:
        """Seconds by phase since the last call; phases without any are left out."""
        spent = {name: total - self._before.get(name, 0.0) for name, total in self.seconds.items()}
        self._before = dict(self.seconds)
        return {name: value for name, value in spent.items() if value > 0}


# Other loggers.

_PROJECT = "npuenv"


# Takes the finite numbers of one step; puts everything on disk. Either may raise anything.
Logger = tuple[Callable[[int, Mapping[str, float]], object], Callable[[], object]]


def _tensorboard(folder: Path, settings: Mapping[str, Any]) -> Logger:
    """Event files in FOLDER/tensorboard."""
    del settings  # the record file has them; as hyper-parameters TensorBoard shows only those of finished runs
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(log_dir=str(folder / "tensorboard"))

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _wandb(folder: Path, settings: Mapping[str, Any]) -> Logger:
    """An offline run in FOLDER/wandb, for `wandb sync`. Prints nothing and reads no other process's output."""
    wandb = importlib.import_module("wandb")
    quiet = wandb.Settings(silent=True, console="off")
    run = wandb.init(mode="offline", project=_PROJECT, dir=str(folder), config=dict(settings), settings=quiet)
    return lambda step, values: run.log(dict(values), step=step), run.finish


def _swanlab(folder: Path, settings: Mapping[str, Any]) -> Logger:
    """An offline run in FOLDER/swanlog, for `swanlab sync`."""
    swanlab = importlib.import_module("swanlab")
    (folder / "swanlog").mkdir(exist_ok=True)  # swanlab refuses a folder that does not exist
    swanlab.init(project=_PROJECT, mode="offline", logdir=str(folder / "swanlog"), config=dict(settings))
    return lambda step, values: swanlab.log(dict(values), step=step), swanlab.finish


LOGGER_MAKERS: Mapping[str, Callable[[Path, Mapping[str, Any]], Logger]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "swanlab": _swanlab,
}


def logger_names(setting: str) -> list[str]:
    """The names in the `loggers` setting. Example: `tensorboard, wandb` -> tensorboard and wandb."""
    return [word.strip() for word in setting.split(",") if word.strip()]


class Loggers:
    """All loggers that the header names; a follower of records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, Logger] = {}
        self._step = 0

    def read(self, record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Starts loggers at the header, hands on the numbers of steps and evaluations; notes of what broke."""
        kind = record.get("kind")
        if kind == "header":
            settings = record.get("settings") or {}
            for name in logger_names(str(settings.get("loggers", ""))):
                yield from self._guard(name, partial(self._start, name, settings))
        elif kind in ("step", "eval") and self._open:
            # The evaluation after training has no step; wandb ignores values for a past one.
            self._step = max(self._step, int(record.get("step") or 0))
            values = numbers(record)
            for name, (log, _) in list(self._open.items()):
                yield from self._guard(name, partial(log, self._step, values))

    def finish(self) -> Iterator[dict[str, Any]]:
        """Closes what is open."""
        for name, (_, close) in list(self._open.items()):
            yield from self._guard(name, close)
        self._open.clear()

    def _start(self, name: str, settings: Mapping[str, Any]) -> None:
        if name not in LOGGER_MAKERS:
            raise ValueError(f"there is no such logger; there are {', '.join(LOGGER_MAKERS)}")
        self._open[name] = LOGGER_MAKERS[name](self._folder, settings)

    def _guard(self, name: str, act: Callable[[], object]) -> Iterator[dict[str, Any]]:
        try:
            # They greet and say farewell; the trainer's stdout is empty and its stderr one line at most.
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                act()
        except Exception as error:  # another project's package: whatever it raises must not end a training
            self._open.pop(name, None)
            yield {"kind": "note", "what": "logger", "logger": name, "reason": _logger_error(error)}


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record under their names; those of an evaluation without a group name get `eval/`.

    A value that is not finite is a text in the record, and is left out.
    """
    is_step = record.get("kind") == "step"
    found = {
        name if is_step or "/" in name else f"eval/{name}": value
        for name, value in record.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step"
    }
    return {**found, "training/global_step": int(record["step"])} if is_step else found


def _logger_error(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the package {str(error.name).partition('.')[0]} is not installed"
    return one_line(error)
