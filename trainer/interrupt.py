"""Ctrl-C and the like: a run is left between two steps, with a checkpoint; at the second signal it is left at once.

The first imports are not left in their middle either: where Python calls back while it cleans up, the exception would
be lost. Those of an engine come later and are not guarded.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer.distributed import World

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# One Ctrl-C reaches a rank twice: from the terminal, and from the process that started it.
_SAME_S = 0.5


class Left(KeyboardInterrupt):
    """The run was left after a whole step whose state is saved; the text is the signal's name."""

    def __init__(self, signal_name: str, step: int) -> None:
        super().__init__(signal_name)
        self.step = step


@dataclass(slots=True)
class Interrupt:
    """What to do with a signal: it raises KeyboardInterrupt, but the first one is remembered while signals are held."""

    name: str | None = None  # of the remembered signal
    _is_held: bool = False
    _at: float = 0.0

    def install(self) -> None:
        """Takes over the signals of this process."""
        for number in SIGNALS:
            signal.signal(number, self.hear)

    def hear(self, number: int, frame: object = None) -> None:
        """A signal has come."""
        now = time.monotonic()
        if self._is_held and self.name is None:
            self.name, self._at = signal.Signals(number).name, now
        elif self.name is None or now - self._at >= _SAME_S:
            raise KeyboardInterrupt(signal.Signals(number).name)

    def hold(self) -> None:
        """From here on a first signal waits for the end of the next `put_off`."""
        self._is_held = True

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Within it a first signal waits for its end, and raises KeyboardInterrupt there."""
        self.hold()
        yield
        self._is_held = False
        if self.name is not None:
            raise KeyboardInterrupt(self.name)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within it a first signal waits for `asked`."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def asked(self, world: World) -> str | None:
        """The signal that any rank was sent, so that all leave after the same step; None. A collective."""
        return next(filter(None, world.gather(self.name)), None)


def ignore() -> None:
    """From here on signals do nothing: what is left to do takes no time. They are the main thread's alone."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
