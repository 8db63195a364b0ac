"""Plans the steps that install a stack and its lock into an environment.

Packages are installed at exact versions with hashes and without dependencies, so their order cannot change the result.
The stack's published order matters for components built from source and for triton-ascend, which overwrites files of
`triton` and therefore comes last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv.core.messages import Message
from npuenv.core.plan import Plan, Step, chained
from npuenv.facts.conditions import ask
from npuenv.facts.manifest import describe
from npuenv.install.plan import environment, packages, sources
from npuenv.install.plan.context import LAST, Making, Tools
from npuenv.resolve.types import BuildStep, Stack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.host.base import Host
    from npuenv.install.locations import EnvironmentPlace
    from npuenv.lock.file import Lock


def plan_install(
    stack: Stack,
    lock: Lock,
    target: EnvironmentPlace,
    tools: Tools,
    *,
    activation: str | Mapping[str, str],
    request: Mapping[str, Any] | None = None,
    before: Sequence[Step] = (),
    is_repairing: bool = False,
) -> Plan:
    """All steps from an empty folder to a verified environment.

    `activation`: the activation files' texts by their paths below the environment; a single text is that of
    `activate.sh`. `request`: the request, for the manifest. `before`: prerequisite steps (`install.plan.system`,
    `install.plan.cann_files`). With `is_repairing`, altered packages of the lock are also removed from an environment
    that the user already had. Packages without a hash get a step of their own that says so; callers that execute the
    plan refuse such a lock first (`npuenv.lock.preconditions.require_complete`).
    """
    making = Making(stack, lock, target, tools, request or {})
    steps = [*before, environment.make(making), environment.inspector(making)]
    # Changes in the user's own environment may be intentional: they are removed only on request.
    if making.is_own or is_repairing:
        steps.append(environment.mend(making, is_repairing=is_repairing))
    steps += _components(making)
    files = {environment.ACTIVATION: activation} if isinstance(activation, str) else activation
    steps += [environment.activate(making, files), environment.verify(making)]
    steps.append(environment.finish(making, steps))
    return Plan(chained(steps))


def keep_supplied(host: Host, stack: Stack, lock: Lock, target: EnvironmentPlace, tools: Tools) -> Tools:
    """The tools with the sources that were supplied before, unless a finished environment is recreated.

    Those of an unfinished environment are dropped: they may be the reason that it was never finished.
    """
    found = sources.supplied_in(host, target, stack)
    there = describe(host, target.root) if found else None
    if there is None or not there.npuenv:
        return tools
    conditions = environment.make(Making(stack, lock, target, tools)).done_when
    is_unchanged = all(ask(host, want).value == want.value for want in conditions)
    return replace(tools, supplied_before=found) if is_unchanged else tools


def in_order(stack: Stack) -> list[BuildStep]:
    """The stack's complete order: entries that no step names before the first build, LAST at the end."""
    items = list(stack.order)
    if not any(item.does == "rest" for item in items):
        first_build = next((n for n, item in enumerate(items) if item.does == "git"), len(items))
        items.insert(first_build, BuildStep("rest", "rest", (), Message("plan.why-rest")))
    last = [item for item in items if item.does == "pip" and LAST in item.what]
    return [item for item in items if item not in last] + last


def _components(making: Making) -> list[Step]:
    """The stack's order as steps. Wheels between two entries whose order matters are installed together."""
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
