"""The doctor's findings as SARIF 2.1.0, for code scanning and editors. Start from `sarif_document`.

Every check is a rule; problems are results: a failure an error, a warning a warning, what could not be told a note.
Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0 plus Errata 01, sections 3.13 to 3.49.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from npuenv import __version__
from npuenv.checks import exit_code, title
from npuenv.core.finding import Status
from npuenv.core.messages import Message, say
from npuenv.core.messages.visible import clean
from npuenv.core.shell import shell_line
from npuenv.report.doctor import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.core.errors import ExitCode
    from npuenv.core.fact import Evidence
    from npuenv.core.finding import Finding

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Status.FAIL: "error", Status.WARN: "warning", Status.UNKNOWN: "note"}
_BCP47 = {"en": "en", "zh": "zh-Hans"}


def sarif_document(
    findings: Sequence[Finding], *, lang: str = "en", framework: str | None = None, host: str = "host1"
) -> dict[str, Any]:
    """The SARIF log with one run. `host` names the machine in places that are no file."""
    run = run_of(findings, lang=lang, code=exit_code(findings, framework=framework), host=host)
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _title(finding: Finding) -> Message:
    return title(finding.check)


def run_of(
    findings: Sequence[Finding],
    *,
    lang: str,
    code: ExitCode,
    host: str,
    name_of: Callable[[Finding], Message] = _title,
) -> dict[str, Any]:
    """One run. `name_of`: what a finding is called."""
    index = {finding.check: number for number, finding in enumerate(findings)}
    problems = [finding for finding in in_order(findings) if finding.status in _LEVELS]
    driver = {
        "name": "npuenv doctor",
        "version": __version__,
        "language": _BCP47[lang],
        "rules": [_rule(finding, lang, name_of) for finding in findings],
    }
    return {
        "tool": {"driver": driver},
        "language": _BCP47[lang],
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "exitCode": int(code)}],
        "results": [_result(finding, index[finding.check], lang, host, name_of) for finding in problems],
    }


def _rule(finding: Finding, lang: str, name_of: Callable[[Finding], Message]) -> dict[str, Any]:
    source = say(Message("doctor.source", {"source": finding.source}), lang)
    return {
        "id": finding.check,
        "shortDescription": {"text": say(name_of(finding), lang)},
        "help": {"text": source},
        "properties": {"tags": [finding.check.partition(".")[0]]},
    }


def _result(finding: Finding, rule: int, lang: str, host: str, name_of: Callable[[Finding], Message]) -> dict[str, Any]:
    lines = [f"{say(name_of(finding), lang)}: {clean(say(finding.says, lang))}"]
    lines += [f"{clean(item.command)} -> {clean(item.line)}" for item in finding.evidence]
    properties: dict[str, Any] = {"status": finding.status.value}
    fix = finding.fix
    if fix is not None:
        key = "doctor.fix-dangerous" if fix.is_dangerous else "doctor.fix"
        lines.append(say(Message(key, {"says": fix.says}), lang))
        lines += [f"$ {shell_line(argv)}" for argv in fix.commands]
        properties["commands"] = [list(argv) for argv in fix.commands]
    return {
        "ruleId": finding.check,
        "ruleIndex": rule,
        "level": _LEVELS[finding.status],
        "message": {"text": "\n".join(lines)},
        "locations": [_location(finding.evidence, finding.check, host)],
        "partialFingerprints": {"checkId/v1": finding.check},
        "properties": properties,
    }


def _location(evidence: Sequence[Evidence], check: str, host: str) -> dict[str, Any]:
    """The file that decides, where a file does; else the machine by its name."""
    place: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": f"{host}/{check}", "kind": "resource"}]}
    path = next((item.command for item in evidence if item.command.startswith("/") and " " not in item.command), None)
    if path is not None:
        place["physicalLocation"] = {"artifactLocation": {"uri": f"file://{quote(path)}"}}
    return place
