"""What the doctor found, as a tree for people and as the `npuenv.doctor/1` document.

Start from `print_report` and `document`. Nothing is judged here; findings come from `npuenv.checks`.
"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.checks import Status, by_severity, exit_code, title
from npuenv.facts.collect import to_json
from npuenv.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        "findings": [finding_json(finding, lang) for finding in findings],
    }


def print_report(
    console: Console,
    findings: Sequence[Finding],
    facts: Facts,
    *,
    lang: str = "en",
    is_verbose: bool = False,
    restore: Callable[[str], str] = str,
) -> None:
    """Problems first, each with evidence and cure; what is well in one line per area, or all of it when verbose.

    `restore` turns stand-ins in commands back into this machine's names, so that they can be typed as shown.
    A tree on a terminal; elsewhere lines that are never folded, so that a log keeps commands whole.
    """
    ordered = by_severity(findings)
    shown = [finding for finding in ordered if is_verbose or finding.status not in (Status.OK, Status.SKIP)]
    _print_head(console, facts, lang)
    _print_versions(console, facts)
    if console.is_terminal:
        _print_tree(console, [_lines(finding, lang, is_verbose, restore) for finding in shown])
    else:
        for finding in shown:
            for depth, line in _lines(finding, lang, is_verbose, restore):
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


def finding_json(finding: Finding, lang: str) -> dict[str, Any]:
    """One finding of a `--json` document."""
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


def _print_versions(console: Console, facts: Facts) -> None:
    """One line of what is there: chips, driver, CANN, torch; nothing where none of it is known."""
    table, cann, driver, python = facts.smi.value, facts.cann.value, facts.driver.value, facts.python.value
    names = Counter(card.name or "?" for card in table.cards) if table else Counter[str]()
    parts = [f"{count} x {name}" for name, count in names.items()]
    parts += [f"driver {driver.version}"] if driver else []
    parts += [f"CANN {cann.version}"] if cann else []
    versions = python.distributions if python else {}
    parts += [f"{name} {versions[name]}" for name in ("torch", "torch-npu", "vllm-ascend") if name in versions]
    if parts:
        console.print(_text(("  ".join(parts), "cyan")), soft_wrap=True)


def _print_tree(console: Console, findings: Sequence[Sequence[tuple[int, Text]]]) -> None:
    from rich.tree import Tree

    for (_, head), *rest in findings:
        tree = Tree(head, guide_style="dim")
        for _, line in rest:
            tree.add(line)
        console.print(tree)


def _lines(finding: Finding, lang: str, is_verbose: bool, restore: Callable[[str], str]) -> list[tuple[int, Text]]:
    """(depth, line): the sentence, the deciding lines, the cure, its commands."""
    name, says = say(title(finding.check), lang), say(finding.says, lang)
    style = _STYLES[finding.status]
    head = _text((_label(finding.status, lang), style), (f"{name}: ", "bold"), (says, ""))
    lines = [(0, head)]
    is_problem = finding.status not in (Status.OK, Status.SKIP)
    if is_problem or is_verbose:
        lines += [(1, _text((f"{item.command} -> ", "dim"), (item.line, "cyan"))) for item in finding.evidence]
    if finding.fix is not None:
        lines += _fix_lines(finding.fix, lang, restore)
    if is_verbose:
        lines.append(
            (1, _text((f"[{finding.check}] {say(Message('doctor.source', {'source': finding.source}), lang)}", "dim")))
        )
    return lines


def _fix_lines(fix: Fix, lang: str, restore: Callable[[str], str]) -> list[tuple[int, Text]]:
    key = "doctor.fix-dangerous" if fix.is_dangerous else "doctor.fix"
    lines = [(1, _text((say(Message(key, {"says": fix.says}), lang), "")))]
    return lines + [(2, _text(("$ ", "dim"), (restore(shell_line(argv)), "bold"))) for argv in fix.commands]


def _print_well(console: Console, findings: Sequence[Finding], lang: str) -> None:
    """What is well, one line per area, then how much does not apply."""
    areas: dict[str, list[Message]] = {}
    for finding in findings:
        if finding.status is Status.OK:
            areas.setdefault(finding.check.partition(".")[0], []).append(title(finding.check))
    for area, names in areas.items():
        says = say(Message("doctor.well", {"area": Message(f"doctor.area-{area}"), "names": tuple(names)}), lang)
        console.print(
            _text((_label(Status.OK, lang), _STYLES[Status.OK]), (says, "")), soft_wrap=not console.is_terminal
        )
    skipped = sum(finding.status is Status.SKIP for finding in findings)
    if skipped:
        says = say(Message("doctor.skipped", {"count": skipped}), lang)
        console.print(_text((_label(Status.SKIP, lang) + says, _STYLES[Status.SKIP])))


def _print_summary(console: Console, findings: Sequence[Finding], lang: str) -> None:
    counts = Counter(finding.status for finding in findings)
    key = "doctor.summary-bad" if counts[Status.FAIL] else "doctor.summary-good"
    args = {status.value: counts[status] for status in Status}
    console.print(_text((say(Message(key, args), lang), "bold red" if counts[Status.FAIL] else "bold green")))


def _label(status: Status, lang: str) -> str:
    """The word for a status, filled up to one width in columns; Chinese characters take two."""
    from rich.cells import cell_len

    word = say(Message(f"doctor.label-{status.value}"), lang)
    return word + " " * max(1, _LABEL_WIDTH - cell_len(word))


def _text(*parts: tuple[str, str]) -> Text:
    from rich.text import Text

    return Text.assemble(*parts)
