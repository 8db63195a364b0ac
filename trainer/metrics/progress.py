"""How far a run is, and where its time went."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer.metrics.meter import Meter


@dataclass(slots=True)
class Progress:
    """Started when it is made; times in seconds."""

    started: float = field(default_factory=time.perf_counter)
    steps_done: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by phase, over the run so far
    settle: Callable[[], None] | None = None  # waits for the device's queued work; None: nothing is queued
    meter: Meter | None = None  # of operations and memory; None: they are not measured
    _before: dict[str, float] = field(default_factory=dict)

    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time of the block to a named phase, however it ends."""
        began = time.perf_counter()
        try:
            yield
            if self.settle is not None:
                self.settle()
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def since_last_step(self) -> dict[str, float]:
        """Seconds by phase since the last call; phases without any are left out."""
        spent = {name: total - self._before.get(name, 0.0) for name, total in self.seconds.items()}
        self._before = dict(self.seconds)
        return {name: value for name, value in spent.items() if value > 0}
