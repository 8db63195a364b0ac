"""From a stack and its lock to the steps that put it into an environment.

Packages go in at their exact versions with their hashes and without asking for dependencies, so no order among them can
change what ends up there; the stack's published order counts for components built from source and for triton-ascend,
which overwrites files of `triton` and therefore comes last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv.core.messages import Message
from npuenv.core.plan import Plan, Step
from npuenv.facts.environment import ask_environment
from npuenv.facts.manifest import describe
from npuenv.install.plan import environment, packages, sources
from npuenv.install.plan.context import LAST, Making, Tools
from npuenv.resolve.types import BuildStep, Stack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.host.base import Host
    from npuenv.install.locations import Target
    from npuenv.lock.file import Lock

__all__ = ["LAST", "Tools", "keep_supplied", "plan_install"]


def plan_install(
    stack: Stack,
    lock: Lock,
    target: Target,
    tools: Tools,
    *,
    activation: str | Mapping[str, str],
    request: Mapping[str, Any] | None = None,
    before: Sequence[Step] = (),
    is_repairing: bool = False,
) -> Plan:
    """The whole road from an empty folder to a verified environment.

    `activation` are the texts of the activation's files by their paths below the environment; one text alone is that of
    `activate.sh`. `request` is what was asked for, for the manifest; `before` are the steps that the environment stands
    on (`install.plan.system`, `install.plan.cann_files`); with `is_repairing` altered packages of the lock are taken
    out of an environment that the user had already too. Packages without a hash get a step of their own that says so;
    callers that execute the plan refuse such a lock first (`npuenv.lock.preconditions.require_complete`).
    """
    making = Making(stack, lock, target, tools, request or {})
    steps = [*before, environment.make(making), environment.inspector(making)]
    # What is altered in the user's own environment may be meant so: it goes out only where that was asked for.
    if making.is_own or is_repairing:
        steps.append(environment.mend(making, is_repairing=is_repairing))
    steps += _components(making)
    files = {environment.ACTIVATION: activation} if isinstance(activation, str) else activation
    steps += [environment.activate(making, files), environment.verify(making)]
    steps.append(environment.finish(making, steps))
    return Plan(_chained(steps))


def keep_supplied(host: Host, stack: Stack, lock: Lock, target: Target, tools: Tools) -> Tools:
    """The tools with what was supplied as sources before, where an environment that was finished is not made anew.

    Of one that was never finished nothing is kept: what was supplied may be why.
    """
    found = sources.supplied_in(host, target, stack)
    there = describe(host, target.root) if found else None
    if there is None or not there.npuenv:
        return tools
    stands = environment.make(Making(stack, lock, target, tools)).done_when
    return replace(tools, kept=found) if all(ask_environment(host, w).value == w.value for w in stands) else tools


def in_order(stack: Stack) -> list[BuildStep]:
    """The stack's order with everything in it: what no step names before the first build, LAST at the end."""
    items = list(stack.order)
    if not any(item.does == "rest" for item in items):
        first_build = next((n for n, item in enumerate(items) if item.does == "git"), len(items))
        items.insert(first_build, BuildStep("rest", "rest", (), Message("plan.why-rest")))
    last = [item for item in items if item.does == "pip" and LAST in item.what]
    return [item for item in items if item not in last] + last


def _components(making: Making) -> list[Step]:
    """The stack's order as steps. Wheels between two things that need order go in together."""
    steps: list[Step] = []
    wheels: list[BuildStep] = []
    for item in in_order(making.stack):
        is_last = LAST in item.what
        if item.does not in ("git", "uninstall") and not is_last:
            wheels.append(item)
            continue
        steps += packages.put_in(making, wheels)
        wheels = []
        if item.does == "git":
            steps += [step for name in item.what for step in sources.build(making, item, making.source(name))]
        else:
            steps += [packages.take_out(making, item)] if item.does == "uninstall" else packages.put_in(making, [item])
    return steps + packages.put_in(making, wheels)


def _chained(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Each step after the one before it: on this platform the order is part of the recipe."""
    return tuple(replace(step, after=(steps[number - 1].id,) if number else ()) for number, step in enumerate(steps))
