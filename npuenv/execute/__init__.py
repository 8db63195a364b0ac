"""Runs a plan on this machine, so that it can be stopped anywhere and run again. Start from `execute`."""

from __future__ import annotations

from npuenv.execute.failures import deciding_line
from npuenv.execute.work import Event, Outcome, Session, State, execute, unmet

__all__ = ["Event", "Outcome", "Session", "State", "deciding_line", "execute", "unmet"]
