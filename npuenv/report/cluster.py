"""What the doctor found on many nodes: as text, as the `npuenv.cluster/1` document, as HTML, JUnit and SARIF.

What several nodes have in the same words is reported once, with their names folded.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.checks import title
from npuenv.cluster import consistency
from npuenv.cluster.inventory import NO_JUMP, fold
from npuenv.cluster.inventory import grouped as by_key
from npuenv.cluster.ssh import NodeFailure, command_line, describe_failure, host_key_name, jump_host
from npuenv.core.errors import ExitCode
from npuenv.core.fact import Evidence
from npuenv.core.finding import PROBLEMS, WORST_FIRST, Finding, Status
from npuenv.core.messages import Message, clean, say
from npuenv.report.ci import junit, sarif_log
from npuenv.report.doctor import counts, finding_json, grouped, in_order
from npuenv.report.doctor_forms import as_text, details_of, doctor_cases, doctor_run, heading, whole_page
from npuenv.report.terminal import Branch, Drawn, Manner, Plain, branches_of, label_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npuenv.cluster.node_results import ClusterReport, NodeReport
    from npuenv.report.doctor import Scope
    from npuenv.report.terminal import Page, Span


SCHEMA = "npuenv.cluster/1"
_STATUS = {
    ExitCode.FINE: Status.OK,
    ExitCode.PROBLEMS: Status.FAIL,
    ExitCode.UNKNOWN: Status.UNKNOWN,
    ExitCode.NOTHING_FITS: Status.FAIL,
}
_NAMES_AT_MOST = 10  # of what the nodes agree on; -v lists all
_SSH_PORT = 22
_ALIKE_AT_MOST = 3  # of the same finding in other words, and of silent nodes; -v and the folds of the page have all


def document(cluster: ClusterReport, asked: Scope, lang: str = "en") -> dict[str, Any]:
    """The JSON document. Nodes stand in the order of the inventory; keys and ids do not depend on the language."""
    codes = [node.code for node in cluster.nodes]
    return {
        "schema": SCHEMA,
        "npuenv": __version__,
        "exit": int(cluster.code),
        "asked": {"for": asked.framework, "stack": asked.stack, "level": asked.level, "hosts": cluster.source},
        "summary": {
            "nodes": len(codes),
            "fine": sum(code is ExitCode.FINE for code in codes),
            "problems": sum(code in (ExitCode.PROBLEMS, ExitCode.NOTHING_FITS) for code in codes),
            "unknown": sum(code is ExitCode.UNKNOWN for code in codes),
            "silent": len(cluster.silent),
        },
        "nodes": {report.node.name: _node_json(report, lang) for report in cluster.nodes},
        "agreement": {
            "summary": _counts_json(cluster.agreement),
            "skipped": say(cluster.why_no_agreement, lang) if cluster.why_no_agreement else None,
            "findings": [finding_json(finding, lang) for finding in cluster.agreement],
        },
    }


def render(cluster: ClusterReport, page: Page, manner: Manner) -> str:
    """The report for people: what came of whom, what is wrong, what does not agree, what to do next."""
    sheet = Drawn(page) if page.is_terminal else Plain()
    if not manner.is_quiet:
        args = {"count": len(cluster.nodes), "names": fold(report.node.name for report in cluster.nodes)}
        overview = clean(say(Message("cluster.overview", args), manner.lang))
        sheet.line((say(Message("cluster.title"), manner.lang), "bold"), ("  ", ""), (overview, "dim"))
    for status, says, lines in _nodes(cluster, manner):
        branches = (Branch(((clean(line), "cyan"),)) for line in lines)
        sheet.finding(label_of(status, page, manner.lang), [(clean(says), "")], branches, is_whole=True)
    for finding, more in _problem_rows(cluster, manner):
        _tell(sheet, finding, page, manner)
        for each in more if manner.is_verbose else ():
            _tell(sheet, each, page, manner)
        if more and not manner.is_verbose:
            _tell_also(sheet, more, page, manner)
    if manner.is_verbose and not manner.is_quiet:
        for finding in merge_findings(cluster.nodes, (Status.OK, Status.SKIP)):
            _tell(sheet, finding, page, manner)
    _add_agreement(sheet, cluster, page, manner)
    sheet.line((say(summary(cluster), manner.lang), "green" if cluster.code is ExitCode.FINE else "bold red"))
    following = next_of(cluster, manner.again)
    if following and not manner.is_quiet:
        sheet.line((say(following, manner.lang), ""))
    return sheet.text


def problems(cluster: ClusterReport, is_quiet: bool = False, *, is_whole: bool = False) -> list[Finding]:
    """What is wrong on nodes, worst first; what many nodes have before what few have.

    What could only not be judged because of another problem of its node is left out, unless all is wanted.
    """
    nodes = cluster.nodes if is_whole else [_causes_of(report) for report in cluster.nodes]
    return in_order(sorted(merge_findings(nodes, _shown(is_quiet)), key=lambda each: -len(each.nodes)))


def _problem_rows(cluster: ClusterReport, manner: Manner) -> list[tuple[Finding, tuple[Finding, ...]]]:
    """What is wrong on nodes, gathered, and between them, worst first; among equals, what is on nodes first."""
    rows = gathered(problems(cluster, manner.is_quiet, is_whole=manner.is_verbose))
    rows += [(finding, ()) for finding in in_order(cluster.agreement) if finding.status in _shown(manner.is_quiet)]
    return sorted(rows, key=lambda row: WORST_FIRST.index(row[0].status))


def _shown(is_quiet: bool) -> Sequence[Status]:
    return (Status.FAIL, Status.UNKNOWN) if is_quiet else PROBLEMS


def _causes_of(report: NodeReport) -> NodeReport:
    kept = tuple(group.first for group in grouped(report.findings) if group.because is None)
    return replace(report, findings=kept)


def gathered(findings: Sequence[Finding]) -> list[tuple[Finding, tuple[Finding, ...]]]:
    """The same, where many nodes have the same finding, each in words of its own: the first of them, and behind the
    last one that is told by itself all others.
    """
    kinds = [(each.check, each.status) for each in findings]
    by_kind: dict[object, list[Finding]] = {}
    for kind, each in zip(kinds, findings):
        by_kind.setdefault(kind, []).append(each)
    rows = []
    for kind, each in zip(kinds, findings):
        at = by_kind[kind].index(each)
        is_many = len(by_kind[kind]) > _ALIKE_AT_MOST + 1
        if at < _ALIKE_AT_MOST or not is_many:
            rows.append((each, tuple(by_kind[kind][at + 1 :]) if is_many and at == _ALIKE_AT_MOST - 1 else ()))
    return rows


def names_of(findings: Sequence[Finding]) -> tuple[str, int]:
    """All nodes that have one of these, folded, and how many they are."""
    names = [name for each in findings for name in each.nodes]
    return fold(names), len(names)


def summary(cluster: ClusterReport) -> Message:
    """The whole in one line."""
    codes = [node.code for node in cluster.nodes]
    number = counts(cluster.agreement)
    args = {
        "nodes": len(codes),
        "fine": sum(code is ExitCode.FINE for code in codes),
        "silent": len(cluster.silent),
        "apart": number[Status.FAIL],
        "warn": number[Status.WARN],
        "unknown": number[Status.UNKNOWN],
    }
    return Message("cluster.summary-alone" if cluster.why_no_agreement else "cluster.summary", args)


def _name_of(finding: Finding) -> Message:
    """The name of a finding for people, be it about one node or between nodes."""
    area, _, name = finding.check.partition(".")
    if area == "cluster":
        return Message(f"cluster.title-{name}")
    return consistency.title(finding.check) if area == "agree" else title(finding.check)


def says_of(group: Sequence[NodeReport]) -> tuple[Status, Message]:
    """What nodes came to that came to the same."""
    first, names = group[0], fold(report.node.name for report in group)
    args: dict[str, object] = {"names": names, "count": len(group)}
    if first.failure is not None:
        addresses = fold(report.node.address for report in group)
        says = describe_failure(first.failure, addresses, first.at)
        return _STATUS[first.code], Message("cluster.node-silent", {**args, "says": says})
    if first.is_unfit:
        return Status.FAIL, Message("cluster.node-unfit", args)
    number = counts(first.findings)
    args |= {"fail": number[Status.FAIL], "warn": number[Status.WARN], "unknown": number[Status.UNKNOWN]}
    if not any(number[status] for status in PROBLEMS):
        return Status.OK, Message("cluster.node-fine", args)
    status = next(status for status in PROBLEMS if number[status])
    return status, Message("cluster.node-findings", args)


def _results_of(cluster: ClusterReport) -> list[tuple[Status, Message, tuple[NodeReport, ...]]]:
    """What nodes came to that came to the same, worst first."""
    groups = [(*says_of(group), group) for group in group_nodes(cluster.nodes)]
    return sorted(groups, key=lambda each: WORST_FIRST.index(each[0]))


def _node_json(report: NodeReport, lang: str) -> dict[str, Any]:
    failure = None
    if report.failure is not None:
        says = say(describe_failure(report.failure, report.node.address, report.at), lang)
        failure = {"kind": report.failure.value, "says": says, "line": report.line}
    return {
        "address": report.node.address,
        "exit": int(report.code),
        "seconds": round(report.seconds, 1),
        "trouble": failure,
        "fits": not report.is_unfit,
        "summary": _counts_json(report.findings),
        "findings": [finding_json(finding, lang) for finding in report.findings],
    }


def _counts_json(findings: Sequence[Finding]) -> dict[str, int]:
    number = counts(findings)
    return {status.value: number[status] for status in Status}


def _nodes(cluster: ClusterReport, manner: Manner) -> Iterator[tuple[Status, str, list[str]]]:
    """What nodes came to that came to the same, worst first; of silent ones with the lines that decide."""
    for status, says, group in _results_of(cluster):
        if status in (Status.FAIL, Status.UNKNOWN) or not manner.is_quiet:
            lines = _lines_of(group)
            if len(lines) > _ALIKE_AT_MOST + 1 and not manner.is_verbose:
                more = Message("doctor.more", {"count": len(lines) - _ALIKE_AT_MOST})
                lines[_ALIKE_AT_MOST:] = [say(more, manner.lang)]
            yield status, say(says, manner.lang), lines


def _lines_of(group: Sequence[NodeReport]) -> list[str]:
    """Of silent nodes the lines that decide."""
    return [f"{report.node.name}: {report.line}" for report in group if report.line]


def _tell(sheet: Plain | Drawn, finding: Finding, page: Page, manner: Manner) -> None:
    """A finding with the nodes that have it; the evidence is the first one's."""
    head = _head(fold(finding.nodes), finding, clean(say(finding.says, manner.lang)), manner.lang)
    label = label_of(finding.status, page, manner.lang)
    sheet.finding(label, head, branches_of(finding, page, manner), is_whole=manner.is_verbose)


