"""What a preflight found as JUnit XML, for the test reports of a CI. Start from `render_junit`.

One test case for each problem, and one for each rule that had nothing to say: an error fails it, a warning is its
output, and so is a note. Source: the `junit-10.xsd` of the Jenkins xUnit plugin.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from npuenv.core.messages import Message, say
from npuenv.report.preflight import Veil, body_lines, place_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.preflight.types import Problem
    from npuenv.report.preflight import Examined

# XML 1.0 has no place for these, escaped or not.
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def render_junit(found: Examined, rules: Sequence[str], lang: str) -> str:
    """The XML document with one suite. `rules` are the ids of all rules that judged the launch."""
    spoke = {problem.rule for problem in found.problems}
    silent = [rule for rule in dict.fromkeys(rules) if rule not in spoke]
    totals = f'tests="{len(found.problems) + len(silent)}" failures="{found.counts["error"]}" errors="0"'
    name = _xml(found.path or say(Message("preflight.command"), lang))
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="npuenv preflight" {totals}>',
        f'  <testsuite name="{name}" {totals} skipped="0">',
        *(line for each in _cases(found, lang) for line in each),
        *(f'    <testcase classname="npuenv.preflight" name="{_xml(rule)}"/>' for rule in silent),
        "  </testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _cases(found: Examined, lang: str) -> Iterator[Iterator[str]]:
    veil = Veil(found.launch, *found.others)
    for problem, corrected in zip(found.problems, found.corrected):
        place = problem.settings[0].place if problem.settings else None
        where = place_text(place, found.path, lang)
        yield _case(problem, where, veil(say(problem.says, lang)), body_lines(problem, corrected, veil, lang))


def _case(problem: Problem, where: str, says: str, body: Iterator[str]) -> Iterator[str]:
    yield f'    <testcase classname="npuenv.preflight" name="{_xml(f"{problem.rule} {where}")}">'
    text = _xml("\n".join((where, *body)))
    if problem.severity == "error":
        yield f'      <failure type="{problem.severity}" message="{_xml(says)}">{text}</failure>'
    else:
        yield f"      <system-out>{_xml(problem.severity)}: {text}</system-out>"
    yield "    </testcase>"


def _xml(text: str) -> str:
    """The text for an element or an attribute."""
    return html.escape(_NO_XML.sub("\ufffd", text), quote=True)
