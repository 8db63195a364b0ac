"""What an installation is of, and what it reports while it works."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npuenv.lock.request import LockedRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.bundle.reader import Bundle
    from npuenv.core.errors import NothingFits
    from npuenv.core.messages import Message
    from npuenv.core.plan import Plan, Step
    from npuenv.install.executor import Outcome
    from npuenv.install.locations import EnvironmentPlace
    from npuenv.lock.file import Lock


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """Where and how a stack is installed."""

    target: str | None = None
    kind: str = "venv"  # venv | conda | existing
    base_python: str | None = None
    into: str | None = None  # the Python whose environment is to take the packages
    bundle: str | None = None  # a bundle's folder or archive: nothing is asked of the network
    cann_files: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)  # source name -> archive or folder
    with_system: bool = False
    is_replacing: bool = False
    is_repairing: bool = False  # what is damaged goes out first, also in an environment that the user had already
    only_step: str | None = None
    from_step: str | None = None
    fill: bool = False
    lock: Lock | None = None  # instead of the stack's present lock
    again: tuple[str, ...] = ("npuenv", "install")  # the command that resumes an interrupted installation


@dataclass(frozen=True, slots=True)
class InstallRequest(LockedRequest):
    """What is to be installed, from where."""

    bundle: Bundle | None = None


@dataclass(frozen=True, slots=True)
class InstallJob:
    """A plan and what it is for."""

    request: InstallRequest
    target: EnvironmentPlace
    plan: Plan
    steps: tuple[Step, ...]  # of the plan, those that were asked for
    notes: tuple[Message, ...] = ()  # what the plan cannot do itself

    @property
    def part(self) -> Plan:
        """The part of the plan that was asked for."""
        return replace(self.plan, steps=self.steps)

    @property
    def unfinished(self) -> Plan:
        """What of the plan is not done yet."""
        from npuenv.install.executor import is_done

        host = self.request.resolver.host
        return replace(self.plan, steps=tuple(step for step in self.steps if not is_done(step, host)))

    def needs_consent(self) -> bool:
        """True when something is to be changed now that nobody has agreed to.

        In an environment that is complete npuenv puts back its own without asking: somebody agreed to that before.
        """
        from npuenv.install.environments import is_complete
        from npuenv.install.executor import changes_more_than_its_own, is_done

        host = self.request.resolver.host
        if is_complete(host, self.target, self.request.lock):
            return changes_more_than_its_own(self.steps, host)
        # The last first: what says that an environment is finished is cheap to ask, and not there yet.
        return not all(is_done(step, host) for step in reversed(self.steps))


@dataclass(frozen=True, slots=True)
class InstallResult:
    """What was done. Of a part of a plan that is not yet a complete environment."""

    job: InstallJob
    outcome: Outcome
    is_proven: bool  # the environment is complete and verified
    foreign: tuple[str, ...]  # files of no package that run code whenever the environment's Python starts


@dataclass(frozen=True, slots=True)
class InstallPreview:
    """The plan of an installation, and what would end it before it begins."""

    job: InstallJob
    lacks: tuple[NothingFits, ...]
