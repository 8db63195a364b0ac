"""One rank of a placed run, within the process that Ray has started for it."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import threading
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from trainer.engines import factory
from trainer.interrupt import Interrupt
from trainer.metrics.progress import Progress
from trainer.placement.generator import RayGenerator, awaited, quit_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from trainer.placement.generator import Place

# The phases in which a rank waits for the others.
_WAITING = ("trainer/distributed.py", "torch/distributed/")
_LAST = 4000  # characters of its output that are saved


class Rank:
    """Runs `python -m trainer` with some arguments in this process, and reports its progress meanwhile."""

    def __init__(
        self, words: Sequence[str], generators: Sequence[Place], sharing: Mapping[str, Any] | None = None
    ) -> None:
        self._words = list(words)
        if generators:
            places = factory.AssignedGenerators(len(generators), lambda at, order: RayGenerator(generators[at], order))
            factory.assign_generators(replace(places, **(sharing or {})))
        self._progress, self._interrupt = Progress(), Interrupt()
        self._thread: int | None = None

    def run(self) -> tuple[int, str]:
        """The exit code, and the end of its stderr."""
        # By name, because the program itself imports this module when it uses cards.
        program = importlib.import_module("trainer.__main__")
        self._thread = threading.get_ident()
        errors = TailOfOutput(sys.stderr)
        try:
            with contextlib.redirect_stderr(errors):
                code = program.main(self._words, progress=self._progress, interrupt=self._interrupt)
        finally:
            self._thread = None
        return code, errors.last

    def beat(self) -> dict[str, Any]:
        """How far it is: a `mark` that changes while it gets on, and `at`, the call it is in.

        `has_learnt`: an update was made in this process, for which everything had to be there. `waits`: that call waits
        for other ranks; `awaits`: the generators that it waits for.
        """
        frames = _frames(self._thread)
        # A copy in one go: the other thread adds parts meanwhile.
        seconds = dict(self._progress.seconds)
        mark = (self._progress.steps_done, sum(seconds.values()))
        own = next((each for each in frames if f"{os.sep}trainer{os.sep}" in each.f_code.co_filename), None)
        at = f"{os.path.basename(own.f_code.co_filename)}:{own.f_lineno} {own.f_code.co_name}" if own else "nowhere"
        waits = any(part in frame.f_code.co_filename for frame in frames[:8] for part in _WAITING)
        begun = {"mark": mark, "has_learnt": "update_actor" in seconds}
        return {**begun, "at": at, "waits": waits, "awaits": awaited()}

    def leave(self, number: int) -> bool:
        """Acts like a signal to this process: whether the run will end after the present step.

        Outside of the steps it will not, and the caller ends the process.
        """
        try:
            self._interrupt.on_signal(number)
        except KeyboardInterrupt:
            return False
        return True

    def quit(self) -> None:
        """Ends this rank's generators, which Ray's head would end if it were there."""
        quit_all()


class TailOfOutput(io.TextIOBase):
    """A text file whose last part is saved."""

    def __init__(self, file: TextIO) -> None:
        self._file, self.last = file, ""

    def write(self, text: str) -> int:
        self._file.write(text)
        self.last = (self.last + text)[-_LAST:]
        return len(text)

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        """The file's: output of child programs goes there too, and is not saved."""
        return self._file.fileno()


def _frames(thread: int | None) -> list[FrameType]:
    """The calls that a thread is in, innermost first."""
    top = sys._current_frames().get(thread) if thread is not None else None
    return [frame for frame, _ in traceback.walk_stack(top)] if top is not None else []
