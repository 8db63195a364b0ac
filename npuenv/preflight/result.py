"""The launches of one text with their problems, and the corrected copy: `PreflightResult`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.errors import ExitCode
from npuenv.core.finding import STATUS_OF, Status
from npuenv.matrix.keys import nearest_release

if TYPE_CHECKING:
    from npuenv.core.messages import Message
    from npuenv.preflight.fixing import Fixed
    from npuenv.preflight.types import Launch, LaunchFinding


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """A launch with its problems, in order."""

    launch: Launch
    path: str  # "" for a command line
    problems: tuple[LaunchFinding, ...]
    notes: tuple[Message, ...] = ()
    others: tuple[Launch, ...] = ()  # further launches of the same script, whose problems are among these
    fixed: Fixed | None = None  # the corrected copy; None: not asked for
    written: str = ""  # the file of the corrected copy; "": none was written

    @property
    def counts(self) -> dict[str, int]:
        return {name: sum(each.severity == name for each in self.problems) for name in STATUS_OF}

    @property
    def exit_code(self) -> ExitCode:
        """PROBLEMS where an error is left, UNKNOWN where most rules know nothing of the release."""
        left = self.problems if self.fixed is None else self.fixed.left
        if any(problem.status is Status.FAIL for problem in left):
            return ExitCode.PROBLEMS
        is_known = nearest_release(self.launch.framework, self.launch.release) is not None
        return ExitCode.FINE if is_known else ExitCode.UNKNOWN
