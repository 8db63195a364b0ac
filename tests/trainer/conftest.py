"""The trainer's tests need torch; without it they are skipped."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch", reason="the trainer's tests need torch, which comes with a stack, not with npuenv")


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """A run in this process takes over its signals, and ignores them in the end: so would all that is started later."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are faster on one thread, and the machine may be busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
