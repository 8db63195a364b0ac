"""The trainer's tests need torch; without it they are skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.own_signals import restored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.trainer.plain_run import PlainRun

torch = pytest.importorskip("torch", reason="the trainer's tests need torch, which comes with a stack, not with npuenv")


@pytest.fixture(autouse=True, scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What `tests.trainer.shared` keeps for all workers."""
    from tests.trainer.shared import SESSION

    torch.set_num_threads(1)  # also for what a module shares, which is made before a test's own fixtures
    SESSION.begin(tmp_path_factory)
    yield
    SESSION.end()


@pytest.fixture
def plain_run() -> PlainRun:
    """How five steps in a process of their own ended."""
    from tests.trainer import plain_run as runs

    found = runs.plain_run()
    assert (found.code, found.stderr) == (0, "")
    return found


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Runs in this process take over its signals."""
    with restored():
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are faster on one thread, and the machine may be busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
