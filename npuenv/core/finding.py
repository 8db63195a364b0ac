"""Findings: what a check came to, why, and what fixes it. Every report is made of these."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from npuenv.core.fact import Evidence
    from npuenv.core.messages import Message


class Status(enum.Enum):
    """What a check came to."""

    OK = "ok"
    WARN = "warn"  # works, but is worth knowing
    FAIL = "fail"
    UNKNOWN = "unknown"  # an input could not be read
    SKIP = "skip"  # does not apply here, with the reason


PROBLEMS = (Status.FAIL, Status.UNKNOWN, Status.WARN)
WORST_FIRST = (*PROBLEMS, Status.OK, Status.SKIP)
Severity = Literal["error", "warning", "note"]
# What SARIF, and the documents and tables about files, call the statuses of a problem.
SEVERITIES: dict[Status, Severity] = {Status.FAIL: "error", Status.WARN: "warning", Status.UNKNOWN: "note"}
STATUS_OF: dict[Severity, Status] = {severity: status for status, severity in SEVERITIES.items()}


@dataclass(frozen=True, slots=True)
class Fix:
    """What mends it. Each command is an argv; one that starts with `source` or `export` is for the user's own shell."""

    says: Message
    commands: tuple[tuple[str, ...], ...] = ()
    is_dangerous: bool = False  # touches other users, other processes or security: shown with its cost, never run
    is_automatic: bool = False  # `doctor --fix` may run the commands: programs, safe to run twice
    needs_root: bool = False
    undo: tuple[tuple[str, ...], ...] = ()  # what takes an automatic one back; empty: it cannot be taken back


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a file, the first being 1, or a word of a command line."""

    path: str  # "" for a command line
    line: int
    word: int = 0  # of a command: the position among all words, from 1; 0: no command

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check or rule."""

    check: str  # the id of the check or rule
    status: Status
    says: Message
    evidence: tuple[Evidence, ...]
    source: str
    fix: Fix | None
    location: Location | None = None  # where it is written; None: it is about no text
    nodes: tuple[str, ...] = ()  # of a cluster: the nodes that have it in the same words

    @property
    def severity(self) -> Severity:
        """`error`, `warning` or `note`; only for problems."""
        return SEVERITIES[self.status]
