"""Ctrl-C and other signals: the run ends between two steps with a checkpoint; at the second signal it ends at once.

The first imports are not interrupted either. A signal while Python cleans up, where an exception would be lost, is
handled a moment later. `alarm` interrupts a block that takes too long.
"""

from __future__ import annotations

import _thread
import ctypes
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from trainer.distributed import World

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# One Ctrl-C reaches a rank twice: from the terminal, and from the process that started it.
_SAME_S = 0.5
_AGAIN_S = 0.01


class Interrupted(KeyboardInterrupt):
    """The run ended after a complete step whose state is saved; the text is the signal's name."""

    def __init__(self, signal_name: str, step: int) -> None:
        super().__init__(signal_name)
        self.step = step


@dataclass(slots=True)
class Interrupt:
    """The handler of signals: it raises KeyboardInterrupt, but stores the first one while signals are held."""

    name: str | None = None  # of the remembered signal
    _is_held: bool = False
    _at: float = 0.0

    def install(self) -> None:
        """Takes over the signals of this process."""
        for number in SIGNALS:
            signal.signal(number, self.on_signal)

    def on_signal(self, number: int, frame: FrameType | None = None) -> None:
        """A signal has come."""
        now = time.monotonic()
        if self._is_held and self.name is None:
            self.name, self._at = signal.Signals(number).name, now
        elif self.name is None or now - self._at >= _SAME_S:
            if _would_be_lost(frame):
                _thread.start_new_thread(_send_again, (_thread.get_ident(), number))
                return
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
    def deferred(self) -> Iterator[None]:
        """During the block a first signal waits for `requested`."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def requested(self, world: World) -> str | None:
        """The signal that any rank was sent, so that all leave after the same step; None. A collective."""
        return next(filter(None, world.gather(self.name)), None)


@contextmanager
def given_back() -> Iterator[None]:
    """After it the signals have the effect that they had before it. They are the main thread's alone."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def ignore() -> None:
    """From here on signals are ignored: the rest takes no time. Only the main thread handles them."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether this runs inside a function that Python calls while it cleans up: exceptions there are printed and
    dropped.

    The import of each module runs such a function for its lock.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or (code.co_name == "cb" and "importlib" in code.co_filename):
            return True
        frame = frame.f_back
    return False


def _send_again(thread: int, number: int) -> None:
    time.sleep(_AGAIN_S)
    signal.pthread_kill(thread, number)


class TimeUp(BaseException):
    """Raised by the alarm. No Exception, so that a function's own `except Exception` does not swallow it."""


@contextmanager
def alarm(limit_s: float | None) -> Iterator[None]:
    """Raises TimeUp within the block once it has taken so long; None: never."""
    if limit_s is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        with _alarm_elsewhere(limit_s):
            yield
        return

    def ring(number: int, frame: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _alarm_elsewhere(limit_s: float) -> Iterator[None]:
    """The same for another thread than the main one, which signals do not reach: there a run is within Ray's actor."""
    thread, lock, is_over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def ring() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeUp))

    timer = threading.Timer(limit_s, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_over = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)  # an alarm that was set and not handled yet