def _tell_also(sheet: Plain | Drawn, more: Sequence[Finding], page: Page, manner: Manner) -> None:
    """Who else has a finding that was told of a few."""
    names, count = names_of(more)
    also = clean(say(Message("cluster.also", {"count": count}), manner.lang))
    label = label_of(more[0].status, page, manner.lang)
    sheet.finding(label, _head(names, more[0], also, manner.lang), (), is_whole=False)


def _head(names: str, finding: Finding, says: str, lang: str) -> list[Span]:
    name = clean(say(_name_of(finding), lang)) + ("：" if lang == "zh" else ": ")
    return [(f"{names}  " if names else "", "bold cyan"), (name, "bold"), (says, "")]


def _add_agreement(sheet: Plain | Drawn, cluster: ClusterReport, page: Page, manner: Manner) -> None:
    """What the nodes agree on, or why they were not compared."""
    if cluster.why_no_agreement is not None:
        if not manner.is_quiet:
            sheet.line(label_of(Status.SKIP, page, manner.lang), (say(cluster.why_no_agreement, manner.lang), "dim"))
        return
    if manner.is_verbose and not manner.is_quiet:
        for finding in in_order(cluster.agreement):
            if finding.status not in PROBLEMS:
                _tell(sheet, finding, page, manner)
    elif not manner.is_quiet:
        well: list[Message] = [_name_of(finding) for finding in cluster.agreement if finding.status is Status.OK]
        if well:
            if len(well) > _NAMES_AT_MOST:
                well[_NAMES_AT_MOST:] = [Message("doctor.more", {"count": len(well) - _NAMES_AT_MOST})]
            says = say(Message("cluster.agree-on", {"names": tuple(well)}), manner.lang)
            sheet.line(label_of(Status.OK, page, manner.lang), (clean(says), ""))


