"""Lets nodes begin at one moment. Start from `Gate`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Gate:
    """Holds nodes back until all of them are ready, and then lets them begin together.

    What has ended is not waited for. Who is not ready in time is not let in any more: in step with nobody, it would
    ping devices that are under way with others. Mutable: nodes come, and the gate opens once.
    """

    def __init__(self, names: Iterable[str], *, wait_s: float, lead_s: float) -> None:
        self._awaited = set(names)
        self._lows: dict[str, float] = {}  # of those that are ready and were not answered yet
        self._closes = time.monotonic() + wait_s
        self._lead_s = lead_s  # in which all of them hear of it
        self._is_open = False

    def hear(self, name: str, line: Mapping[str, Any]) -> None:
        """Takes a line of a node, be it that it is ready or another one."""
        if isinstance(line.get("ready"), (int, float)):
            self._lows[name] = line["ready"] - time.time()
            self._awaited.discard(name)

    def ended(self, name: str) -> None:
        """Does not wait for a node any more."""
        self._awaited.discard(name)

    def words(self) -> dict[str, bytes]:
        """What is to be said to nodes now: when to begin, or that the others have begun without it."""
        if self._is_open:
            return dict.fromkeys(self._taken(), b"{}\n")
        if self._awaited and time.monotonic() < self._closes:
            return {}
        self._is_open = True
        now = time.time()
        go = {"begin_at": now + self._lead_s, "sent": now}
        return {name: json.dumps({**go, "low": low}).encode() + b"\n" for name, low in self._taken().items()}

    def _taken(self) -> dict[str, float]:
        taken, self._lows = self._lows, {}
        return taken
