"""Runs a long-running program on this machine with its output in a file; it can be polled and interrupted.

For short commands use `Host.run`. The child has its own process group, so that Ctrl-C reaches it only through
`interrupt`, and `stop` leaves nothing of it running but what only another user may end. The group also ends if this
process is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psutil

from npuenv.host.local import Guard, undisturbed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

_POLL_S = 0.02
_SUDO = "sudo"
_SUDO_S = 10.0  # sudo may look up the user in a network directory


class Running:
    """A started program. Use as a context manager: leaving it stops the complete process group in any case.

    Programs started through sudo are stopped through sudo, which never asks for a password here. If it refuses, the
    program continues: then `poll` still returns None after `interrupt` and `stop`.

    `keep` are descriptors that the program inherits, such as a lock to be held as long as it runs.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log: Path,
        unset: Sequence[str] = (),
        keep: Sequence[int] = (),
    ) -> None:
        self._is_of_sudo = argv[0] == _SUDO
        self._is_beyond_us = False  # the group contains only another user's processes, and sudo does not help
        self._guard = Guard()
        environ = {name: value for name, value in os.environ.items() if name not in unset} | dict(env)
        with log.open("ab") as sink, undisturbed():
            self._guard.begin()
            self._process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                pass_fds=tuple(keep),
            )
            self._guard.hold(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, or None while it runs.

        `Popen` reads the code under a lock, which an interrupt at the wrong moment would leave locked forever.
        """
        with undisturbed():
            return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, or None if it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
        return code

    def interrupt(self, grace_s: float = 5.0) -> None:
        """Sends SIGINT like Ctrl-C, waits, and stops the program if it does not end."""
        if not self._signal(signal.SIGINT) or self.wait(grace_s) is None:
            self.stop()

    def stop(self) -> None:
        """Ends the complete process group and all descendants: SIGTERM, then SIGKILL after two seconds.

        Harmless if all have ended. A signal that arrives meanwhile takes effect afterwards.
        """
        with undisturbed():
            self._stop()

    def _stop(self) -> None:
        strays = self._strays()
        if self._signal(signal.SIGTERM):
            deadline = time.monotonic() + 2.0
            while self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            if self._signal(signal.SIGKILL):
                self._process.wait()
        killed = []
        for stray in strays:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                stray.kill()  # psutil compares the start time first: a reused number is left alone
                killed.append(stray)
        psutil.wait_procs(killed, timeout=2.0)
        self._guard.end()

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __del__(self) -> None:
        # An interrupt can arrive between the start and the `with`; then nothing else would stop the program.
        process = getattr(self, "_process", None)
        if process is not None and process.returncode is None:
            self.stop()

    def _strays(self) -> list[psutil.Process]:
        """Processes outside of the group: descendants, and those that stayed in the session after their parent ended.

        A daemon that Ray starts creates its own group and outlives its parent, but stays in the session.
        """
        strays = {each.pid: each for each in self._descendants()}
        for pid in psutil.pids():
            # The first process of the session is known; if its number is reused later, it belongs to another.
            if pid in strays or pid == self._process.pid or not self._is_of_session(pid):
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                strays[pid] = psutil.Process(pid)
        return list(strays.values())

    def _descendants(self) -> list[psutil.Process]:
        try:
            descendants = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        strays = []
        for process in descendants:
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process.pid) != self._process.pid:
                    strays.append(process)
        return strays

    def _is_of_session(self, pid: int) -> bool:
        """Whether a process is in the session that was created for the program, and no longer in its group."""
        own = self._process.pid
        if self._process.returncode is not None and psutil.pid_exists(own):
            return False  # the number was reused: the kernel does that only once the complete session has ended
        try:
            return os.getsid(pid) == own and os.getpgid(pid) != own
        except (ProcessLookupError, PermissionError):
            return False

    def _signal(self, number: signal.Signals) -> bool:
        """Sends a signal to the complete group, if it exists; False if none of it accepts signals from this user."""
        if self._is_beyond_us:
            return False
        with contextlib.suppress(ProcessLookupError):
            try:
                os.killpg(self._process.pid, number)
            except PermissionError:
                self._is_beyond_us = not (self._is_of_sudo and _sent_by_sudo(self._process.pid, number))
        return not self._is_beyond_us


def _sent_by_sudo(group: int, number: signal.Signals) -> bool:
    argv = (_SUDO, "-n", "kill", "-s", number.name.removeprefix("SIG"), "--", f"-{group}")
    null = subprocess.DEVNULL
    try:
        # Not `run`, which on timeout would kill what cannot be killed, and wait for it.
        return subprocess.Popen(argv, stdin=null, stdout=null, stderr=null).wait(_SUDO_S) == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
