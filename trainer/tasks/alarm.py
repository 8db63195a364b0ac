"""An alarm after a time, in the thread that waits for it."""

from __future__ import annotations

import ctypes
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


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
