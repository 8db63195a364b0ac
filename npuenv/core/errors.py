"""What can go wrong with a request as a whole, and the exit code of each kind.

Failures of one item among many (one check, one card, one rollout) are values, not exceptions.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.core.messages import Message


class ExitCode(enum.IntEnum):
    """Exit codes are an interface. Where several apply: INTERRUPTED, INPUT, NOTHING_FITS, PROBLEMS, UNKNOWN, FINE."""

    FINE = 0
    PROBLEMS = 1
    INPUT = 2
    UNKNOWN = 3
    NOTHING_FITS = 4
    INTERRUPTED = 130


class NpuenvError(Exception):
    """An error with one sentence for the user and one for what to do next. Raise one of the four kinds below."""

    kind = "error"
    exit_code = ExitCode.PROBLEMS

    def __init__(self, message: Message, hint: Message | None = None) -> None:
        super().__init__(message.key)
        self.message = message
        self.hint = hint


class BadInput(NpuenvError):
    """Wrong usage or input, or a target that cannot be used."""

    kind = "bad-input"
    exit_code = ExitCode.INPUT


class CannotTell(NpuenvError):
    """A question that could not be answered here, for instance because only the network knows."""

    kind = "cannot-tell"
    exit_code = ExitCode.UNKNOWN


class NothingFits(NpuenvError):
    """No set of versions satisfies the request."""

    kind = "nothing-fits"
    exit_code = ExitCode.NOTHING_FITS


class StepFailed(NpuenvError):
    """A step of a plan failed; what was done so far stays and can be resumed."""

    kind = "step-failed"
    exit_code = ExitCode.PROBLEMS
