"""Plans: steps with actions and conditions, as pure data."""

from __future__ import annotations

from npuenv.core.plan import Action, Condition, Plan, Run, Step, WriteFile

__all__ = ["Action", "Condition", "Plan", "Run", "Step", "WriteFile"]
