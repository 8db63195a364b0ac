"""A fact and its three states."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
LINE_AT_MOST = 400  # characters; a tool that prints without end must not fill the report


class State(enum.Enum):
    """Known, absent (looked, and there is none) and unknown (could not look or could not read) are kept apart."""

    KNOWN = "known"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a fact comes from: the command or path that was asked, and the line that decides, cut where it is long."""

    command: str
    line: str
    needs_level: int = 0  # of a fact that was not asked: the lowest level that asks it

    def __post_init__(self) -> None:
        if len(self.line) > LINE_AT_MOST:
            object.__setattr__(self, "line", self.line[: LINE_AT_MOST - 1] + "…")


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """Something true of a host. `value` is None unless the state is KNOWN."""

    state: State
    value: T | None
    evidence: tuple[Evidence, ...]

    @property
    def is_known(self) -> bool:
        return self.state is State.KNOWN

    @property
    def needs_level(self) -> int:
        """The lowest level that reads it, where the present one left it out; else 0."""
        return max((item.needs_level for item in self.evidence), default=0) if self.state is State.ABSENT else 0


def known(value: T, *evidence: Evidence) -> Fact[T]:
    """A fact that was read."""
    return Fact(State.KNOWN, value, evidence)


def absent(*evidence: Evidence) -> Fact[T]:
    """A fact that there is no such thing; the evidence says what was looked at."""
    return Fact(State.ABSENT, None, evidence)


def unknown(*evidence: Evidence) -> Fact[T]:
    """A fact that could not be established; the evidence says why."""
    return Fact(State.UNKNOWN, None, evidence)
