"""What the doctor found, as a tree for people and as the `npuenv.doctor/1` document.

Start from `print_report` and `document`. Nothing is judged here; findings come from `npuenv.checks`.
"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.checks import Status, by_severity, exit_code
from npuenv.facts.collect import to_json
from npuenv.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from npuenv.checks import Finding, Fix
    from npuenv.facts.collect import Facts

SCHEMA = "npuenv.doctor/1"
_STYLES = {
    Status.FAIL: "bold red",
    Status.UNKNOWN: "magenta",
    Status.WARN: "yellow",
    Status.OK: "green",
    Status.SKIP: "dim",
}
_LABEL_WIDTH = 8
_SHELL_WORDS = ("source", "export", "unset", "ulimit")  # words of the user's shell, kept as they are typed


def document(
    findings: Sequence[Finding], facts: Facts, *, lang: str = "en", framework: str | None = None
) -> dict[str, Any]:
    """The JSON document. Keys, ids and evidence do not depend on the language, `says` does."""
    counts = Counter(finding.status for finding in findings)
    return {
        "schema": SCHEMA,
        "npuenv": __version__,
        "exit": int(exit_code(findings, framework=framework)),
        "summary": {status.value: counts[status] for status in Status},
        "facts": to_json(facts),
        "findings": [_finding_to_json(finding, lang) for finding in findings],
    }


def print_report(
    console: Console, findings: Sequence[Finding], facts: Facts, *, lang: str = "en", is_verbose: bool = False
) -> None:
    """Problems first, each with its evidence and its cure; what is well in one line per area, or all of it when verbose.

    A tree on a terminal; elsewhere lines that are never folded, so that a log keeps commands whole.
    """
    ordered = by_severity(findings)
    shown = [finding for finding in ordered if is_verbose or finding.status not in (Status.OK, Status.SKIP)]
    _print_head(console, facts, lang)
    if console.is_terminal:
        _print_tree(console, shown, lang, is_verbose)
    else:
        for finding in shown:
            for depth, line in _lines(finding, lang, is_verbose):
                console.print("  " * depth, line, sep="", soft_wrap=True)
    if not is_verbose:
        _print_well(console, findings, lang)
    _print_summary(console, findings, lang)


def shell_line(argv: Sequence[str]) -> str:
    """A command as one would type it; the shell's own words keep their arguments unquoted where that is safe."""
    if argv[0] == "export" and len(argv) == 2:
        name, _, value = argv[1].partition("=")
        return f"export {name}={shlex.quote(value)}"
    return shlex.join(argv)


def _finding_to_json(finding: Finding, lang: str) -> dict[str, Any]:
    return {
        "check": finding.check,
        "status": finding.status.value,
        "says": say(finding.says, lang),
        "evidence": [{"command": item.command, "line": item.line} for item in finding.evidence],
        "source": finding.source,
        "fix": _fix_to_json(finding.fix, lang) if finding.fix else None,
    }


def _fix_to_json(fix: Fix, lang: str) -> dict[str, Any]:
    commands = [list(argv) for argv in fix.commands]
    return {"says": say(fix.says, lang), "commands": commands, "dangerous": fix.is_dangerous}


def _print_head(console: Console, facts: Facts, lang: str) -> None:
    """One line that says which machine this is; what is not known is left out."""
    parts = [facts.system.value.name if facts.system.value else "", facts.arch.value or ""]
    if facts.container.value:
        parts.append(say(Message("doctor.in-container", {"kind": facts.container.value}), lang))
    if facts.python.value:
        parts.append(f"Python {facts.python.value.version} ({facts.python.value.executable})")
    console.print(
        _text((say(Message("doctor.title"), lang), "bold"), ("  ", ""), (" · ".join(filter(None, parts)), "dim")),
        soft_wrap=True,
    )


def _print_tree(console: Console, shown: Sequence[Finding], lang: str, is_verbose: bool) -> None:
    from rich.tree import Tree

    for finding in shown:
        (_, head), *rest = _lines(finding, lang, is_verbose)
        tree = Tree(head, guide_style="dim")
        for _, line in rest:
            tree.add(line)
        console.print(tree)


def _lines(finding: Finding, lang: str, is_verbose: bool) -> list[tuple[int, Text]]:
    """(depth, line): the sentence, the deciding lines, the cure, its commands."""
    style = _STYLES[finding.status]
    label = say(Message(f"doctor.label-{finding.status.value}"), lang)
    name = say(Message(f"checks.title-{finding.check.replace('.', '-')}"), lang)
    head = _text((_pad(label, _LABEL_WIDTH), style), (f"{name}: ", "bold"), (say(finding.says, lang), ""))
    lines = [(0, head)]
    is_problem = finding.status not in (Status.OK, Status.SKIP)
    if is_problem or is_verbose:
        lines += [(1, _text((f"{item.command} -> ", "dim"), (item.line, "cyan"))) for item in finding.evidence]
    if finding.fix is not None:
        lines += _fix_lines(finding.fix, lang)
    if is_verbose:
        lines.append(
            (1, _text((f"[{finding.check}] {say(Message('doctor.source', {'source': finding.source}), lang)}", "dim")))
        )
    return lines


def _fix_lines(fix: Fix, lang: str) -> list[tuple[int, Text]]:
    key = "doctor.fix-dangerous" if fix.is_dangerous else "doctor.fix"
    lines = [(1, _text((say(Message(key, {"says": fix.says}), lang), "")))]
    return lines + [(2, _text(("$ ", "dim"), (shell_line(argv), "bold"))) for argv in fix.commands]


def _print_well(console: Console, findings: Sequence[Finding], lang: str) -> None:
    for status in (Status.OK, Status.SKIP):
        areas: dict[str, list[str]] = {}
        for finding in findings:
            if finding.status is status:
                areas.setdefault(finding.check.partition(".")[0], []).append(finding.check)
        label = _pad(say(Message(f"doctor.label-{status.value}"), lang), _LABEL_WIDTH)
        if status is Status.SKIP:
            _print_skipped(console, label, sum(map(len, areas.values())), lang)
            continue
        for area, checks in areas.items():
            names = say(
                Message(
                    "doctor.list",
                    {"names": tuple(Message(f"checks.title-{check.replace('.', '-')}") for check in checks)},
                ),
                lang,
            )
            title = say(Message(f"doctor.area-{area}"), lang)
            line = _text((label, _STYLES[status]), (f"{title}: ", "bold"), (names, ""))
            console.print(line, soft_wrap=not console.is_terminal)


def _print_skipped(console: Console, label: str, count: int, lang: str) -> None:
    if count:
        console.print(
            _text((label, _STYLES[Status.SKIP]), (say(Message("doctor.skipped", {"count": count}), lang), "dim"))
        )


def _print_summary(console: Console, findings: Sequence[Finding], lang: str) -> None:
    counts = Counter(finding.status for finding in findings)
    key = "doctor.summary-bad" if counts[Status.FAIL] else "doctor.summary-good"
    args = {status.value: counts[status] for status in Status}
    console.print(_text((say(Message(key, args), lang), "bold red" if counts[Status.FAIL] else "bold green")))


def _pad(label: str, width: int) -> str:
    """The label filled up to a width in columns; Chinese characters take two."""
    from rich.cells import cell_len

    return label + " " * max(1, width - cell_len(label))


def _text(*parts: tuple[str, str]) -> Text:
    from rich.text import Text

    return Text.assemble(*parts)
