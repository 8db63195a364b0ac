"""Plans: what is to be done, as pure data. Start from `Plan` and `npuenv.plan.install.plan_install`."""

from __future__ import annotations

from npuenv.plan.types import Action, Plan, Run, Step, Want, WriteFile

__all__ = ["Action", "Plan", "Run", "Step", "Want", "WriteFile"]
