"""Plans: what is to be done, as pure data."""

from __future__ import annotations

from npuenv.core.plan import Action, Condition, Plan, Run, Step, WriteFile

__all__ = ["Action", "Condition", "Plan", "Run", "Step", "WriteFile"]
