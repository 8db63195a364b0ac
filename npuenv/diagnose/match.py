"""Which known problems a report matches. Start from `match`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npuenv.diagnose.search import Text
    from npuenv.host.report import Line
    from npuenv.matrix.problems import Problem

_AS_WARNING = 0.75  # what a warning weighs against the same words in an error
_BEFORE_SUCCESS = 0.6  # what an exception weighs after which something ran to its end


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

    def find(self, wanted: str) -> Line | None:
        """The line for a text, an `@sign` or a `#code`."""
        if wanted.startswith("@"):
            return self.signs.get(wanted[1:])
        if wanted.startswith("#"):
            return self.codes.get(wanted[1:])
        return self.text.first(wanted)


def match(rows: Iterable[Problem], ground: Ground) -> tuple[Match, ...]:
    """Every row that applies, in the order of the rows."""
    return tuple(_matches(rows, ground))


def _matches(rows: Iterable[Problem], ground: Ground) -> Iterator[Match]:
    ended_well = ground.signs.get("ended-well")
    for row in rows:
        line = next(filter(None, map(ground.find, row.shows)), None)
        if line is None or not _holds(row, ground):
            continue
        weight = _weight(row, line, ended_well)
        if weight:
            yield Match(row, line, row.confidence * weight)


def _weight(row: Problem, line: Line, ended_well: Line | None) -> float:
    """What the row's confidence is multiplied with; 0 where a report that ends well takes the word back."""
    if row.kind != "cause":
        return 1
    if ended_well is not None and not row.even_if_worked:
        return 0 if line.level or line.number > ended_well.number or row.shows[0].startswith("@") else _BEFORE_SUCCESS
    return _AS_WARNING if line.level in ("warning", "info") and not row.shows[0].startswith("@") else 1


def _holds(row: Problem, ground: Ground) -> bool:
    if any(ground.find(wanted) is not None for wanted in row.unless):
        return False
    if any(ground.find(wanted) is None for wanted in row.also):
        return False
    return not row.any_of or any(ground.find(wanted) is not None for wanted in row.any_of)
