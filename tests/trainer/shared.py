"""What all workers of a test session share: results that are computed once, and a process that forks others."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.trainer.trainer_cases import ROOT, of_a_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pytest

LIMIT_S = 240.0
IMPORTS = ("torch", "trainer.trainer", "trainer.loop")


@dataclass
class Session:
    """Of this session: `tests/trainer/conftest.py` begins and ends it."""

    folder: Path | None = None
    forks: Forks | None = None

    def begin(self, factory: pytest.TempPathFactory) -> None:
        base = factory.getbasetemp()
        self.folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def end(self) -> None:
        if self.forks is not None:
            self.forks.close()
            self.forks = None

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[Path]:
        """A path that all workers know, which one of them at a time has."""
        assert self.folder is not None
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.folder / name


SESSION = Session()


def once(name: str, make: Callable[[Path], Any]) -> Any:
    """What `make` gives for a new folder, as JSON keeps it: whichever worker needs it first computes it."""
    with SESSION.locked(name) as folder:
        found = folder.with_suffix(".json")
        if not found.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of an attempt that failed
            folder.mkdir()
            found.write_text(json.dumps(make(folder)))
        return json.loads(found.read_text())


@dataclass
class Forked:
    """A process that began with torch imported; what it has said stands in two files."""

    forks: Forks
    pid: int
    stdout: Path
    stderr: Path

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        code: int | None = self.forks.ask(code_of=self.pid)
        return code

    def wait(self, limit_s: float = LIMIT_S) -> int:
        deadline = time.monotonic() + limit_s
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"no end within {limit_s} s\n{self.stderr.read_text()}"
            time.sleep(0.02)
        return code

    def end(self) -> tuple[int, str, str]:
        """Its exit code and what it said, when it has ended."""
        return self.wait(), self.stdout.read_text(), self.stderr.read_text()

    def send_signal(self, number: int) -> None:
        assert self.poll() is None
        os.kill(self.pid, number)


class Forks:
    """One connection to the session's `fork_server`."""

    def __init__(self, address: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(LIMIT_S)
        self._connection.connect(address)
        self._lines = self._connection.makefile("rwb", buffering=0)

    def ask(self, **asked: Any) -> Any:
        self._lines.write(json.dumps(asked).encode() + b"\n")
        return json.loads(self._lines.readline())

    def start(
        self,
        text: str,
        *words: str,
        folder: Path,
        environ: Mapping[str, str] | None = None,
        work: Path = ROOT,
        imports: Sequence[str] = IMPORTS,
    ) -> Forked:
        """`python -c TEXT WORDS` in the folder `work`, with what `imports` names; its outputs go to `folder`."""
        number = len(list(folder.glob("said-*.out")))
        said = folder / f"said-{number}.out", folder / f"said-{number}.err"
        for each in said:
            each.touch()
        pid = self.ask(
            text=text,
            words=words,
            folder=str(work),
            environ={**of_a_child(), **(environ or {})},
            imports=list(imports),
            stdout=str(said[0]),
            stderr=str(said[1]),
        )
        return Forked(self, pid, *said)

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


def forks() -> Forks:
    """The connection to the server of this session, which starts with the first that asks for it."""
    if SESSION.forks is None:
        SESSION.forks = _connected()
    return SESSION.forks


def _connected() -> Forks:
    with SESSION.locked("forks") as file:
        try:
            return Forks(file.read_text())
        except OSError:  # there is none yet, or it ended with those who asked for it
            argv = [sys.executable, "-m", "tests.trainer.fork_server", str(file)]
            with file.with_suffix(".log").open("ab") as log:
                subprocess.run(argv, cwd=ROOT, env=of_a_child(), check=True, stdin=subprocess.DEVNULL, stderr=log)
            return Forks(file.read_text())
