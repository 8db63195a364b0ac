"""How a child process ended, read safely with respect to Ctrl-C at any moment; and an end that follows its parent's.

`Popen.poll` and `Popen.wait` take a lock. An interrupt between acquiring it and the block that releases it leaves it
locked, and the next `wait` waits forever. Nothing here takes a lock or reaps the process: it stays a zombie until the
one `Popen.wait` at its end.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprocess import Popen

_POLL_S = 0.005
_SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def exit_code(process: Popen[bytes]) -> int | None:
    """The exit code, or minus the signal's number; None while it runs."""
    if process.returncode is not None:
        return process.returncode
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def wait(process: Popen[bytes], timeout_s: float) -> int | None:
    """The exit code, or None when it still runs after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (code := exit_code(process)) is None and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, _POLL_S))
    return code


def end_with_parent(number: int) -> None:
    """Has the kernel send this process a signal when the thread that started it has ended, whatever way; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0)
