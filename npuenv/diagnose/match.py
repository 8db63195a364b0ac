"""Which known problems a report matches. Start from `match`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.diagnose.search import is_supposed
from npuenv.host.report import typed_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from npuenv.diagnose.search import Text
    from npuenv.host.report import Line
    from npuenv.matrix.error_patterns import Problem

_AS_WARNING = 0.75  # what a warning weighs against the same words in an error
_BEFORE_SUCCESS = 0.6  # what an exception weighs after which something ran to its end
_BESIDE_A_MISTAKE = 0.25  # what a state weighs where all that failed is a mistake in the user's own code
# What people set or type: it says what they want, not what happened.
_SETTING = re.compile(
    r"\s*(?:(?:export|declare -x|ENV|set -x)\s+[A-Za-z_]\w*[= ]|(?:-e|--env)[ =][A-Z_]\w*=|- name: \w+\s*$"
    r"|[\"']?[A-Z][A-Z0-9_]{3,}[\"']?\s*(?:=|:\s)\s*[\"']?[^\s\"']*[\"']?,?\s*\\\\?$|[+]{0,2}[a-z_]\w*(?:\.\w+)+=\S*\s*\\\\?$"
    r"|--?[a-zA-Z][\w.-]*(?:[ =][^\s:]+)?\s*\\\\?$)"
)
# `# [Bug]: ImportError: ...` is a headline that looks like the prompt of root.
_HEADLINE = re.compile(r"\b[A-Z]\w*Error: |cannot open shared object|\berror code is ")


@dataclass(frozen=True, slots=True)
class Match:
    """A row of the known problems that applies, its deciding line, and what it weighs in this report."""

    row: Problem
    line: Line
    confidence: float


@dataclass(frozen=True, slots=True)
class Ground:
    """What rows are held against."""

    text: Text
    signs: Mapping[str, Line]
    codes: Mapping[str, Line]
    recovered: frozenset[int] = frozenset()  # numbers of lines whose error did not stop the run

    def find(self, wanted: str) -> Line | None:
        """The line for a text, an `@sign` or a `#code`."""
        if wanted.startswith("@"):
            return self.signs.get(wanted[1:])
        if wanted.startswith("#"):
            return self.codes.get(wanted[1:])
        return self.text.first(wanted)

    def said(self, wanted: str) -> Line | None:
        """The same, but a text counts only where something printed it, not where it is set or typed."""
        if wanted[0] in "@#":
            return self.find(wanted)
        return next((line for line in self.text.all(wanted) if not _is_said_of_nothing(line.text, wanted)), None)

    def stopped(self, wanted: str) -> Line | None:
        """The same, but an error after which the run went on does not count."""
        if wanted[0] == "@":
            return self.find(wanted)
        if wanted[0] != "#":
            said = (line for line in self.text.all(wanted) if not _is_said_of_nothing(line.text, wanted))
            return next((line for line in said if line.number not in self.recovered), None)
        line = self.find(wanted)
        if line is None or line.number not in self.recovered:
            return line
        return next((each for each in self.text.all(wanted[1:]) if each.number not in self.recovered), None)


def _is_said_of_nothing(text: str, wanted: str) -> bool:
    return _is_typed(text) or is_supposed(text, wanted)


def _is_typed(text: str) -> bool:
    if _SETTING.match(text):
        return True
    return typed_command(text) is not None and not _HEADLINE.search(text)


def match(rows: Iterable[Problem], ground: Ground) -> tuple[Match, ...]:
    """Every row that applies, in the order of the rows."""
    return tuple(_matches(rows, ground))


def _matches(rows: Iterable[Problem], ground: Ground) -> Iterator[Match]:
    ended_well = ground.signs.get("ended-well")
    for row in rows:
        shows = ground.text.candidates(row.shows)
        if not shows:  # where nearly all rows end
            continue
        find = _finder(row, ground)
        wanted, line = next(((text, line) for text in shows if (line := find(text)) is not None), ("", None))
        if line is None or not _holds(row, ground):
            continue
        is_state = wanted.startswith("@")
        weight = _weight(row, line, is_state, ended_well) * (_of_state(row, ground) if is_state else 1)
        if weight:
            yield Match(row, line, row.confidence * weight)


def _finder(row: Problem, ground: Ground) -> Callable[[str], Line | None]:
    if row.in_settings:
        return ground.find
    return ground.stopped if row.kind == "cause" and not row.even_if_worked else ground.said


def _of_state(row: Problem, ground: Ground) -> float:
    """What a state weighs that is no error by itself: nothing without one, next to nothing beside a user's mistake."""
    if row.kind != "cause":
        return 1
    if "failed" not in ground.signs:
        return 1 if row.is_fault else 0
    return _BESIDE_A_MISTAKE if "failed-in-code" in ground.signs else 1


def _weight(row: Problem, line: Line, is_state: bool, ended_well: Line | None) -> float:
    """What the row's confidence is multiplied with; 0 where a report that ends well takes the word back."""
    if row.kind != "cause":
        return 1
    if ended_well is not None and not row.even_if_worked:
        if line.level or is_state:
            return 0
        return 1 if line.number > ended_well.number else _BEFORE_SUCCESS  # nothing takes back what comes last
    return _AS_WARNING if line.level in ("warning", "info") and not is_state else 1


def _holds(row: Problem, ground: Ground) -> bool:
    if any(ground.find(wanted) is not None for wanted in row.unless):
        return False
    if any(ground.find(wanted) is None for wanted in row.also):
        return False
    return not row.any_of or any(ground.find(wanted) is not None for wanted in row.any_of)
