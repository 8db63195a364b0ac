"""What the use cases take from a caller and tell it while they work: an installation's options, plan and result;
`Progress`, of which a caller overrides what it needs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.bundle.fetch import DownloadProgress
    from npuenv.bundle.make import BundlePlan
    from npuenv.bundle.reader import Bundle
    from npuenv.core.errors import NothingFits
    from npuenv.core.messages import Message
    from npuenv.core.plan import Plan, Step
    from npuenv.install.environments import EnvironmentPlace
    from npuenv.install.executor import Event, Outcome
    from npuenv.lock.file import Lock
    from npuenv.lock.uv import Resolver
    from npuenv.resolve.types import ConflictError, Request, Stack


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
class InstallRequest:
    """What is to be installed, from where."""

    stack: Stack
    lock: Lock
    resolver: Resolver
    request: Request
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
        from npuenv.facts.conditions import is_done

        host = self.request.resolver.host
        return replace(self.plan, steps=tuple(step for step in self.steps if not is_done(step, host)))

    def needs_consent(self) -> bool:
        """True when something is to be changed now that nobody has agreed to.

        In an environment that is complete npuenv puts back its own without asking: somebody agreed to that before.
        """
        from npuenv.facts.conditions import ask, is_done
        from npuenv.install.environments import is_complete

        host = self.request.resolver.host
        if not is_complete(host, self.target, self.request.lock):
            # The last first: what says that an environment is finished is cheap to ask, and not there yet.
            return not all(is_done(step, host) for step in reversed(self.steps))
        if any(not (step.is_upkeep or is_done(step, host)) for step in self.steps):
            return True
        # To activate it in place of another is more than upkeep. Nothing is hashed for this question.
        links = [want for step in self.steps for want in step.done_when if want.fact == "path.link"]
        return any(ask(host, want).value != want.value for want in links)


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


class PackageChange(NamedTuple):
    """A package or source that is not the same in both; "" where one side does not have it."""

    name: str
    before: str
    after: str


class Progress:
    """Shows nothing and agrees to everything; a caller overrides what it needs."""

    def note(self, message: Message) -> None:
        """Something to know that nobody asked for, such as what was assumed."""

    def warning(self, message: Message) -> None:
        """A setting of pip on this machine that cannot be used."""

    def activity(self, message: Message) -> None:
        """What begins now and may take a while."""

    def conflict(self, error: ConflictError) -> None:
        """The stack fits no machine like one of the nodes."""

    def approve(self, job: InstallJob, changes: tuple[PackageChange, ...]) -> None:
        """The plan before anything is changed, and what an update changes; raises to refuse it."""

    def planned(self, plan: Any) -> None:
        """The plan of a bundle (`BundlePlan`) or of fixes (`FixResult`), before anything is changed."""

    def confirm(self, *warnings: Message) -> None:
        """Before what was planned, or what the warnings are about, begins; raises to refuse it."""

    def executing(self) -> AbstractContextManager[None]:
        """The block in which the steps of a plan run."""
        return nullcontext()

    def step(self, event: Event) -> None:
        """A step of a plan starts, prints a line, ends or is skipped."""

    def waiting(self, path: str, pids: tuple[int, ...]) -> None:
        """Another process works on the environment; `pids` as far as known."""

    def examining(self) -> AbstractContextManager[Callable[[str], object] | None]:
        """Gives what is called with each command before it runs, while the machine is examined."""
        return nullcontext()

    def counting(self, total: int) -> AbstractContextManager[Callable[[str | Message], object]]:
        """Gives what is called with each that is done, of `total` in all."""
        return nullcontext(lambda done: None)

    def pings(self, total: int) -> AbstractContextManager[Callable[[int], object]]:
        """Gives what is called with the number of pings that are done, of `total`, after each."""
        return nullcontext(lambda done: None)

    def fetching(self, plan: BundlePlan) -> AbstractContextManager[Callable[[DownloadProgress], None]]:
        """Gives what is called with how far the downloads are."""
        return nullcontext(lambda done: None)


SILENT = Progress()
