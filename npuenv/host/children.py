"""Cleans up child processes: see `undisturbed`, `end_group` and `Guard`.

`npuenv.host.local` needs its imports before anything runs, so the expensive ones are inside functions.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

_KERNEL_S = 2.0  # for killed processes to disappear: one that hangs in a driver leaves the kernel late, or never
_SHELL = "/bin/sh"
# Each line is the list of the running groups; the end of the input means that the writer has ended.
_WATCH = (
    'trap "" HUP INT TERM; now=; while read -r line; do now=$line; done; for g in $now; do kill -s KILL -- "-$g"; done'
)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Delays the signals that end this process until the end of the block.

    With handlers instead of a mask, which the started program would inherit. Only the main thread is interrupted.
    """
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    held = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in held:
            signal.signal(number, lambda number, _: late.append(number))
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for arrived in late[:1]:
            signal.raise_signal(arrived)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a child that leads a group, and the group, and waits for the child a while.

    A child that hangs in the kernel is abandoned: waiting for it would take forever.
    """
    import subprocess

    # The group is gone if the program and its children ended by themselves; a group id is not reused while the leader
    # is unreaped or members exist.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KERNEL_S)


class Guard:
    """Kills the groups that it holds if this process is killed, for example by SIGKILL.

    A helper shell waits for the end of a pipe that only this process holds open. It costs a fifth of a millisecond
    (measured); the kernel's parent-death signal would need ctypes, and reaches only the child and not its group.
    """

    def __init__(self) -> None:
        self._groups: list[int] = []
        self._lock = _thread.allocate_lock()
        self._owner = os.getpid()
        self._shell = 0  # process id; 0: none runs
        self._pipe = -1  # write end; -1: not opened yet

    def begin(self) -> None:
        """Starts the shell if none runs: before a program is started, so that `hold` only has to write."""
        # Without a shell or descriptors only SIGKILL leaves processes behind.
        with self._lock, contextlib.suppress(OSError):
            if self._pipe < 0:
                self._start()

    def hold(self, group: int) -> None:
        """Adds a group: it will not outlive this process."""
        self.begin()
        with self._lock, contextlib.suppress(OSError):
            self._groups.append(group)
            self._write()

    def release(self, group: int) -> None:
        """Removes a group that has ended: its number may be reused."""
        with self._lock:
            self._groups.remove(group)
            with contextlib.suppress(OSError):  # the shell has been ended: the program here continues without it
                self._write()

    def _start(self) -> None:
        inner, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        actions = [(os.POSIX_SPAWN_DUP2, inner, 0), *nothing]
        try:
            # In its own group, because signals to this process, from Ctrl-C or `timeout`, are not for it.
            self._shell = os.posix_spawn(_SHELL, ["sh", "-c", _WATCH], {}, file_actions=actions, setpgroup=0)
        finally:
            os.close(inner)

    def _write(self) -> None:
        os.write(self._pipe, " ".join(map(str, self._groups)).encode() + b"\n")

    def end(self) -> None:
        """Releases all groups, and ends the shell."""
        shell, pipe = self._shell, self._pipe
        self._shell, self._pipe = 0, -1
        if shell and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                os.kill(shell, signal.SIGKILL)
                os.waitpid(shell, 0)
        if pipe >= 0:
            os.close(pipe)

    def __del__(self) -> None:
        self.end()