def next_of(cluster: ClusterReport, again: str) -> Message | None:
    """The one thing to do next; `again` is the command line that looks again."""
    # First what is quickly mended from here; behind it there may be more to find.
    silent = sorted(cluster.silent, key=lambda report: not (report.failure and report.failure.is_not_asked))
    if silent:
        return _next_of_silent(silent[0], again)
    if any(report.code is ExitCode.PROBLEMS for report in cluster.nodes):
        return Message("cluster.next-node", {"command": again})
    if any(finding.status is Status.FAIL for finding in cluster.agreement):
        return Message("cluster.next-between", {"command": again})
    return None


def _next_of_silent(report: NodeReport, again: str) -> Message:
    """What to do about a node that gave no answer, in commands that lead there as ours do."""
    node, failure = report.node, report.failure
    assert failure is not None
    args = {"name": node.name, "address": node.address, "command": again, "host": report.at}
    if report.at and failure is not NodeFailure.FORBIDDEN:
        return Message("cluster.next-on-the-way", {**args, "ssh": command_line(jump_host(node, report.at), "ssh")})
    # What ssh has noted keys under: the address, with the port where it is another one than usual.
    known = f"[{node.address}]:{node.port}" if node.port not in (None, _SSH_PORT) else node.address
    args |= {"known": shlex.quote(host_key_name(report.line) or known), "ssh": command_line(node, "ssh")}
    args |= {"ssh_file": command_line(node, "ssh", "-F", "FILE"), "copy_id": command_line(node, "ssh-copy-id")}
    is_behind = failure is NodeFailure.UNREACHABLE and node.jump not in (None, NO_JUMP)
    return Message(f"cluster.next-{failure.value}{'-behind' if is_behind else ''}", args)


