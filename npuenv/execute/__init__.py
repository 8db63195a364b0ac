"""Runs a plan on this machine, so that it can be stopped anywhere and run again. Start from `execute`."""

from __future__ import annotations

from npuenv.execute.failures import deciding_line
from npuenv.execute.work import (
    Event,
    Outcome,
    Session,
    State,
    changes_more_than_its_own,
    chosen,
    execute,
    is_done,
    unmet,
)

__all__ = [
    "Event",
    "Outcome",
    "Session",
    "State",
    "changes_more_than_its_own",
    "chosen",
    "deciding_line",
    "execute",
    "is_done",
    "unmet",
]
