"""Ctrl-C and its like as KeyboardInterrupt, wherever they come.

It is imported before everything else, and therefore imports next to nothing.
"""

from __future__ import annotations

import _thread
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_AGAIN_S = 0.01


def install_handlers() -> None:
    """Lets what asks this process to end raise KeyboardInterrupt, so that no program it started is left behind.

    A signal that is ignored already stays so: that is what nohup does.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _would_be_lost(frame):
        _thread.start_new_thread(_send_again, (_thread.get_ident(), number))
        return
    raise KeyboardInterrupt


def _send_again(thread: int, number: int) -> None:
    time.sleep(_AGAIN_S)
    signal.pthread_kill(thread, number)


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether we are in what Python calls while it tidies up: it prints what is raised there, and goes on.

    With every module that is imported, a function of that kind looks after its lock.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or (code.co_name == "cb" and "importlib" in code.co_filename):
            return True
        frame = frame.f_back
    return False