_BETWEEN = "between-nodes"  # what stands for a node's name where it is about several


def formed(form: str, cluster: ClusterReport, *, lang: str, again: str) -> str:
    """The report as `html`, `junit` or `sarif`."""
    if form == "html":
        return _html(cluster, lang, again)
    return _junit(cluster, lang) if form == "junit" else _sarif(cluster, lang)


def _html(cluster: ClusterReport, lang: str, again: str) -> str:
    body = [*_html_head(cluster, lang, again), *_html_nodes(cluster, lang)]
    found, between = problems(cluster), in_order(cluster.agreement)
    parts = [(_rank(found), _html_found(found, lang)), (_rank(between), _html_between(cluster, between, lang))]
    for _, lines in sorted(parts, key=lambda part: part[0]):
        body += lines
    foot = say(Message("doctor.html-foot", {"version": __version__}), lang)
    body.append(f'<footer class="meta"><p><code>{as_text(again)}</code></p><p>{as_text(foot)}</p></footer>')
    return whole_page(say(Message("cluster.html-title"), lang), "\n".join(body), lang)


def _html_head(cluster: ClusterReport, lang: str, again: str) -> Iterator[str]:
    names = fold(report.node.name for report in cluster.nodes)
    overview = say(Message("cluster.overview", {"count": len(cluster.nodes), "names": names}), lang)
    tone = {ExitCode.FINE: "ok", ExitCode.UNKNOWN: "unknown"}.get(cluster.code, "fail")
    yield f"<header>\n<h1>{as_text(say(Message('cluster.html-title'), lang))}</h1>"
    yield f'<p class="dim">{as_text(overview)}</p>'
    yield f'<p class="verdict {tone}"><span class="label">{as_text(say(summary(cluster), lang))}</span></p>'
    following = next_of(cluster, again)
    yield f"<p>{as_text(say(following, lang))}</p></header>" if following else "</header>"


def _html_nodes(cluster: ClusterReport, lang: str) -> Iterator[str]:
    """What came of whom, worst first; under silent nodes the lines that decide."""
    yield f"<h2>{as_text(say(Message('cluster.html-nodes'), lang))}</h2>"
    for status, says, group in _results_of(cluster):
        lines = _lines_of(group)
        shown = lines if len(lines) <= _ALIKE_AT_MOST + 1 else lines[:_ALIKE_AT_MOST]
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


def _rank(findings: Sequence[Finding]) -> int:
    """How late a section with these stands, by its worst, which is the first."""
    return WORST_FIRST.index(findings[0].status) if findings else len(WORST_FIRST)


