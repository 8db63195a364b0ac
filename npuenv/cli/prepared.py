"""What an installation is of, before anything is done: `Wanted`, and with its plan `Prepared`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.bundle.offline.reader import Bundle
    from npuenv.cli.machine import Machine
    from npuenv.core.messages import Message
    from npuenv.install.locations import Target
    from npuenv.install.plan import Plan, Step
    from npuenv.lock import Lock
    from npuenv.resolve.types import Request, Stack


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be installed, from where."""

    stack: Stack
    lock: Lock
    machine: Machine
    request: Request
    bundle: Bundle | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan and what it is for."""

    wanted: Wanted
    target: Target
    plan: Plan
    steps: tuple[Step, ...]  # of the plan, those that were asked for
    notes: tuple[Message, ...] = ()  # what the plan cannot do itself
