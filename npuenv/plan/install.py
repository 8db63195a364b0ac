"""From a stack and its lock to the steps that put it into an environment. Start from `plan_install`.

Packages go in group by group in the stack's published order, each at its exact version with its hash and without asking
for dependencies, so no order can change what ends up there; order still counts for components built from source and for
triton-ascend, which overwrites files of `triton` and therefore comes last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.messages import Message
from npuenv.plan import environment, packages, sources
from npuenv.plan.making import Making, Tools
from npuenv.plan.types import Plan, Step
from npuenv.resolve.types import BuildStep, Stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.lock.file import Lock
    from npuenv.store.places import Target

__all__ = ["LAST", "Tools", "plan_install"]

LAST = "triton-ascend"


def plan_install(stack: Stack, lock: Lock, target: Target, tools: Tools, *, activation: str) -> Plan:
    """The whole road from an empty folder to a verified environment.

    `activation` is the text of the activation script. Packages without a hash get a step of their own that says so;
    callers that execute the plan refuse such a lock first (`npuenv.lock.refuse.require_complete`).
    """
    making = Making(stack, lock, target, tools)
    steps = [environment.venv(making), environment.mend(making)]
    for item in in_order(stack):
        steps += _component(making, item)
    steps += [environment.activate(making, activation), environment.verify(making), environment.finish(making)]
    return Plan(_chained(steps))


def in_order(stack: Stack) -> list[BuildStep]:
    """The stack's order with everything in it: what no step names before the first build, LAST at the end."""
    items = list(stack.order)
    if not any(item.does == "rest" for item in items):
        first_build = next((n for n, item in enumerate(items) if item.does == "git"), len(items))
        items.insert(first_build, BuildStep("rest", "rest", (), Message("plan.why-rest")))
    last = [item for item in items if item.does == "pip" and LAST in item.what]
    return [item for item in items if item not in last] + last


def _component(making: Making, item: BuildStep) -> list[Step]:
    if item.does == "uninstall":
        return [packages.take_out(making, item)]
    if item.does == "git":
        return [step for name in item.what for step in sources.build(making, item, making.source(name))]
    return packages.put_in(making, item)


def _chained(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Each step after the one before it: on this platform the order is part of the recipe."""
    return tuple(replace(step, after=(steps[number - 1].id,) if number else ()) for number, step in enumerate(steps))
