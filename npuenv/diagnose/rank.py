"""From matches to a diagnosis: the strongest cause first, and a verdict."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.diagnose.types import Cause, Discriminator, Observation, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npuenv.diagnose.match import Match
    from npuenv.matrix.error_patterns import ErrorPatterns

SURE = 0.5  # from here on a candidate is called the cause
LEAST = 0.25  # below this a candidate is not worth a line
_MAX_CAUSES = 5
_ALMOST_SURE = 0.8
_PER_MORE = 0.02  # what each further row for the same cause adds
_MOST = 0.97
_SECONDARY = 0.55  # what is left of a late error when another cause stands before it


def rank(matches: Iterable[Match]) -> tuple[tuple[Cause, ...], Cause | None]:
    """The causes, the strongest first, and the strongest reason to say that it is not the environment."""
    groups: dict[tuple[str, str], list[Match]] = defaultdict(list)
    for each in matches:
        if each.row.kind != "noise":
            groups[each.row.kind, each.row.cause].append(each)
    found = {key: _cause(group) for key, group in groups.items()}
    causes = [cause for (kind, _), cause in found.items() if kind == "cause"]
    other = [cause for (kind, _), cause in found.items() if kind == "not-environment"]
    causes = [_less_if_secondary(cause, groups["cause", cause.id], causes) for cause in causes]
    causes.sort(key=lambda cause: (-round(cause.confidence, 2), cause.line.number, cause.id))
    shown = tuple(cause for cause in causes if cause.confidence >= LEAST)[:_MAX_CAUSES]
    return shown, max(other, key=lambda cause: cause.confidence, default=None)


def _cause(group: Sequence[Match]) -> Cause:
    ordered = sorted(group, key=lambda each: -each.confidence)
    first = ordered[0]
    confidence = min(_MOST, first.confidence + _PER_MORE * min(len(ordered) - 1, 3))
    rules = tuple(each.row.id for each in ordered)
    return Cause(first.row.cause, round(max(confidence, first.confidence), 2), first.line, rules)


def _less_if_secondary(cause: Cause, group: Sequence[Match], causes: Sequence[Cause]) -> Cause:
    """A late error weighs less when another cause stands before it: the first error is usually the cause. Of causes in
    the same line the stronger one counts as the first."""
    if not all(each.row.is_secondary for each in group):
        return cause
    mine = (cause.line.number, -cause.confidence)
    before = any((other.line.number, -other.confidence) < mine for other in causes if other.confidence >= SURE)
    return replace(cause, confidence=round(cause.confidence * _SECONDARY, 2)) if before else cause


def verdict(causes: Sequence[Cause], other: Cause | None) -> Verdict:
    """What to say of the report as a whole."""
    strongest = causes[0].confidence if causes else 0.0
    if strongest >= SURE and (other is None or strongest >= other.confidence):
        return Verdict.CAUSE
    return Verdict.NOT_ENVIRONMENT if other is not None else Verdict.CANNOT_TELL


def with_discriminator(causes: Sequence[Cause], patterns: ErrorPatterns) -> tuple[Cause, ...]:
    """The same causes; the first carries the command that tells it apart from another one, or that shows it to be so.

    An almost certain cause without a rival near it needs none.
    """
    if not causes:
        return ()
    first, *rest = causes
    for other in rest:
        row = patterns.discriminator(first.id, other.id)
        if row is not None:
            key = f"between-{row.id.replace('.', '-')}"
            return replace(first, separate_by=Discriminator(row.command, key, other.id)), *rest
    known = patterns.causes.get(first.id)
    if known is not None and known.check and (rest or first.confidence < _ALMOST_SURE):
        first = replace(first, separate_by=Discriminator(known.check, f"expect-{first.id}", ""))
    return first, *rest


def observations(matches: Iterable[Match]) -> tuple[Observation, ...]:
    """What looks like trouble and is none, in the order of the report, each once."""
    found: dict[str, Observation] = {}
    for each in matches:
        if each.row.kind == "noise":
            found.setdefault(each.row.cause, Observation(each.row.cause, each.line))
    return tuple(sorted(found.values(), key=lambda item: item.line.number))
