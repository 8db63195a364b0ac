"""The doctor's findings for a CI: JUnit XML and SARIF.

In JUnit XML each check is a test case: a failure fails it, a warning is its output, what could not be told is an error,
what does not apply is skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from npuenv.checks import exit_code, title
from npuenv.core.finding import PROBLEMS, Status
from npuenv.core.messages import Message, say
from npuenv.core.messages.visible import clean
from npuenv.report.doctor import detail_lines, in_order
from npuenv.report.junit import Case, junit
from npuenv.report.sarif import sarif_log, sarif_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from npuenv.core.fact import Evidence
    from npuenv.core.finding import Finding

_ELEMENTS = {Status.FAIL: "failure", Status.UNKNOWN: "error", Status.SKIP: "skipped", Status.WARN: "system-out"}


def _title(finding: Finding) -> Message:
    return title(finding.check)


def render_junit(findings: Iterable[Finding], *, lang: str = "en") -> str:
    """The document of the doctor on one machine, one suite for each area."""
    areas: dict[str, list[Finding]] = {}
    for finding in findings:
        areas.setdefault(finding.check.partition(".")[0], []).append(finding)
    return junit("npuenv doctor", {area: doctor_cases(members, lang) for area, members in areas.items()})


def doctor_cases(findings: Iterable[Finding], lang: str, name_of: Callable[[Finding], Message] = _title) -> list[Case]:
    """A test case for each finding. `name_of`: what a finding is called."""
    return [_case(finding, say(name_of(finding), lang), lang) for finding in findings]


def _case(finding: Finding, name: str, lang: str) -> Case:
    element = _ELEMENTS.get(finding.status, "")
    says = f"{name}: {say(finding.says, lang)}"
    source = say(Message("doctor.source", {"source": finding.source}), lang)
    body = "\n".join([*detail_lines(finding, lang), source])
    return Case(
        finding.check, element, finding.status.value, says, f"{says}\n{body}" if element == "system-out" else body
    )


def sarif_document(
    findings: Sequence[Finding], *, lang: str = "en", framework: str | None = None, host: str = "host1"
) -> dict[str, Any]:
    """The log of the doctor on one machine. `host` names the machine in places that are no file."""
    return sarif_log(doctor_run(findings, lang=lang, code=exit_code(findings, framework=framework), host=host))


def doctor_run(
    findings: Sequence[Finding],
    *,
    lang: str,
    code: int,
    host: str,
    name_of: Callable[[Finding], Message] = _title,
) -> dict[str, Any]:
    """The run of the doctor on one machine. `name_of`: what a finding is called."""

    def rule(finding: Finding) -> dict[str, Any]:
        return {
            "id": finding.check,
            "shortDescription": {"text": say(name_of(finding), lang)},
            "help": {"text": say(Message("doctor.source", {"source": finding.source}), lang)},
            "properties": {"tags": [finding.check.partition(".")[0]]},
        }

    def describe(finding: Finding) -> dict[str, Any]:
        head = f"{say(name_of(finding), lang)}: {clean(say(finding.says, lang))}"
        commands = {"commands": [list(argv) for argv in finding.fix.commands]} if finding.fix else {}
        return {
            "message": {"text": "\n".join([head, *detail_lines(finding, lang)])},
            "locations": [_location(finding.evidence, finding.check, host)],
            "partialFingerprints": {"checkId/v1": finding.check},
            "properties": {"status": finding.status.value, **commands},
        }

    problems = [finding for finding in in_order(findings) if finding.status in PROBLEMS]
    rules = map(rule, findings)
    return sarif_run("npuenv doctor", problems, code=code, rules=rules, describe=describe, lang=lang)


def _location(evidence: Sequence[Evidence], check: str, host: str) -> dict[str, Any]:
    """The file that decides, where a file does; else the machine by its name."""
    place: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": f"{host}/{check}", "kind": "resource"}]}
    path = next((item.command for item in evidence if item.command.startswith("/") and " " not in item.command), None)
    if path is not None:
        place["physicalLocation"] = {"artifactLocation": {"uri": f"file://{quote(path)}"}}
    return place
