"""What the doctor found on many nodes: as text and as the `npuenv.cluster/1` document. See `render` and `document`.

What several nodes have in the same words is told once, with their names folded. The other forms are in `cluster_forms`.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.checks import Status, title
from npuenv.cluster import consistency as agree
from npuenv.cluster.nodeset import fold
from npuenv.cluster.ssh import jump_host, key_place, trouble_says, typed
from npuenv.cluster.summary import NOT_ASKED, PROBLEMS, alike, told_together
from npuenv.cluster.types import NO_JUMP, Trouble
from npuenv.core.errors import ExitCode
from npuenv.core.messages import Message, say
from npuenv.core.messages.visible import clean
from npuenv.report.doctor import counts, finding_json, grouped, in_order
from npuenv.report.terminal import Branch, Drawn, Manner, Plain, arrow_of, cure_of, label_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.checks import Finding
    from npuenv.cluster.summary import Judged, Shared, Verdict
    from npuenv.report.doctor import Asked
    from npuenv.report.terminal import Page

SCHEMA = "npuenv.cluster/1"
_STATUS = {
    ExitCode.FINE: Status.OK,
    ExitCode.PROBLEMS: Status.FAIL,
    ExitCode.UNKNOWN: Status.UNKNOWN,
    ExitCode.NOTHING_FITS: Status.FAIL,
}
ORDER = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.OK)
_NAMES_AT_MOST = 10  # of what the nodes agree on; -v lists all
_SSH_PORT = 22
_ALIKE_AT_MOST = 3  # of the same finding in other words, and of silent nodes; -v tells all
_EVIDENCE_LINES = 4  # of one deciding line, folded; -v shows all


def document(verdict: Verdict, asked: Asked, lang: str = "en") -> dict[str, Any]:
    """The JSON document. Nodes stand in the order of the inventory; keys and ids do not depend on the language."""
    codes = [node.code for node in verdict.nodes]
    return {
        "schema": SCHEMA,
        "npuenv": __version__,
        "exit": int(verdict.code),
        "asked": {"for": asked.framework, "stack": asked.stack, "level": asked.level, "hosts": verdict.source},
        "summary": {
            "nodes": len(codes),
            "fine": sum(code is ExitCode.FINE for code in codes),
            "problems": sum(code in (ExitCode.PROBLEMS, ExitCode.NOTHING_FITS) for code in codes),
            "unknown": sum(code is ExitCode.UNKNOWN for code in codes),
            "silent": len(verdict.silent),
        },
        "nodes": {judged.node.name: _node_json(judged, lang) for judged in verdict.nodes},
        "agreement": {
            "summary": _counts_json(verdict.agreement),
            "skipped": say(verdict.why_no_agreement, lang) if verdict.why_no_agreement else None,
            "findings": [finding_json(finding, lang) for finding in verdict.agreement],
        },
    }


def render(verdict: Verdict, page: Page, manner: Manner) -> str:
    """The report for people: what came of whom, what is wrong, what does not agree, what to do next."""
    sheet = Drawn(page) if page.is_terminal else Plain()
    if not manner.is_quiet:
        sheet.line(
            (say(Message("cluster.title"), manner.lang), "bold"), ("  ", ""), (_overview(verdict, manner), "dim")
        )
    for status, says, lines in _nodes(verdict, manner):
        branches = (Branch(((clean(line), "cyan"),)) for line in lines)
        sheet.finding(label_of(status, page, manner.lang), [(clean(says), "")], branches, is_whole=True)
    for shared, more in gathered(problems(verdict, manner.is_quiet, is_whole=manner.is_verbose)):
        _tell(sheet, shared, page, manner)
        for each in more if manner.is_verbose else ():
            _tell(sheet, each, page, manner)
        if more and not manner.is_verbose:
            _tell_also(sheet, more, page, manner)
    if manner.is_verbose and not manner.is_quiet:
        for shared in told_together(verdict.nodes, (Status.OK, Status.SKIP)):
            _tell(sheet, shared, page, manner)
    _add_agreement(sheet, verdict, page, manner)
    sheet.line((say(summary(verdict), manner.lang), "green" if verdict.code is ExitCode.FINE else "bold red"))
    following = next_of(verdict, manner.again)
    if following and not manner.is_quiet:
        sheet.line((say(following, manner.lang), ""))
    return sheet.text


def problems(verdict: Verdict, is_quiet: bool = False, *, is_whole: bool = False) -> list[Shared]:
    """What is wrong on nodes, worst first; what many nodes have before what few have.

    What could only not be judged because of another problem of its node is left out, unless all is wanted.
    """
    statuses = (Status.FAIL, Status.UNKNOWN) if is_quiet else PROBLEMS
    nodes = verdict.nodes if is_whole else [_causes_of(judged) for judged in verdict.nodes]
    shared = sorted(told_together(nodes, statuses), key=lambda each: -len(each.names))
    rank = {id(finding): at for at, finding in enumerate(in_order(each.finding for each in shared))}
    return sorted(shared, key=lambda each: rank[id(each.finding)])


def _causes_of(judged: Judged) -> Judged:
    kept = tuple(group.first for group in grouped(judged.findings) if group.because is None)
    return replace(judged, findings=kept)


def gathered(told: Sequence[Shared]) -> list[tuple[Shared, tuple[Shared, ...]]]:
    """The same, where many nodes have the same finding, each in words of its own: the first of them, and behind the
    last one that is told by itself all others.
    """
    kinds = [(each.finding.check, each.finding.status) for each in told]
    alike: dict[object, list[Shared]] = {}
    for kind, each in zip(kinds, told):
        alike.setdefault(kind, []).append(each)
    rows = []
    for kind, each in zip(kinds, told):
        at = alike[kind].index(each)
        is_many = len(alike[kind]) > _ALIKE_AT_MOST + 1
        if at < _ALIKE_AT_MOST or not is_many:
            rows.append((each, tuple(alike[kind][at + 1 :]) if is_many and at == _ALIKE_AT_MOST - 1 else ()))
    return rows


def names_of(told: Sequence[Shared]) -> tuple[str, int]:
    """All nodes that have one of these, folded, and how many they are."""
    names = [name for each in told for name in each.names]
    return fold(names), len(names)


def summary(verdict: Verdict) -> Message:
    """The whole in one line."""
    codes = [node.code for node in verdict.nodes]
    number = counts(verdict.agreement)
    args = {
        "nodes": len(codes),
        "fine": sum(code is ExitCode.FINE for code in codes),
        "silent": len(verdict.silent),
        "apart": number[Status.FAIL],
        "warn": number[Status.WARN],
        "unknown": number[Status.UNKNOWN],
    }
    return Message("cluster.summary-alone" if verdict.why_no_agreement else "cluster.summary", args)


def name_of(finding: Finding) -> Message:
    """The name of a finding for people, be it about one node or between nodes."""
    area, _, name = finding.check.partition(".")
    if area == "cluster":
        return Message(f"cluster.title-{name}")
    return agree.title(finding.check) if area == "agree" else title(finding.check)


def says_of(group: Sequence[Judged]) -> tuple[Status, Message]:
    """What nodes came to that came to the same."""
    first, names = group[0], fold(judged.node.name for judged in group)
    args: dict[str, object] = {"names": names, "count": len(group)}
    if first.trouble is not None:
        addresses = fold(judged.node.address for judged in group)
        says = trouble_says(first.trouble, addresses, first.at)
        return _STATUS[first.code], Message("cluster.node-silent", {**args, "says": says})
    if first.is_unfit:
        return Status.FAIL, Message("cluster.node-unfit", args)
    number = counts(first.findings)
    args |= {"fail": number[Status.FAIL], "warn": number[Status.WARN], "unknown": number[Status.UNKNOWN]}
    if not any(number[status] for status in PROBLEMS):
        return Status.OK, Message("cluster.node-fine", args)
    status = next(status for status in PROBLEMS if number[status])
    return status, Message("cluster.node-findings", args)


def _node_json(judged: Judged, lang: str) -> dict[str, Any]:
    trouble = None
    if judged.trouble is not None:
        says = say(trouble_says(judged.trouble, judged.node.address, judged.at), lang)
        trouble = {"kind": judged.trouble.value, "says": says, "line": judged.line}
    return {
        "address": judged.node.address,
        "exit": int(judged.code),
        "seconds": round(judged.seconds, 1),
        "trouble": trouble,
        "fits": not judged.is_unfit,
        "summary": _counts_json(judged.findings),
        "findings": [finding_json(finding, lang) for finding in judged.findings],
    }


def _counts_json(findings: Sequence[Finding]) -> dict[str, int]:
    number = counts(findings)
    return {status.value: number[status] for status in Status}


def _overview(verdict: Verdict, manner: Manner) -> str:
    args = {"count": len(verdict.nodes), "names": fold(judged.node.name for judged in verdict.nodes)}
    return clean(say(Message("cluster.overview", args), manner.lang))


def _nodes(verdict: Verdict, manner: Manner) -> Iterator[tuple[Status, str, list[str]]]:
    """What nodes came to that came to the same, worst first; of silent ones with the lines that decide."""
    told = [(*says_of(group), group) for group in alike(verdict.nodes)]
    for status, says, group in sorted(told, key=lambda each: ORDER.index(each[0])):
        if status in (Status.FAIL, Status.UNKNOWN) or not manner.is_quiet:
            lines = lines_of(group)
            if len(lines) > _ALIKE_AT_MOST + 1 and not manner.is_verbose:
                more = Message("doctor.more", {"count": len(lines) - _ALIKE_AT_MOST})
                lines[_ALIKE_AT_MOST:] = [say(more, manner.lang)]
            yield status, say(says, manner.lang), lines


def lines_of(group: Sequence[Judged]) -> list[str]:
    """Of silent nodes the lines that decide."""
    return [f"{judged.node.name}: {judged.line}" for judged in group if judged.line]


def _tell(sheet: Plain | Drawn, shared: Shared, page: Page, manner: Manner) -> None:
    """A finding with the nodes that have it; the evidence is the first one's."""
    finding, lang = shared.finding, manner.lang
    colon = "：" if lang == "zh" else ": "
    names = (f"{fold(shared.names)}  ", "bold cyan") if shared.names else ("", "")
    head = [names, (clean(say(name_of(finding), lang)) + colon, "bold"), (clean(say(finding.says, lang)), "")]
    sheet.finding(
        label_of(finding.status, page, lang), head, _branches(finding, page, manner), is_whole=manner.is_verbose
    )


