"""Steps and plans: what is to be done, as pure data, in the order that matters.

The same plan is executed on a host, printed as a POSIX script and rendered as a Dockerfile.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.core.messages import Message


@dataclass(frozen=True, slots=True)
class Run:
    """A program to run, without a shell. `env` adds variables; `unset` removes them first."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A file to be written whole, through a temporary name in the same folder."""

    path: str
    text: str
    mode: int = 0o644


Action = Run | WriteFile


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition: the fact `fact` about `of` has `value`. `execute` asks it through `npuenv.facts`.

    Facts that can be asked stand in `npuenv.facts.conditions`.
    """

    fact: str
    of: tuple[str, ...]
    value: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step. It is done when all of `done_when` hold; an empty `done_when` means: never known to be done, run it."""

    id: str
    why: Message
    do: tuple[Action, ...]
    done_when: tuple[Condition, ...] = ()
    after: tuple[str, ...] = ()
    needs_root: bool = False
    needs_network: bool = False
    # It only puts back what npuenv itself had put there: once the environment is complete, that needs no consent anew.
    is_upkeep: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in an order that respects their `after`. Ids are unique."""

    steps: tuple[Step, ...]


def chained(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Each step after the one before it: on this platform the order is part of the recipe."""
    return tuple(replace(step, after=(steps[number - 1].id,) if number else ()) for number, step in enumerate(steps))
