"""Programs that are started here leave nothing behind: see `undisturbed`, `end_group` and `Guard`.

`npuenv.host.local` pays for its imports before anything runs, so those that cost something stand inside functions.
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

_KERNEL_S = 2.0  # for what was killed to be gone: one that hangs in a driver comes out of the kernel late, or never
_SHELL = "/bin/sh"
# Each line is the list of the groups that run; the end of the input is the end of who wrote it.
_WATCH = (
    'trap "" HUP INT TERM; now=; while read -r line; do now=$line; done; for g in $now; do kill -s KILL -- "-$g"; done'
)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Holds back the signals that end this process while the block runs, and delivers them after it.

    Handlers and not a mask, which the started program would inherit. Only the main thread is ever interrupted.
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
    """Kills a child that leads a group, and whoever is in it, and waits for the child a while.

    One that hangs in the kernel is left to it: its end would keep us waiting for ever.
    """
    import subprocess

    # The group is gone when the program and its children ended by themselves; a group id is not reused while the
    # leader is unreaped or members live.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KERNEL_S)


class Guard:
    """Ends the groups that it holds where this process ends without doing so itself, as SIGKILL makes it.

    A shell beside us waits for the end of a pipe that only we hold open. It costs a fifth of a millisecond (measured),
    where the kernel's own signal at a parent's death would need ctypes, and reaches the child alone and not its group.
    """

    def __init__(self) -> None:
        self._groups: list[int] = []
        self._lock = _thread.allocate_lock()
        self._owner = os.getpid()
        self._shell = 0  # its number; 0: none runs
        self._pipe = -1  # our end; -1: nothing has been held yet

    def begin(self) -> None:
        """Starts the shell if none runs: before a program is started, so that only a write is left for `hold`."""
        # Without a shell or descriptors only SIGKILL leaves something behind.
        with self._lock, contextlib.suppress(OSError):
            if self._pipe < 0:
                self._start()

    def hold(self, group: int) -> None:
        """From here on a group does not outlive us."""
        self.begin()
        with self._lock, contextlib.suppress(OSError):
            self._groups.append(group)
            self._write()

    def release(self, group: int) -> None:
        """It has ended: its number may be another's from now on."""
        with self._lock:
            self._groups.remove(group)
            with contextlib.suppress(OSError):  # somebody has ended the shell: what runs here is no worse for it
                self._write()

    def _start(self) -> None:
        inner, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        actions = [(os.POSIX_SPAWN_DUP2, inner, 0), *nothing]
        try:
            # In a group of its own: what ends us, such as Ctrl-C or `timeout`, is not meant for it.
            self._shell = os.posix_spawn(_SHELL, ["sh", "-c", _WATCH], {}, file_actions=actions, setpgroup=0)
        finally:
            os.close(inner)

    def _write(self) -> None:
        os.write(self._pipe, " ".join(map(str, self._groups)).encode() + b"\n")

    def end(self) -> None:
        """Lets all groups go, and the shell with them."""
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