def _tell_also(sheet: Plain | Drawn, more: Sequence[Shared], page: Page, manner: Manner) -> None:
    """Who else has a finding that was told of a few."""
    names, count = names_of(more)
    also = say(Message("cluster.also", {"count": count}), manner.lang)
    name = clean(say(name_of(more[0].finding), manner.lang)) + ("：" if manner.lang == "zh" else ": ")
    sheet.finding(
        label_of(more[0].finding.status, page, manner.lang),
        [(f"{names}  ", "bold cyan"), (name, "bold"), (clean(also), "")],
        (),
        is_whole=False,
    )


def _branches(finding: Finding, page: Page, manner: Manner) -> Iterator[Branch]:
    if finding.status in PROBLEMS or manner.is_verbose:
        for item in dict.fromkeys(finding.evidence):
            command, line = clean(item.command), clean(item.line)
            spans = (command, "dim"), (arrow_of(page) if line else "", "dim"), (line, "cyan")
            yield Branch(spans, at_most=_EVIDENCE_LINES)
    if manner.is_verbose:
        source = say(Message("doctor.source", {"source": finding.source}), manner.lang)
        yield Branch(((f"[{finding.check}] {clean(source)}", "dim"),))
    if finding.fix is not None:
        yield cure_of(finding.fix, manner, str)


