"""A generator that begins as a copy of this process: a process as any other, without the 2 s of its imports."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast

from trainer import generator

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from pathlib import Path

    from trainer.engines.process import Arena

_MOST_FILES = 4096


@dataclass
class _Process:
    """What `ProcessGenerator` needs of a Popen."""

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def forked(arena: Arena, log: Path | None, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """For `ProcessGenerator(start=...)`; the environment stays this process's."""
    (asked, asks), (told, tells) = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads: none of them is needed there
        pid = os.fork()
    if pid == 0:
        _serve(asked, tells, arena.fd, log)
    os.close(asked)
    os.close(tells)
    return cast("subprocess.Popen[bytes]", _Process(pid, os.fdopen(asks, "wb"), os.fdopen(told, "rb")))


def _serve(asked: int, tells: int, shared: int, log: Path | None) -> None:
    """Never comes back. Nothing of the test's is tidied up here: a file's number may be another file's by now."""
    code = 70
    try:
        gc.freeze()
        os.dup2(asked, 0)
        os.dup2(tells, 1)
        if log is not None:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        os.closerange(3, shared)
        os.closerange(shared + 1, _MOST_FILES)
        code = generator.main()
    finally:
        os._exit(code)
