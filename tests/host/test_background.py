"""Programs that run long: nothing of them outlives `stop`, not even what made a session of its own."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import npuenv
from npuenv.host.background import Running
from tests.support.own_signals import interruptible
from tests.support.waiting import PATIENCE_S, is_gone, until

if TYPE_CHECKING:
    from collections.abc import Callable

# Starts a grandchild in a session of its own, says both numbers, and waits.
DAEMON = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def text_of(log: Path) -> str:
    """What the program has written, once it has written a line."""
    assert until(lambda: log.exists() and log.read_text().endswith("\n")), "the program has written nothing"
    return log.read_text()


def test_a_descendant_with_a_session_of_its_own_ends_too(tmp_path: Path) -> None:
    with Running([sys.executable, "-c", DAEMON], cwd=tmp_path, env={}, log=tmp_path / "log") as running:
        parent, child = map(int, text_of(tmp_path / "log").split())
        assert running.poll() is None
    assert until(partial(is_gone, parent))
    assert until(partial(is_gone, child))


def test_a_program_that_ignores_signals_is_ended_all_the_same(tmp_path: Path) -> None:
    with Running([sys.executable, "-c", STUBBORN], cwd=tmp_path, env={}, log=tmp_path / "log") as running:
        text_of(tmp_path / "log")
        running.interrupt(grace_s=0.1)
        assert running.poll() == -9


# Starts a program that starts another, says both numbers, and is killed.
KILLED = """
import os, pathlib, sys, time
from npuenv.host.background import Running
log = pathlib.Path(sys.argv[1])
running = Running(["sh", "-c", "sleep 600 & echo $$ $!; wait"], cwd=log.parent, env={}, log=log)
while not log.read_text().endswith("\\n"):
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""


def test_nothing_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    log, source = tmp_path / "log", Path(npuenv.__file__).parents[1]
    ran = subprocess.run([sys.executable, "-c", KILLED, str(log)], cwd=source, check=False)
    assert ran.returncode == -signal.SIGKILL
    for pid in map(int, text_of(log).split()):
        assert until(partial(is_gone, pid))


def test_the_guard_ends_with_the_program_and_not_before(tmp_path: Path) -> None:
    own = psutil.Process()
    gc.collect()
    before, opened = set(own.children()), own.num_fds()
    with Running(["sleep", "600"], cwd=tmp_path, env={}, log=tmp_path / "log"):
        assert len(set(own.children()) - before) == 2
    assert set(own.children()) <= before and own.num_fds() == opened


def test_an_error_inside_the_block_ends_the_program(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        Running([sys.executable, "-c", DAEMON], cwd=tmp_path, env={}, log=tmp_path / "log") as running,
    ):
        text_of(tmp_path / "log")
        raise RuntimeError
    assert running.poll() is not None


class LockWithInterrupt:
    """A lock in whose taking Ctrl-C comes: after it is taken, before the block that gives it back is entered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True) -> bool:
        is_taken = self._lock.acquire(blocking, timeout=PATIENCE_S if blocking else -1)
        signal.raise_signal(signal.SIGINT)
        return is_taken

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        assert self._lock.acquire(timeout=PATIENCE_S), "left taken by an interrupt: this would wait for ever"

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("ask", [lambda running: running.poll(), lambda running: running.wait(PATIENCE_S)])
def test_an_interrupt_while_the_exit_code_is_asked_for_leaves_nothing_locked(
    tmp_path: Path, ask: Callable[[Running], int | None]
) -> None:
    running = Running(["sleep", "600"], cwd=tmp_path, env={}, log=tmp_path / "log")
    running._process._waitpid_lock = LockWithInterrupt()  # type: ignore[attr-defined]
    with interruptible(), pytest.raises(KeyboardInterrupt):
        ask(running)
    running._process._waitpid_lock = running._process._waitpid_lock._lock  # type: ignore[attr-defined]
    assert running._process._waitpid_lock.acquire(timeout=5)  # type: ignore[attr-defined]
    running._process._waitpid_lock.release()  # type: ignore[attr-defined]
    running.stop()
    assert running.poll() == -signal.SIGTERM


def refuse(group: int, number: int) -> None:
    """What the kernel says where every process of a group is another user's."""
    raise PermissionError(1, "Operation not permitted")


def test_what_nobody_but_another_user_may_end_is_left_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "killpg", refuse)
    with Running(["sleep", "600"], cwd=tmp_path, env={}, log=tmp_path / "log") as running:
        running.interrupt(grace_s=600)  # nothing is waited for
        assert running.poll() is None
    assert running.poll() is None
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait(PATIENCE_S) == -signal.SIGKILL


SUDO = """#!/bin/sh
echo "$*" >> {log}
shift
exec "$@"
"""


def test_what_sudo_started_is_ended_through_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sudo").write_text(SUDO.format(log=tmp_path / "asked"))
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "killpg", refuse)
    with Running(["sudo", "-n", sys.executable, "-c", STUBBORN], cwd=tmp_path, env={}, log=tmp_path / "log") as running:
        text_of(tmp_path / "log")
        running.interrupt(grace_s=0.1)
        assert running.poll() == -signal.SIGKILL
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("-n kill ")]
    assert asked[:3] == [f"-n kill -s {name} -- -{running.pid}" for name in ("INT", "TERM", "KILL")]


def test_the_exit_code_and_the_output_are_kept(tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['A'], 'B' in os.environ); sys.exit(3)"
    with Running(
        [sys.executable, "-c", program], cwd=tmp_path, env={"A": "1"}, log=tmp_path / "log", unset=("B",)
    ) as running:
        assert running.wait(PATIENCE_S) == 3
    assert (tmp_path / "log").read_text() == "1 False\n"
