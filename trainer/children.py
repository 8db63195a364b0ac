"""How a program that this process started has ended, asked so that Ctrl-C at any moment breaks nothing.

`Popen.poll` and `Popen.wait` take a lock. An interrupt between the taking and the block that gives it back leaves it
taken, and the next `wait` waits for ever. Here nothing is taken and nothing is used up: the program stays to be waited
for until the one `Popen.wait` at its end.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprocess import Popen

_POLL_S = 0.005


def exit_code(process: Popen[bytes]) -> int | None:
    """The exit code, minus the signal's number where one ended it; None while it runs."""
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
