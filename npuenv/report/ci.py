"""Formats for a CI: JUnit XML for its test reports, SARIF 2.1.0 for code scanning and editors.

In SARIF every check or rule is a rule, every problem a result at the level of its severity.
Sources: the `junit-10.xsd` of the Jenkins xUnit plugin; OASIS, Static Analysis Results Interchange Format (SARIF)
Version 2.1.0 plus Errata 01, sections 3.13 to 3.49.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from npuenv import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from npuenv.core.finding import Finding


# XML 1.0 has no place for these, escaped or not.
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Case:
    """A test case; without an element it passes and prints nothing."""

    name: str  # begins with the id of the check or rule
    element: str = ""  # failure, error, skipped or system-out
    type: str = ""  # of a failure or an error
    message: str = ""
    body: str = ""


def junit(program: str, suites: Mapping[str, Sequence[Case]]) -> str:
    """The XML document."""
    cases = [case for suite in suites.values() for case in suite]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuites name="{_xml(program)}"{_totals(cases)}>']
    for name, suite in suites.items():
        skipped = sum(case.element == "skipped" for case in suite)
        lines.append(f'  <testsuite name="{_xml(name)}"{_totals(suite)} skipped="{skipped}">')
        lines += [line for case in suite for line in _case_lines(case)]
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def _totals(cases: Sequence[Case]) -> str:
    number = Counter(case.element for case in cases)
    return f' tests="{len(cases)}" failures="{number["failure"]}" errors="{number["error"]}"'


def _case_lines(case: Case) -> Iterator[str]:
    head = f'<testcase classname="npuenv.{_xml(case.name.partition(".")[0])}" name="{_xml(case.name)}"'
    if not case.element:
        yield f"    {head}/>"
        return
    yield f"    {head}>"
    if case.element == "skipped":
        yield f'      <skipped message="{_xml(case.message)}"/>'
    elif case.element == "system-out":
        yield f"      <system-out>{_xml(case.body)}</system-out>"
    else:
        attributes = f'type="{_xml(case.type)}" message="{_xml(case.message)}"'
        yield f"      <{case.element} {attributes}>{_xml(case.body)}</{case.element}>"
    yield "    </testcase>"


def _xml(text: str) -> str:
    """The text for an element or an attribute."""
    return html.escape(_NO_XML.sub("\ufffd", text), quote=True)


F = TypeVar("F", bound="Finding")
_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
BCP47 = {"en": "en", "zh": "zh-Hans"}


def sarif_log(*runs: dict[str, Any]) -> dict[str, Any]:
    """The document."""
    return {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": list(runs)}


def sarif_run(
    program: str,
    problems: Sequence[F],
    *,
    code: int,
    rules: Iterable[dict[str, Any]],
    describe: Callable[[F], dict[str, Any]],
    lang: str = "",
) -> dict[str, Any]:
    """One run. `describe`: the message of a result, and what else it has besides rule and level."""
    known = list(rules)
    index = {rule["id"]: number for number, rule in enumerate(known)}
    language = {"language": BCP47[lang]} if lang else {}
    return {
        "tool": {"driver": {"name": program, "version": __version__, **language, "rules": known}},
        **language,
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "exitCode": int(code)}],
        "results": [
            {
                "ruleId": finding.check,
                "ruleIndex": index[finding.check],
                "level": finding.severity,
                **describe(finding),
            }
            for finding in problems
        ],
    }
