"""What the doctor found on many nodes, as HTML, JUnit and SARIF.

Each is made of the same parts as the report on one machine: `html`, `junit` and `sarif` beside this file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from npuenv import __version__
from npuenv.cluster.nodeset import fold
from npuenv.core.errors import ExitCode
from npuenv.core.fact import Evidence
from npuenv.core.finding import PROBLEMS, Finding
from npuenv.core.messages import Message, say
from npuenv.report.cluster import (
    gathered,
    lines_of,
    name_of,
    names_of,
    next_of,
    problems,
    results_of,
    says_of,
    summary,
)
from npuenv.report.doctor import in_order
from npuenv.report.doctor_ci import doctor_cases, doctor_run
from npuenv.report.html import as_text, details_of, heading, whole_page
from npuenv.report.junit import junit
from npuenv.report.sarif import sarif_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.cluster.summary import ClusterReport, NodeReport

_LINES_AT_MOST = 3  # of silent nodes, before the others are folded away
_BETWEEN = "between-nodes"  # what stands for a node's name where it is about several


def formed(form: str, cluster: ClusterReport, *, lang: str, again: str) -> str:
    """The report as `html`, `junit` or `sarif`."""
    if form == "html":
        return _html(cluster, lang, again)
    return _junit(cluster, lang) if form == "junit" else _sarif(cluster, lang)


def _html(cluster: ClusterReport, lang: str, again: str) -> str:
    body = [*_head(cluster, lang, again), *_nodes(cluster, lang)]
    found = gathered(problems(cluster))
    body += [f"<h2>{as_text(say(Message('cluster.html-found'), lang))}</h2>"] if found else []
    for finding, more in found:
        body += _finding(finding, lang)
        body += _also(more, lang) if more else ()
    body += [f"<h2>{as_text(say(Message('cluster.between'), lang))}</h2>"]
    if cluster.why_no_agreement is not None:
        body.append(f'<p class="dim">{as_text(say(cluster.why_no_agreement, lang))}</p>')
    for finding in in_order(cluster.agreement):
        body += _finding(finding, lang)
    foot = say(Message("doctor.html-foot", {"version": __version__}), lang)
    body.append(f'<footer class="meta"><p><code>{as_text(again)}</code></p><p>{as_text(foot)}</p></footer>')
    return whole_page(say(Message("cluster.html-title"), lang), "\n".join(body), lang)


def _head(cluster: ClusterReport, lang: str, again: str) -> Iterator[str]:
    names = fold(report.node.name for report in cluster.nodes)
    overview = say(Message("cluster.overview", {"count": len(cluster.nodes), "names": names}), lang)
    tone = {ExitCode.FINE: "ok", ExitCode.UNKNOWN: "unknown"}.get(cluster.code, "fail")
    yield f"<header>\n<h1>{as_text(say(Message('cluster.html-title'), lang))}</h1>"
    yield f'<p class="dim">{as_text(overview)}</p>'
    yield f'<p class="verdict {tone}"><span class="label">{as_text(say(summary(cluster), lang))}</span></p>'
    following = next_of(cluster, again)
    yield f"<p>{as_text(say(following, lang))}</p></header>" if following else "</header>"


def _nodes(cluster: ClusterReport, lang: str) -> Iterator[str]:
    """What came of whom, worst first; under silent nodes the lines that decide."""
    yield f"<h2>{as_text(say(Message('cluster.html-nodes'), lang))}</h2>"
    for status, says, group in results_of(cluster):
        lines = lines_of(group)
        shown = lines if len(lines) <= _LINES_AT_MOST + 1 else lines[:_LINES_AT_MOST]
        yield f'<section class="finding {status.value}"><h3>{heading(status, "", say(says, lang), lang)}</h3>'
        if lines:
            yield '<dl class="evidence">'
            yield from (f"<dd><code>{as_text(line)}</code></dd>" for line in shown)
            yield "</dl>"
        if shown != lines:
            more = say(Message("doctor.more", {"count": len(lines) - len(shown)}), lang)
            yield f'<details><summary class="dim">{as_text(more)}</summary><dl class="evidence">'
            yield from (f"<dd><code>{as_text(line)}</code></dd>" for line in lines[len(shown) :])
            yield "</dl></details>"
        yield "</section>"


def _also(more: Sequence[Finding], lang: str) -> Iterator[str]:
    """Who else has a finding that was told of a few, folded."""
    names, count = names_of(more)
    finding = more[0]
    says = say(Message("cluster.also-here", {"count": count}), lang)
    head = heading(finding.status, say(name_of(finding), lang), says, lang, nodes=names)
    yield f'<details class="finding {finding.status.value}"><summary>{head}</summary><dl class="evidence">'
    for each in more:
        yield f"<dt><code>{as_text(fold(each.nodes))}</code></dt><dd>{as_text(say(each.says, lang))}</dd>"
    yield "</dl></details>"


def _finding(finding: Finding, lang: str) -> Iterator[str]:
    """A finding with its nodes: open where it is a problem, folded where it is well."""
    outer, inner = ("section", "h3") if finding.status in PROBLEMS else ("details", "summary")
    says = say(finding.says, lang)
    head = heading(finding.status, say(name_of(finding), lang), says, lang, nodes=fold(finding.nodes))
    yield f'<{outer} class="finding {finding.status.value}"><{inner}>{head}</{inner}>'
    yield from details_of([finding], lang, is_grouped=True)
    yield f"</{outer}>"


def _junit(cluster: ClusterReport, lang: str) -> str:
    """One suite for each node, and one for what is between them. A silent node is a case that fails."""
    findings = {report.node.name: _with_failure(report) for report in cluster.nodes}
    findings[_BETWEEN] = cluster.agreement
    return junit("npuenv doctor", {name: doctor_cases(each, lang, name_of) for name, each in findings.items()})


def _sarif(cluster: ClusterReport, lang: str) -> str:
    """One run for each node, and one for what is between them."""
    runs = [
        doctor_run(_with_failure(report), lang=lang, code=report.code, host=report.node.name, name_of=name_of)
        for report in cluster.nodes
    ]
    runs.append(doctor_run(cluster.agreement, lang=lang, code=cluster.code, host=_BETWEEN, name_of=name_of))
    return json.dumps(sarif_log(*runs), ensure_ascii=False, indent=2) + "\n"


def _with_failure(report: NodeReport) -> tuple[Finding, ...]:
    """The findings of a node; its silence as one of them."""
    if report.failure is None and not report.is_unfit:
        return report.findings
    status, says = says_of([report])
    line = (Evidence(f"ssh {report.node.name}", report.line),) if report.line else ()
    return (*report.findings, Finding("cluster.asked", status, says, line, "ssh", None))
