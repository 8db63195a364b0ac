"""What is wrong with a launch, by all rules: `examine`. Each module holds the rules of one subject.

A rule is a pure function from a Launch to problems. No rule runs anything, and only `values` looks at files, where the
launch is to run on this machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.finding import Status
from npuenv.preflight.rules import cards, keys, memory, platform, sizes, values  # noqa: F401 - each adds to RULES
from npuenv.preflight.rules.base import RULES
from npuenv.preflight.rules.keys import has_own_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npuenv.preflight.launch import Launch, LaunchFinding
    from npuenv.preflight.rules.base import Rule

__all__ = ["RULES", "examine"]

_ORDER = (Status.FAIL, Status.WARN, Status.UNKNOWN)


def examine(
    launch: Launch, rules: Sequence[Rule] | None = None, *, refused: Iterable[LaunchFinding] = ()
) -> tuple[LaunchFinding, ...]:
    """Every problem of a launch, the worst first, then in the order of the text; one cause speaks once.

    `rules` None: all. `refused` is what the reader found. What a rule raises is a mistake of ours and goes through.
    """
    asked = [rule for rule in (RULES if rules is None else rules) if launch.framework in rule.frameworks]
    judged = (found for rule in asked for found in _judged(rule, launch))
    # What may not be set at all is not judged as if it were.
    sure = (each for each in judged if all(setting.is_sure for setting in each.settings))
    # The same sentence about the same settings is one cause, whatever rule says it.
    unique: dict[tuple[object, ...], LaunchFinding] = {}
    for problem in (*refused, *sure):
        written = tuple(sorted(setting.key for setting in problem.settings))
        unique.setdefault((problem.check, written, problem.says.key, str(problem.says.args)), problem)
    return tuple(sorted(unique.values(), key=_rank))


def _judged(rule: Rule, launch: Launch) -> Iterator[LaunchFinding]:
    is_other = rule.is_trainers and has_own_keys(launch)
    for each in rule.judge(launch):
        yield replace(each, status=Status.WARN) if is_other and each.status is Status.FAIL else each


def _rank(problem: LaunchFinding) -> tuple[object, ...]:
    place = problem.location
    at = (place.path, place.line, place.word) if place else ("", 0, 0)
    return (_ORDER.index(problem.status), *at, problem.check)
