"""What must hold before an environment becomes active, the doctor's checks of its packages included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.app.examine import FRAMEWORKS
from npuenv.checks import Finding, Status, check_all
from npuenv.core.errors import StepFailed
from npuenv.core.messages import Message
from npuenv.facts.collect import collect
from npuenv.install.executor import unmet
from npuenv.install.plan.environment import VERIFY

if TYPE_CHECKING:
    from npuenv.core.plan import Plan
    from npuenv.host.base import Host
    from npuenv.install.locations import EnvironmentPlace
    from npuenv.resolve.types import Stack

# Areas of checks that an installation answers for, and the groups of facts that they read.
_AREAS = ("python.", "stack.")
_GROUPS = frozenset({"python", "cann", "machine"})
# Of the session and not of the packages: they hold in the shell that sources the activation script.
_OF_SESSION = ("stack.settings", "stack.cann")


def verify_environment(host: Host, stack: Stack, target: EnvironmentPlace, plan: Plan) -> None:
    """Raises StepFailed for an environment that is not verified, or where the doctor finds it at odds with its stack.

    Asked before the last step too, because that can be asked for alone.
    """
    if any(unmet(step, host) for step in plan.steps if step.id == VERIFY):
        raise StepFailed(Message("install.unverified", {"path": target.root}), Message("install.unverified-hint"))
    found = failed_checks(host, stack, target.python)
    if found:
        said = {"path": target.root, "why": _reasons(found)}
        hint = {"python": target.python, "stack": stack.name}
        raise StepFailed(Message("install.objections", said), Message("install.objections-hint", hint))


def failed_checks(host: Host, stack: Stack, python: str) -> tuple[Finding, ...]:
    """The doctor's failed software checks of an environment, by the stack that it is meant to hold.

    The step before has imported what needs no CANN; that is not done again. Modules that need CANN's libraries load in
    an activated shell only: that they fail here explains which libraries are missing, and is no objection.
    """
    needs_cann = bool(stack.cann_root)
    framework = stack.framework if stack.framework in FRAMEWORKS else None
    facts = collect(host, python=python, level=1, framework=framework, imports=needs_cann, only=_GROUPS)
    found = check_all(facts, framework=framework, level=1, stack=stack)
    return tuple(finding for finding in found if finding.status is Status.FAIL and _counts(finding.check, needs_cann))


def _counts(check: str, needs_cann: bool) -> bool:
    if not check.startswith(_AREAS) or check in _OF_SESSION or check == "python.made":
        return False
    return not (needs_cann and check.endswith("-imports"))


def _reasons(found: tuple[Finding, ...]) -> tuple[Message, ...]:
    """A sentence each, with the check that says it."""
    return tuple(Message("install.objection", {"check": each.check, "says": each.says}) for each in found)
