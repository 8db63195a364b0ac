"""How a child has ended, asked as often as one likes and without the lock that an interrupt could leave taken."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from trainer.launch import exit_code, wait_for_child

if TYPE_CHECKING:
    from collections.abc import Iterator


class Untouchable:
    """Stands where `Popen` keeps its lock."""

    def acquire(self, *_: object) -> bool:
        raise AssertionError("the lock was taken")

    __enter__ = acquire


def child(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", program])


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with child("import time; time.sleep(600)") as process:
        yield process
        process.kill()


@pytest.mark.parametrize("code", [0, 3, 255])
def test_an_exit_code_can_be_asked_for_again_and_again(code: int) -> None:
    with child(f"import os; os._exit({code})") as process:
        lock = process._waitpid_lock  # type: ignore[attr-defined]
        process._waitpid_lock = Untouchable()  # type: ignore[attr-defined]
        assert [wait_for_child(process, 120), exit_code(process), wait_for_child(process, 0)] == [code] * 3
        process._waitpid_lock = lock  # type: ignore[attr-defined]
        assert process.wait() == code
        assert exit_code(process) == code


def test_a_signal_is_a_negative_code(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGKILL)
    assert wait_for_child(sleeper, 120) == -signal.SIGKILL


def test_one_that_runs_has_no_code_yet(sleeper: subprocess.Popen[bytes]) -> None:
    assert exit_code(sleeper) is None
    assert wait_for_child(sleeper, 0.02) is None
