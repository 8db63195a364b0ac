"""How far a run is, and where its time went."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class Progress:
    """Started when it is made; times in seconds."""

    started: float = field(default_factory=time.perf_counter)
    steps_done: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to a named part, whatever ends it."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def peak_rss_mib() -> float:
    """The most memory that this process has held."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