def _add_agreement(sheet: Plain | Drawn, verdict: Verdict, page: Page, manner: Manner) -> None:
    from npuenv.cluster.summary import Shared

    if verdict.why_no_agreement is not None:
        if not manner.is_quiet:
            sheet.line(label_of(Status.SKIP, page, manner.lang), (say(verdict.why_no_agreement, manner.lang), "dim"))
        return
    shown = [Status.FAIL, Status.UNKNOWN] if manner.is_quiet else list(Status) if manner.is_verbose else list(PROBLEMS)
    for finding in in_order(verdict.agreement):
        if finding.status in shown:
            _tell(sheet, Shared(finding, ()), page, manner)
    if not manner.is_quiet and not manner.is_verbose:
        well: list[Message] = [name_of(finding) for finding in verdict.agreement if finding.status is Status.OK]
        if well:
            if len(well) > _NAMES_AT_MOST:
                well[_NAMES_AT_MOST:] = [Message("doctor.more", {"count": len(well) - _NAMES_AT_MOST})]
            says = say(Message("cluster.agree-on", {"names": tuple(well)}), manner.lang)
            sheet.line(label_of(Status.OK, page, manner.lang), (clean(says), ""))


def next_of(verdict: Verdict, again: str) -> Message | None:
    """The one thing to do next; `again` is the command line that looks again."""
    # First what is quickly mended from here; behind it there may be more to find.
    silent = sorted(verdict.silent, key=lambda judged: judged.trouble not in NOT_ASKED)
    if silent:
        return _next_of_silent(silent[0], again)
    if any(judged.code is ExitCode.PROBLEMS for judged in verdict.nodes):
        return Message("cluster.next-node", {"command": again})
    return None


def _next_of_silent(judged: Judged, again: str) -> Message:
    """What to do about a node that gave no answer, in commands that lead there as ours do."""
    node, trouble = judged.node, judged.trouble
    assert trouble is not None
    args = {"name": node.name, "address": node.address, "command": again, "host": judged.at}
    if judged.at and trouble is not Trouble.FORBIDDEN:
        return Message("cluster.next-on-the-way", {**args, "ssh": typed(jump_host(node, judged.at), "ssh")})
    # What ssh has noted keys under: the address, with the port where it is another one than usual.
    known = f"[{node.address}]:{node.port}" if node.port not in (None, _SSH_PORT) else node.address
    args |= {"known": shlex.quote(key_place(judged.line) or known), "ssh": typed(node, "ssh")}
    args |= {"ssh_file": typed(node, "ssh", "-F", "FILE"), "copy_id": typed(node, "ssh-copy-id")}
    is_behind = trouble is Trouble.UNREACHABLE and node.jump not in (None, NO_JUMP)
    return Message(f"cluster.next-{trouble.value}{'-behind' if is_behind else ''}", args)
