"""A long-running program on this machine whose output goes to a file: started, watched, interrupted.

For short questions use `Host.run`. The child has a process group of its own, so that Ctrl-C reaches it only through
`interrupt`, and nothing it started outlives `stop`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

_POLL_S = 0.02


class Running:
    """A started program. Use as a context manager: leaving it stops the whole process group, whatever happened.

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
        environ = {name: value for name, value in os.environ.items() if name not in unset} | dict(env)
        with log.open("ab") as sink, _undisturbed():
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

    def poll(self) -> int | None:
        """The exit code, or None while it runs.

        `Popen` asks for the code under a lock, which an interrupt at the wrong moment would leave locked for ever.
        """
        with _undisturbed():
            return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, or None when it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
        return code

    def interrupt(self, grace_s: float = 5.0) -> None:
        """Asks it to end as Ctrl-C would, waits, and stops it if it does not."""
        self._signal(signal.SIGINT)
        if self.wait(grace_s) is None:
            self.stop()

    def stop(self) -> None:
        """Ends the whole process group and all descendants: terminate, then kill after two seconds.

        Harmless when all have ended. A signal that comes meanwhile has its effect afterwards.
        """
        with _undisturbed():
            self._stop()

    def _stop(self) -> None:
        strays = self._strays()
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + 2.0
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stray in strays:
            with contextlib.suppress(psutil.NoSuchProcess):
                stray.kill()  # psutil compares the start time first: a number in use again is left alone

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
        """Descendants that left the process group: they made a session of their own, as daemons do."""
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

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # the whole group has ended already


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Holds back the signals that end this process while the block runs, and delivers them after it.

    Handlers and not a mask, which the started program would inherit. Only the main thread is ever interrupted.
    """
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
