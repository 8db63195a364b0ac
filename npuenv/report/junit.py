"""The doctor's findings as JUnit XML, for the test reports of a CI. Start from `render_junit`.

One test case for each check: a failure fails it, a warning is its output, what could not be told is an error, what does
not apply is skipped. Source: the `junit-10.xsd` of the Jenkins xUnit plugin.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from npuenv.checks import title
from npuenv.core.finding import Status
from npuenv.core.messages import Message, say
from npuenv.core.messages.visible import clean
from npuenv.core.shell import shell_line
from npuenv.report.doctor import counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from npuenv.core.finding import Finding

_ELEMENTS = {Status.FAIL: "failure", Status.UNKNOWN: "error", Status.SKIP: "skipped", Status.WARN: "system-out"}
# XML 1.0 has no place for these, escaped or not.
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _title(finding: Finding) -> Message:
    return title(finding.check)


def render_junit(findings: Sequence[Finding], *, lang: str = "en") -> str:
    """The XML document, one suite for each area."""
    areas: dict[str, list[Finding]] = {}
    for finding in findings:
        areas.setdefault(finding.check.partition(".")[0], []).append(finding)
    return whole(findings, (line for area, members in areas.items() for line in suite(area, members, lang)))


def whole(findings: Sequence[Finding], lines: Iterable[str]) -> str:
    """The document around the lines of its suites, with the totals of all their findings."""
    head = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuites name="npuenv doctor"{_totals(findings)}>']
    return "\n".join([*head, *lines, "</testsuites>"]) + "\n"


def suite(
    name: str, findings: Sequence[Finding], lang: str, name_of: Callable[[Finding], Message] = _title
) -> Iterator[str]:
    """The lines of one suite. `name_of`: what a finding is called."""
    yield f'  <testsuite name="{_xml(name)}"{_totals(findings)} skipped="{counts(findings)[Status.SKIP]}">'
    for finding in findings:
        yield from _case(finding, lang, name_of)
    yield "  </testsuite>"


def _totals(findings: Sequence[Finding]) -> str:
    number = counts(findings)
    return f' tests="{len(findings)}" failures="{number[Status.FAIL]}" errors="{number[Status.UNKNOWN]}"'


def _case(finding: Finding, lang: str, name_of: Callable[[Finding], Message]) -> Iterator[str]:
    area = finding.check.partition(".")[0]
    head = f'<testcase classname="npuenv.{_xml(area)}" name="{_xml(finding.check)}"'
    element = _ELEMENTS.get(finding.status)
    if element is None:
        yield f"    {head}/>"
        return
    yield f"    {head}>"
    says = f"{say(name_of(finding), lang)}: {say(finding.says, lang)}"
    body = _xml("\n".join(_body(finding, lang)))
    if element == "skipped":
        yield f'      <skipped message="{_xml(says)}"/>'
    elif element == "system-out":
        yield f"      <system-out>{_xml(says)}\n{body}</system-out>"
    else:
        yield f'      <{element} type="{finding.status.value}" message="{_xml(says)}">{body}</{element}>'
    yield "    </testcase>"


def _body(finding: Finding, lang: str) -> Iterator[str]:
    for item in finding.evidence:
        yield f"{clean(item.command)} -> {clean(item.line)}"
    if finding.fix is not None:
        key = "doctor.fix-dangerous" if finding.fix.is_dangerous else "doctor.fix"
        yield say(Message(key, {"says": finding.fix.says}), lang)
        yield from (f"$ {shell_line(argv)}" for argv in finding.fix.commands)
    yield say(Message("doctor.source", {"source": finding.source}), lang)


def _xml(text: str) -> str:
    """The text for an element or an attribute."""
    return html.escape(_NO_XML.sub("\ufffd", text), quote=True)
