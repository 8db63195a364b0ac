"""A plan for programs; people get `npuenv.render.listing`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core.messages import say
from npuenv.install.plan import Plan, Run, Step

if TYPE_CHECKING:
    from npuenv.resolve.types import Stack


def as_json(plan: Plan, stack: Stack, root: str, lang: str) -> dict[str, object]:
    """The `npuenv.plan/1` document."""
    return {
        "schema": "npuenv.plan/1",
        "stack": stack.name,
        "platform": stack.platform.tag,
        "target": root,
        "steps": [_step(step, lang) for step in plan.steps],
    }


def _step(step: Step, lang: str) -> dict[str, object]:
    runs = [action for action in step.do if isinstance(action, Run)]
    return {
        "id": step.id,
        "why": say(step.why, lang),
        "after": list(step.after),
        "needs_root": step.needs_root,
        "needs_network": step.needs_network,
        "commands": [{"argv": list(run.argv), "env": dict(run.env)} for run in runs],
        "writes": [action.path for action in step.do if not isinstance(action, Run)],
    }