def _html_found(found: Sequence[Finding], lang: str) -> Iterator[str]:
    if found:
        yield f"<h2>{as_text(say(Message('cluster.html-found'), lang))}</h2>"
    for finding, more in gathered(found):
        yield from _html_finding(finding, lang)
        yield from _html_also(more, lang) if more else ()


def _html_between(cluster: ClusterReport, between: Sequence[Finding], lang: str) -> Iterator[str]:
    yield f"<h2>{as_text(say(Message('cluster.between'), lang))}</h2>"
    if cluster.why_no_agreement is not None:
        yield f'<p class="dim">{as_text(say(cluster.why_no_agreement, lang))}</p>'
    for finding in between:
        yield from _html_finding(finding, lang)


def _html_also(more: Sequence[Finding], lang: str) -> Iterator[str]:
    """Who else has a finding that was told of a few, folded."""
    names, count = names_of(more)
    finding = more[0]
    says = say(Message("cluster.also-here", {"count": count}), lang)
    head = heading(finding.status, say(_name_of(finding), lang), says, lang, nodes=names)
    yield f'<details class="finding {finding.status.value}"><summary>{head}</summary><dl class="evidence">'
    for each in more:
        yield f"<dt><code>{as_text(fold(each.nodes))}</code></dt><dd>{as_text(say(each.says, lang))}</dd>"
    yield "</dl></details>"


def _html_finding(finding: Finding, lang: str) -> Iterator[str]:
    """A finding with its nodes: open where it is a problem, folded where it is well."""
    outer, inner = ("section", "h3") if finding.status in PROBLEMS else ("details", "summary")
    says = say(finding.says, lang)
    head = heading(finding.status, say(_name_of(finding), lang), says, lang, nodes=fold(finding.nodes))
    yield f'<{outer} class="finding {finding.status.value}"><{inner}>{head}</{inner}>'
    yield from details_of([finding], lang, is_grouped=True)
    yield f"</{outer}>"


def _junit(cluster: ClusterReport, lang: str) -> str:
    """One suite for each node, and one for what is between them. A silent node is a case that fails."""
    findings = {report.node.name: _with_failure(report) for report in cluster.nodes}
    findings[_BETWEEN] = cluster.agreement
    return junit("npuenv doctor", {name: doctor_cases(each, lang, _name_of) for name, each in findings.items()})


def _sarif(cluster: ClusterReport, lang: str) -> str:
    """One run for each node, and one for what is between them."""
    runs = [
        doctor_run(_with_failure(report), lang=lang, code=report.code, host=report.node.name, name_of=_name_of)
        for report in cluster.nodes
    ]
    runs.append(doctor_run(cluster.agreement, lang=lang, code=cluster.code, host=_BETWEEN, name_of=_name_of))
    return json.dumps(sarif_log(*runs), ensure_ascii=False, indent=2) + "\n"


def _with_failure(report: NodeReport) -> tuple[Finding, ...]:
    """The findings of a node; its silence as one of them."""
    if report.failure is None and not report.is_unfit:
        return report.findings
    status, says = says_of([report])
    line = (Evidence(f"ssh {report.node.name}", report.line),) if report.line else ()
    return (*report.findings, Finding("cluster.asked", status, says, line, "ssh", None))


def merge_findings(nodes: Iterable[NodeReport], statuses: Sequence[Status] = PROBLEMS) -> list[Finding]:
    """The findings with these statuses; those with the same sentence and fix are one, with all their nodes."""
    groups = by_key(
        ((finding.check, finding.status, say(finding.says, "en"), _fix_key(finding)), (finding, report.node.name))
        for report in nodes
        for finding in report.findings
        if finding.status in statuses
    )
    return [replace(group[0][0], nodes=tuple(name for _, name in group)) for group in groups.values()]


def _fix_key(finding: Finding) -> object:
    """What a node is to do, as a key."""
    fix = finding.fix
    return (say(fix.says, "en"), fix.commands) if fix else None


def group_nodes(nodes: Iterable[NodeReport]) -> list[tuple[NodeReport, ...]]:
    """The nodes grouped by result: the same failure, or the same number of findings of each status."""

    def result(report: NodeReport) -> tuple[object, ...]:
        numbers = tuple(sum(finding.status is status for finding in report.findings) for status in PROBLEMS)
        return report.failure, report.at, report.is_unfit, report.code, numbers

    return [tuple(group) for group in by_key((result(report), report) for report in nodes).values()]
