"""Which error patterns a report matches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npuenv.diagnose.search import Text
    from npuenv.host.report import PasteLine
    from npuenv.matrix.error_patterns import ErrorPattern


_AS_WARNING = 0.75  # what a text weighs in a warning, against the same text in an error
_BEFORE_ERROR = 0.5  # the same in a warning that calls itself harmless, where an error follows
_HARMLESS = re.compile(r"\bignore this warning\b|\bsafely ignored?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Match:
    """A row that applies, the line that decides, and the confidence of the row in this report."""

    row: ErrorPattern
    line: PasteLine
    confidence: float


@dataclass(frozen=True, slots=True)
class MatchContext:
    """What rows are matched against."""

    text: Text
    signs: Mapping[str, PasteLine]
    codes: Mapping[str, PasteLine]

    def find(self, wanted: str) -> PasteLine | None:
        """The line for a text, an `@sign` or a `#code`."""
        if wanted.startswith("@"):
            return self.signs.get(wanted[1:])
        if wanted.startswith("#"):
            return self.codes.get(wanted[1:])
        return self.text.first(wanted)


def match(rows: Iterable[ErrorPattern], context: MatchContext) -> Iterator[Match]:
    """Every row that applies, in the order of the rows."""
    for row in rows:
        for wanted in context.text.candidates(row.patterns):
            line = context.find(wanted)
            if line is not None:
                if _conditions_hold(row, context) and _counts(row, wanted, line, context):
                    is_said = row.kind == "cause" and wanted[0] != "@"
                    yield Match(row, line, row.confidence * (_weight(line, context) if is_said else 1))
                break


def _weight(line: PasteLine, context: MatchContext) -> float:
    error = context.signs.get("failed-last")
    if error is not None and error.number > line.number and _HARMLESS.search(line.text[:1000]):
        return _BEFORE_ERROR
    return _AS_WARNING if line.level in ("warning", "info") else 1


def _conditions_hold(row: ErrorPattern, context: MatchContext) -> bool:
    if any(context.find(wanted) is not None for wanted in row.unless):
        return False
    if any(context.find(wanted) is None for wanted in row.all_of):
        return False
    return not row.any_of or any(context.find(wanted) is not None for wanted in row.any_of)


def _counts(row: ErrorPattern, wanted: str, line: PasteLine, context: MatchContext) -> bool:
    """Whether a match shows a cause: nothing worked later, and a mere state stands beside a failure."""
    if row.kind != "cause":
        return True
    is_state = wanted.startswith("@")
    ended_well = context.signs.get("ended-well")
    if ended_well is not None and not row.ignore_success and (is_state or line.number <= ended_well.number):
        return False
    return row.is_fault or not is_state or "failed" in context.signs
