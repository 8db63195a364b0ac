"""Sends the numbers of a run to TensorBoard, wandb or swanlab, in addition to the record file; the last two offline.

`Loggers` follows the records. A logger whose package is missing or that fails is dropped with a `note` record: training
continues, and the record file is complete without any logger. Nothing is imported unless the header's `loggers` setting
names it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

from trainer.metrics.records import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


MAKERS: Mapping[str, Callable[[Path, Mapping[str, Any]], Logger]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "swanlab": _swanlab,
}


def names(setting: str) -> list[str]:
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
            for name in names(str(settings.get("loggers", ""))):
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
        if name not in MAKERS:
            raise ValueError(f"there is no such logger; there are {', '.join(MAKERS)}")
        self._open[name] = MAKERS[name](self._folder, settings)

    def _guard(self, name: str, act: Callable[[], object]) -> Iterator[dict[str, Any]]:
        try:
            # They greet and say farewell; the trainer's stdout is empty and its stderr one line at most.
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                act()
        except Exception as error:  # another project's package: whatever it raises must not end a training
            self._open.pop(name, None)
            yield {"kind": "note", "what": "logger", "logger": name, "reason": _reason(error)}


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


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the package {str(error.name).partition('.')[0]} is not installed"
    return one_line(error)
