"""What is wrong with a launch, by all rules: `examine` and `PreflightResult`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.core.errors import ExitCode
from npuenv.core.finding import STATUS_OF, Status
from npuenv.matrix.keys import nearest_release

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npuenv.core.messages import Message
    from npuenv.preflight.fixing import Fixed
    from npuenv.preflight.rules.base import Rule
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


_ORDER = (Status.FAIL, Status.WARN, Status.UNKNOWN)


def examine(
    launch: Launch, rules: Sequence[Rule] | None = None, *, refused: Iterable[LaunchFinding] = ()
) -> tuple[LaunchFinding, ...]:
    """Every problem of a launch, the worst first, then in the order of the text; one cause speaks once.

    `rules` None: all. `refused` is what the reader found. What a rule raises is a mistake of ours and goes through.
    """
    if rules is None:
        from npuenv.preflight.rules import RULES

        rules = RULES
    judged = (found for rule in rules if launch.framework in rule.frameworks for found in _judged(rule, launch))
    # What may not be set at all is not judged as if it were.
    return once((*refused, *(each for each in judged if all(setting.is_sure for setting in each.settings))))


def _judged(rule: Rule, launch: Launch) -> Iterator[LaunchFinding]:
    from npuenv.preflight.rules.keys import has_own_keys

    is_other = rule.is_trainers and has_own_keys(launch)
    for each in rule.judge(launch):
        yield replace(each, status=Status.WARN) if is_other and each.status is Status.FAIL else each


def once(problems: Iterable[LaunchFinding]) -> tuple[LaunchFinding, ...]:
    """The problems in order, each cause once: the same sentence about the same settings, whatever rule says it."""
    unique: dict[tuple[object, ...], LaunchFinding] = {}
    for problem in problems:
        keys = tuple(sorted(setting.key for setting in problem.settings))
        unique.setdefault((problem.check, keys, problem.says.key, str(problem.says.args)), problem)
    return tuple(sorted(unique.values(), key=_rank))


def _rank(problem: LaunchFinding) -> tuple[object, ...]:
    place = problem.location
    at = (place.path, place.line, place.word) if place else ("", 0, 0)
    return (_ORDER.index(problem.status), *at, problem.check)
