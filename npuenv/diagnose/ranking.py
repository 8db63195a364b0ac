"""From the error patterns that a report matches to a diagnosis: the strongest cause first, and a verdict."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.diagnose.types import Cause, Discriminator, Observation, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npuenv.diagnose.text import Text
    from npuenv.host.report import PasteLine
    from npuenv.matrix.error_patterns import CauseRow, ErrorPattern, ErrorPatterns


_AS_WARNING = 0.75  # what a text weighs in a warning, against the same text in an error
_BEFORE_ERROR = 0.5  # the same in a warning that calls itself harmless, where an error follows
_HARMLESS = re.compile(r"\bignore this warning\b|\bsafely ignored?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Match:
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


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to say of a report as a whole, and the causes that are left, the strongest first."""

    verdict: Verdict
    causes: tuple[Cause, ...]
    because: Observation | None  # the reason for a verdict without a cause
    observations: tuple[Observation, ...]


def judge(patterns: ErrorPatterns, context: MatchContext) -> Judgement:
    """The rows that match a report, ranked."""
    matches = tuple(_matches(patterns.rows, context))
    verdict, causes, because = _verdict(*_rank(matches, patterns.causes), patterns.causes)
    return Judgement(verdict, _with_discriminators(causes, patterns, verdict), because, _observations(matches))


def _matches(rows: Iterable[ErrorPattern], context: MatchContext) -> Iterator[_Match]:
    for row in rows:
        for wanted in context.text.candidates(row.patterns):
            line = context.find(wanted)
            if line is not None:
                if _conditions_hold(row, context) and _counts(row, wanted, line, context):
                    is_said = row.kind == "cause" and wanted[0] != "@"
                    yield _Match(row, line, row.confidence * (_weight(line, context) if is_said else 1))
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


_SURE = 0.5  # from here on a candidate is called the cause
_SURE_OF_PACKAGES = 0.66  # the same for packages and builds: an exception of Python has several causes
# Unless the loader, pip, a compiler or an import of vllm names what it lacks.
_NAMES_IT = re.compile(
    r"cannot open shared object|undefined symbol|Could not find a version|No matching dist|Failed building wheel"
    r"|not a supported wheel"
    r"|^(?!.*Failed to import).*(?:No module named|cannot import name '\w+' from) '(?:vllm|vllm_ascend)\b"
)
_WHOSE_CODE = ("framework-known-bug", "framework-not-adapted")  # what a traceback itself shows
_ON_THE_CARD = "operator-fault"  # can be the release, the driver or the model
_LEAST = 0.25  # below this a candidate is not worth a line
_MAX_CAUSES = 5
_ALMOST_SURE = 0.8
# Of answers that rows gave 0.80 to 0.84, 17 of 21 were right at first contact, of those above 147 of 152: the bound was
# chosen on these answers (tests/diagnose/EXAMS.md). What is said with 0.8 or more is to be right in 95 of 100.
_WELL_FOUNDED, _LESS_FOUNDED = 0.85, 0.79
_PER_MORE = 0.02  # what each further row for the same cause adds
_MOST = 0.97
_SECONDARY = 0.55  # what is left of a late error when another cause stands before it


def _rank(matches: Iterable[_Match], known: Mapping[str, CauseRow]) -> tuple[tuple[Cause, ...], Cause | None]:
    """The causes, those that reach their bar first, and the strongest reason to say that it is not the environment."""
    groups: dict[tuple[str, str], list[_Match]] = defaultdict(list)
    matches = [each for each in matches if each.row.kind != "noise"]
    firm = (each for each in matches if each.row.kind == "cause" and not each.row.is_fallback)
    has_cause = any(each.confidence >= _SURE for each in firm)
    for each in matches:
        if not (each.row.is_fallback and has_cause):
            groups[each.row.kind, each.row.cause].append(each)
    found = {key: _cause(group) for key, group in groups.items()}
    causes = [cause for (kind, _), cause in found.items() if kind == "cause"]
    other = [cause for (kind, _), cause in found.items() if kind == "not-environment"]
    causes = [_less_if_secondary(cause, groups["cause", cause.id], causes) for cause in causes]
    causes.sort(key=lambda cause: (not _is_sure(cause, known), -cause.confidence, cause.line.number, cause.id))
    shown = tuple(_calibrated(cause) for cause in causes if cause.confidence >= _LEAST)[:_MAX_CAUSES]
    reason = max(other, key=lambda cause: cause.confidence, default=None)
    return shown, reason and _calibrated(reason)


