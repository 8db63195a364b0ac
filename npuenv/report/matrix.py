"""What `npuenv matrix` has to say, for people and for programs: the check, the linter's findings, proposed changes.

Each has a `show_…` that writes to a rich console and an `…_json` that gives plain data.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.finding import Status
from npuenv.core.messages import Message, say
from npuenv.report.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from npuenv.core.finding import Finding
    from npuenv.maintain.contradict import RowConflict
    from npuenv.maintain.refresh import Proposal
    from npuenv.matrix.rows import Contradiction

CHECK_SCHEMA = "npuenv.matrix/1"
LINT_SCHEMA = "npuenv.matrix-lint/1"
REFRESH_SCHEMA = "npuenv.matrix-refresh/1"


@dataclass(frozen=True, slots=True)
class Checked:
    """A matrix that is valid: how many rows each file has, what is written down, what was computed."""

    tables: Mapping[str, int]
    contradictions: tuple[Contradiction, ...]
    found: tuple[RowConflict, ...]

    @property
    def has_unsettled(self) -> bool:
        return any(each.standing == "unsettled" for each in self.found)


def show_check(checked: Checked, console: Console, lang: str, *, is_quiet: bool, is_verbose: bool) -> None:
    """Prints what was checked. Quiet: only what nobody has settled. Verbose: the settled ones and all sources too."""
    lines = Lines(console, lang, "matrix")
    if not is_quiet:
        lines.line(lines.word("check-valid", rows=sum(checked.tables.values()), tables=len(checked.tables)))
        _show_written(checked.contradictions, lines, is_verbose=is_verbose)
        counts = collections.Counter(each.standing for each in checked.found)
        standings = {name: counts[name] for name in ("settled", "open", "unsettled")}
        lines.head(lines.word("check-found", count=len(checked.found), **standings))
    shown = {"unsettled"} if is_quiet else {"unsettled", "open", "settled"} if is_verbose else {"unsettled", "open"}
    for standing in ("settled", "open", "unsettled"):
        for each in checked.found:
            if each.standing == standing and standing in shown:
                _show_found(each, lines)
    if not is_quiet and not checked.has_unsettled:
        lines.line(lines.word("check-all-settled"))


def _show_written(rows: Sequence[Contradiction], lines: Lines, *, is_verbose: bool) -> None:
    counts = collections.Counter(row.believe for row in rows)
    args = {"both": counts["both"], "open": counts["open"], "decided": counts["one"] + counts["other"]}
    lines.head(lines.word("check-written", count=len(rows), **args))
    for row in rows:
        lines.line(row.about, 2, "bold")
        for key, side, source in _sides(row):
            lines.line(lines.word(key, side=side), 4)
            if is_verbose:
                lines.line(lines.word("source-of", source=source), 6, "dim")
        if is_verbose:
            lines.line(lines.say(Message(row.why)), 4)


def _sides(row: Contradiction) -> Iterator[tuple[str, str, str]]:
    """Both sides, the believed one first: how it is called, what it says, its source."""
    one, other = (row.one, row.one_source), (row.other, row.other_source)
    first, second = (other, one) if row.believe == "other" else (one, other)
    names = {"both": ("right-in-its-place",) * 2, "open": ("undecided",) * 2}.get(row.believe, ("believed", "rejected"))
    yield (names[0], *first)
    yield (names[1], *second)


def _show_found(found: RowConflict, lines: Lines) -> None:
    lines.line(lines.say(found.says), 2)
    key = {"settled": "settled-by", "open": "open-by", "unsettled": "unsettled"}[found.standing]
    style = "red" if found.standing == "unsettled" else "dim"
    lines.line(lines.word(key, by=found.by), 4, style)


def check_json(checked: Checked, lang: str) -> dict[str, Any]:
    """Data that `json.dumps` takes; ids and keys are the same in every language."""
    standings = collections.Counter(each.standing for each in checked.found)
    return {
        "schema": CHECK_SCHEMA,
        "tables": dict(checked.tables),
        "summary": {
            "contradictions": len(checked.contradictions),
            **{name: standings[name] for name in ("settled", "open", "unsettled")},
        },
        "contradictions": [_contradiction_json(row, lang) for row in checked.contradictions],
        "found": [_found_json(each, lang) for each in checked.found],
    }


def _contradiction_json(row: Contradiction, lang: str) -> dict[str, Any]:
    return {
        "id": row.id,
        "about": row.about,
        "rows": list(row.rows),
        "one": {"says": row.one, "source": row.one_source},
        "other": {"says": row.other, "source": row.other_source},
        "believe": row.believe,
        "why": say(Message(row.why), lang),
    }


def _found_json(found: RowConflict, lang: str) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "rows": list(found.rows),
        "says": say(found.says, lang),
        "standing": found.standing,
        "by": list(found.by),
    }


def show_lint(findings: Sequence[Finding], console: Console, lang: str, *, is_quiet: bool) -> None:
    """Prints one block per finding, as `path:line`, the rule and the lines it rests on. Quiet: errors only."""
    lines = Lines(console, lang, "matrix")
    for each in findings:
        if is_quiet and each.status is not Status.FAIL:
            continue
        style = "red" if each.status is Status.FAIL else "yellow"
        lines.line(f"{each.location}: {lines.word(f'lint-{each.severity}')} {each.check}", 0, style)
        lines.line(lines.say(each.says), 4)
        for evidence in each.evidence:
            lines.line(evidence.line, 6, "dim")
    if not is_quiet:
        lines.line(lines.word("lint-summary" if findings else "lint-clean", **_lint_counts(findings)))


def _lint_counts(findings: Sequence[Finding]) -> dict[str, int]:
    errors = sum(each.status is Status.FAIL for each in findings)
    return {"errors": errors, "warnings": len(findings) - errors}


def lint_json(findings: Sequence[Finding], lang: str) -> dict[str, Any]:
    """The findings as data, in the order they were found."""
    return {
        "schema": LINT_SCHEMA,
        "summary": _lint_counts(findings),
        "complaints": [_lint_row(each, lang) for each in findings],
    }


def _lint_row(finding: Finding, lang: str) -> dict[str, Any]:
    assert finding.location is not None
    return {
        "path": finding.location.path,
        "line": finding.location.line,
        "rule": finding.check,
        "severity": finding.severity,
        "says": say(finding.says, lang),
        "evidence": [item.line for item in finding.evidence],
    }


def refresh_json(proposals: Sequence[Proposal], diff: str) -> dict[str, Any]:
    """The proposals as data, and the text that a person reads."""
    return {
        "schema": REFRESH_SCHEMA,
        "summary": {"proposals": len(proposals)},
        "proposals": [
            {
                "file": each.file,
                "row": each.row_id,
                "kind": each.kind,
                "key": each.key,
                "old": each.old,
                "new": each.new,
                "text": each.text,
                "source": each.source,
            }
            for each in proposals
        ],
        "diff": diff,
    }
