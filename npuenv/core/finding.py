"""Findings: what a check came to, why, and what fixes it. Every report is made of these."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.core.fact import Evidence
    from npuenv.core.messages import Message
    from npuenv.core.plan import Condition


class Status(enum.Enum):
    """What a check came to."""

    OK = "ok"
    WARN = "warn"  # works, but is worth knowing
    FAIL = "fail"
    UNKNOWN = "unknown"  # an input could not be read
    SKIP = "skip"  # does not apply here, with the reason


SEVERITY = {Status.FAIL: 0, Status.UNKNOWN: 1, Status.WARN: 2, Status.OK: 3, Status.SKIP: 4}


@dataclass(frozen=True, slots=True)
class Fix:
    """What mends it. Each command is an argv; one that starts with `source` or `export` is for the user's own shell."""

    says: Message
    commands: tuple[tuple[str, ...], ...] = ()
    is_dangerous: bool = False  # touches other users, other processes or security: shown with its cost, never run
    is_automatic: bool = False  # `doctor --fix` may run the commands: programs, safe to run twice
    needs_root: bool = False
    undo: tuple[tuple[str, ...], ...] = ()  # what takes an automatic one back; empty: it cannot be taken back
    done_when: tuple[Condition, ...] = ()  # what holds once it is mended; empty: only the check itself can tell


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's outcome."""

    check: str
    status: Status
    says: Message
    evidence: tuple[Evidence, ...]
    source: str
    fix: Fix | None