def _calibrated(cause: Cause) -> Cause:
    """With a confidence that is right as often as it says."""
    is_well_founded = cause.confidence >= _WELL_FOUNDED
    return cause if is_well_founded else replace(cause, confidence=min(cause.confidence, _LESS_FOUNDED))


def _cause(group: Sequence[_Match]) -> Cause:
    ordered = sorted(group, key=lambda each: -each.confidence)
    first = ordered[0]
    confidence = min(_MOST, first.confidence + _PER_MORE * min(len(ordered) - 1, 3))
    rules = tuple(each.row.id for each in ordered)
    return Cause(first.row.cause, round(max(confidence, first.confidence), 2), first.line, rules)


def _less_if_secondary(cause: Cause, group: Sequence[_Match], causes: Sequence[Cause]) -> Cause:
    """A late error weighs less when another cause stands before it: the first error is usually the cause. Of causes in
    the same line the stronger one counts as the first."""
    if not all(each.row.is_secondary for each in group):
        return cause
    mine = (cause.line.number, -cause.confidence)
    before = any((other.line.number, -other.confidence) < mine for other in causes if other.confidence >= _SURE)
    return replace(cause, confidence=round(cause.confidence * _SECONDARY, 2)) if before else cause


def _is_sure(cause: Cause, known: Mapping[str, CauseRow]) -> bool:
    """Whether a candidate may be called the cause."""
    row = known.get(cause.id)
    is_inferred = row is not None and row.layer in ("python", "build") and cause.id not in _WHOSE_CODE
    is_inferred = is_inferred and not _NAMES_IT.search(cause.line.text)
    return cause.confidence >= (_SURE_OF_PACKAGES if is_inferred else _SURE)


def _verdict(
    causes: tuple[Cause, ...], other: Cause | None, known: Mapping[str, CauseRow]
) -> tuple[Verdict, tuple[Cause, ...], Observation | None]:
    """What to say of the report as a whole, the causes that are left, and the reason for a verdict without a cause."""
    least = _SURE if other is None else max(_SURE, other.confidence)
    if causes and causes[0].confidence >= least:
        return (Verdict.CAUSE if _is_sure(causes[0], known) else Verdict.CANNOT_TELL), causes, None
    if other is None or any(cause.confidence >= least for cause in causes):
        return Verdict.CANNOT_TELL, causes, None
    judged = Verdict.CANNOT_TELL if other.id == _ON_THE_CARD else Verdict.NOT_ENVIRONMENT
    return judged, (), Observation(other.id, other.line)


def _with_discriminators(causes: Sequence[Cause], patterns: ErrorPatterns, judged: Verdict) -> tuple[Cause, ...]:
    """The same causes; the first carries the command that tells it apart from another one, or that shows it to be so.

    An almost certain cause without a rival near it needs none. Where none is claimed, each further candidate carries
    the command that shows it to be so.
    """
    if not causes:
        return ()
    first, *rest = causes
    apart = next(filter(None, (_between(first, other, patterns) for other in rest)), None)
    if apart is None and (rest or first.confidence < _ALMOST_SURE):
        apart = _check(first, patterns)
    if judged is Verdict.CANNOT_TELL:
        rest = [replace(other, separate_by=_check(other, patterns)) for other in rest]
    return replace(first, separate_by=apart), *rest


def _between(one: Cause, other: Cause, patterns: ErrorPatterns) -> Discriminator | None:
    row = patterns.discriminator(one.id, other.id)
    return Discriminator(row.command, row.expect, other.id) if row else None


def _check(cause: Cause, patterns: ErrorPatterns) -> Discriminator | None:
    row = patterns.causes.get(cause.id)
    return Discriminator(row.check, row.expect, "") if row is not None and row.check else None


def _observations(matches: Iterable[_Match]) -> tuple[Observation, ...]:
    """What looks like trouble and is none, in the order of the report, each once."""
    found: dict[str, Observation] = {}
    for each in matches:
        if each.row.kind == "noise":
            found.setdefault(each.row.cause, Observation(each.row.cause, each.line))
    return tuple(sorted(found.values(), key=lambda item: item.line.number))
