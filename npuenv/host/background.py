"""A long-running program on this machine whose output goes to a file: started, watched, interrupted.

For short questions use `Host.run`. The child has a process group of its own, so that Ctrl-C reaches it only through
`interrupt`, and nothing it started outlives `stop` but what only another user may end. Its group ends with us, too,
where we are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psutil

from npuenv.host.children import Guard, undisturbed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

_POLL_S = 0.02
_SUDO = "sudo"
_SUDO_S = 10.0  # sudo may ask a directory in the network who we are


class Running:
    """A started program. Use as a context manager: leaving it stops the whole process group, whatever happened.

    What sudo started is stopped through sudo, which never asks for a password here. Where it refuses, the program goes
    on: then `poll` still gives None after `interrupt` and `stop`.

    `keep` are descriptors that the program inherits, such as a lock that is to be held as long as it works.
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
        self._is_beyond_us = False  # nothing but another user's processes is in the group, and sudo does not help
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

        `Popen` asks for the code under a lock, which an interrupt at the wrong moment would leave locked for ever.
        """
        with undisturbed():
            return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, or None when it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
        return code

    def interrupt(self, grace_s: float = 5.0) -> None:
        """Asks it to end as Ctrl-C would, waits, and stops it if it does not."""
        if not self._signal(signal.SIGINT) or self.wait(grace_s) is None:
            self.stop()

    def stop(self) -> None:
        """Ends the whole process group and all descendants: terminate, then kill after two seconds.

        Harmless when all have ended. A signal that comes meanwhile has its effect afterwards.
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
                stray.kill()  # psutil compares the start time first: a number in use again is left alone
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
        # An interrupt can fall between the start and the `with`; then nobody else would stop it.
        process = getattr(self, "_process", None)
        if process is not None and process.returncode is None:
            self.stop()

    def _strays(self) -> list[psutil.Process]:
        """What left the process group: descendants, and what stayed in the session after its parent ended.

        A daemon that Ray starts makes a group of its own and outlives its parent; the session still tells whose it is.
        """
        strays = {each.pid: each for each in self._descendants()}
        for pid in psutil.pids():
            # The first process of the session is known; where that number lives on after its end, it is another's.
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
        """Whether a process is of the session that was made for the program, and no longer of its group."""
        own = self._process.pid
        if self._process.returncode is not None and psutil.pid_exists(own):
            return False  # the number is in use again: the kernel gives it out once the whole session has ended
        try:
            return os.getsid(pid) == own and os.getpgid(pid) != own
        except (ProcessLookupError, PermissionError):
            return False

    def _signal(self, number: signal.Signals) -> bool:
        """Sends it to the whole group, if there still is one; False where nobody in it takes signals from us."""
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
        # Not `run`, which would kill at the time's end what cannot be killed, and wait for it.
        return subprocess.Popen(argv, stdin=null, stdout=null, stderr=null).wait(_SUDO_S) == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
