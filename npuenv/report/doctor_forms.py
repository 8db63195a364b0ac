"""The doctor's findings in forms to hand on: one HTML page, JUnit XML and SARIF.

The page is whole in itself: no script, no picture, no address is loaded, and its policy forbids any. Whatever a machine
printed stands in it as text. In JUnit XML each check is a test case: a failure fails it, a warning is its output, what
could not be told is an error, what does not apply is skipped. The standard library alone, because the doctor's single
file carries this module.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from npuenv import __version__
from npuenv.checks import exit_code, title
from npuenv.core.finding import PROBLEMS, WORST_FIRST, Status
from npuenv.core.messages import Message, clean, say
from npuenv.core.shell import shell_line
from npuenv.facts.collect import to_json
from npuenv.report.ci import BCP47, Case, junit, sarif_log, sarif_run
from npuenv.report.doctor import FindingGroup, by_area, counts, detail_lines, fix_text, grouped, in_order, machine_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from npuenv.core.fact import Evidence
    from npuenv.core.finding import Finding, Fix
    from npuenv.facts.collect import Facts


_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#60646c;--line:#d9dce1;--card:#f7f8fa;--code:#eef0f3;
--fail:#b4232a;--warn:#8a5a00;--unknown:#7a3ea8;--ok:#1b7340;--skip:#60646c}
@media (prefers-color-scheme:dark){:root{--bg:#111417;--fg:#e8eaed;--dim:#9aa0a8;--line:#31363c;--card:#191d21;
--code:#22272c;--fail:#ff8a8a;--warn:#f0bd55;--unknown:#cf9df0;--ok:#6fd397;--skip:#9aa0a8}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);overflow-wrap:anywhere;
font:15px/1.5 system-ui,"Noto Sans CJK SC","Microsoft YaHei",sans-serif}
main{max-width:62rem;margin:0 auto;padding:1.5rem 1.25rem 3rem}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .25rem}
h2{font-size:1.1rem;margin:2rem 0 .75rem}
p{margin:.35rem 0}
.dim{color:var(--dim)}
.verdict{font-size:1.1rem;font-weight:600}
.counts{display:flex;flex-wrap:wrap;gap:.5rem;list-style:none;padding:0;margin:1rem 0}
.counts li{border:1px solid var(--line);border-radius:.5rem;padding:.35rem .8rem;background:var(--card)}
.counts b{font-size:1.15rem;margin-right:.3rem}
.finding{border:1px solid var(--line);border-left:4px solid var(--tone);border-radius:.4rem;background:var(--card);
margin:.6rem 0;padding:.7rem 1rem}
.finding>h3,.finding>summary{font-size:1rem;font-weight:600;margin:0}
details.finding{margin:.25rem 0;padding:.3rem .8rem}
.label{color:var(--tone);font-weight:700;margin-right:.5rem}
.fail{--tone:var(--fail)}.warn{--tone:var(--warn)}.unknown{--tone:var(--unknown)}.ok{--tone:var(--ok)}
.skip{--tone:var(--skip)}
.brief{font-weight:400}
summary{cursor:pointer}
details.area{border-top:1px solid var(--line);padding:.45rem 0}
details.area>summary{font-weight:600}
code,pre,.value{font:13px/1.5 ui-monospace,SFMono-Regular,Consolas,"Liberation Mono",monospace}
pre{background:var(--code);border-radius:.35rem;padding:.5rem .75rem;margin:.4rem 0;white-space:pre-wrap;
-webkit-user-select:all;user-select:all}
dl.evidence{margin:.5rem 0}
dl.evidence dt{color:var(--dim)}
dl.evidence dd{margin:0 0 .3rem 1rem;white-space:pre-wrap}
.caution{color:var(--warn);font-weight:600}
.meta{color:var(--dim);font-size:.85rem}
table{border-collapse:collapse;width:100%;table-layout:fixed}
td,th{border-top:1px solid var(--line);padding:.3rem .5rem .3rem 0;text-align:left;vertical-align:top}
th{width:30%;font-weight:500}
td .value{white-space:pre-wrap;margin:0;background:none;padding:0;user-select:text}
footer{margin-top:2.5rem;border-top:1px solid var(--line);padding-top:.75rem}
@media (max-width:34rem){main{padding:1rem .8rem 2rem}.finding{padding:.6rem .7rem}th{width:38%}}
@media print{:root{--bg:#fff;--fg:#000;--card:#fff;--code:#f3f3f3;--dim:#444;--line:#bbb}main{max-width:none;padding:0}
.finding{break-inside:avoid}details::details-content{content-visibility:visible;display:block}}
"""
_SHORT_LIST = 12  # lines up to which the value of a fact stands open


def render_html(findings: Sequence[Finding], facts: Facts, *, lang: str = "en", asked: str = "") -> str:
    """The page. `asked` is the command line that made it, shown in the foot; "" leaves it away."""
    problems = [group for group in grouped(findings) if group.first.status in PROBLEMS]
    rest = [finding for finding in in_order(findings) if finding.status not in PROBLEMS]
    body = [
        *_head(findings, facts, lang),
        *(part for group in problems for part in _problem(group, lang)),
        *_others(rest, lang),
        *_facts(to_json(facts), lang),
        *_foot(asked, lang),
    ]
    return whole_page(_words("html-title", lang), "\n".join(body), lang)


def whole_page(name: str, body: str, lang: str) -> str:
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        f'<!DOCTYPE html>\n<html lang="{BCP47[lang]}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{as_text(name)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n"
        "</html>\n"
    )


def _head(findings: Sequence[Finding], facts: Facts, lang: str) -> Iterator[str]:
    machine, versions = machine_lines(facts, lang)
    number = counts(findings)
    yield f"<header>\n<h1>{as_text(_words('html-title', lang))}</h1>"
    for line in filter(None, (machine, versions, facts.machine.time.value)):
        yield f'<p class="dim">{as_text(line)}</p>'
    worst = next(status for status in (*PROBLEMS, Status.OK) if number[status] or status is Status.OK)
    verdict = as_text(_words(f"verdict-{worst.value}", lang))
    yield f'<p class="verdict {worst.value}"><span class="label">{verdict}</span></p>'
    yield '<ul class="counts">'
    for status in WORST_FIRST:
        yield (
            f'<li class="{status.value}"><b class="label">{number[status]}</b>'
            f"{as_text(_words(f'count-{status.value}', lang))}</li>"
        )
    yield "</ul>\n</header>"


def _problem(group: FindingGroup, lang: str) -> Iterator[str]:
    """A problem, open, with all that is known about it; several that could not be judged for one reason, together."""
    yield f'<section class="finding {group.first.status.value}" id="{as_text(group.first.check)}">'
    yield f"<h3>{_heading(group.findings, lang)}</h3>"
    if group.because is not None:
        yield f"<p>{as_text(_words('because', lang, name=title(group.because)))}</p>"
    yield from details_of(group.findings, lang)
    yield "</section>"


def _others(findings: Sequence[Finding], lang: str) -> Iterator[str]:
    """What is well or does not apply, by area, each area folded."""
    if findings:
        yield f"<h2>{as_text(_words('html-others', lang))}</h2>"
    for area, members in by_area(findings).items():
        number = counts(members)
        parts = [(status, number[status]) for status in (Status.OK, Status.SKIP) if number[status]]
        joint = "、" if lang == "zh" else ", "
        listed = joint.join(f"{count} {_words(f'count-{status.value}', lang)}" for status, count in parts)
        yield f'<details class="area"><summary>{as_text(_words(f"area-{area}", lang))} '
        yield f'<span class="dim brief">{as_text(listed)}</span></summary>'
        for finding in members:
            yield f'<details class="finding {finding.status.value}" id="{as_text(finding.check)}">'
            yield f"<summary>{_heading([finding], lang)}</summary>"
            yield from details_of([finding], lang)
            yield "</details>"
        yield "</details>"


def _heading(findings: Sequence[Finding], lang: str) -> str:
    names = ("、" if lang == "zh" else ", ").join(say(title(finding.check), lang) for finding in findings)
    return heading(findings[0].status, names, say(findings[0].says, lang), lang)


def heading(status: Status, name: str, says: str, lang: str, *, nodes: str = "") -> str:
    """The label of the status, the nodes, the name and the sentence of a finding."""
    at = f"<code>{as_text(nodes)}</code> " if nodes else ""
    brief = f'<span class="brief">{as_text(says)}</span>'
    colon = "：" if lang == "zh" else ": "
    return f"{label_of(status, lang)}{at}{as_text(name)}{colon if name else ''}{brief}"


def label_of(status: Status, lang: str) -> str:
    return f'<span class="label">{as_text(_words(f"label-{status.value}", lang))}</span>'


def details_of(findings: Sequence[Finding], lang: str, *, is_grouped: bool = False) -> Iterator[str]:
    """What `findings` share: evidence and fix; then the id and the source of each.

    `is_grouped`: a command stands once above all of its lines.
    """
    finding = findings[0]
    if finding.evidence:
        yield '<dl class="evidence">'
        command = None
        for item in finding.evidence:
            head = "" if is_grouped and item.command == command else f"<dt><code>{as_text(item.command)}</code></dt>"
            command = item.command
            yield f"{head}<dd><code>{as_text(item.line)}</code></dd>"
        yield "</dl>"
    if finding.fix is not None:
        yield from _fix(finding.fix, lang)
    for each in findings:
        source = say(Message("doctor.source", {"source": each.source}), lang)
        yield f'<p class="meta"><code>{as_text(each.check)}</code> · {as_text(source)}</p>'


def _fix(fix: Fix, lang: str) -> Iterator[str]:
    css = ' class="caution"' if fix.is_dangerous else ""
    yield f"<p{css}>{as_text(fix_text(fix, lang))}</p>"
    if fix.needs_root and fix.commands:
        yield f'<p class="meta">{as_text(_words("as-root", lang))}</p>'
    for argv in fix.commands:
        yield f"<pre>{as_text(shell_line(argv))}</pre>"


def _facts(groups: Mapping[str, Any], lang: str) -> Iterator[str]:
    """All facts, folded, group by group; a group that is a single fact stands under its own name."""
    yield f"<h2>{as_text(_words('html-facts', lang))}</h2>"
    for name, group in groups.items():
        members = {name: group} if "state" in group and "evidence" in group else group
        if not members:
            continue
        yield f'<details class="area"><summary>{as_text(name)} <span class="dim brief">{len(members)}</span></summary>'
        yield "<table><tbody>"
        for key, fact in members.items():
            yield f'<tr><th scope="row"><code>{as_text(key)}</code></th><td>{_fact(fact, lang)}</td></tr>'
        yield "</tbody></table></details>"


def _fact(fact: Mapping[str, Any], lang: str) -> str:
    if fact["state"] != "known":
        reason = next((item["line"] for item in fact["evidence"] if item["line"]), "")
        state = as_text(_words(f"state-{fact['state']}", lang))
        return f'<span class="dim">{state}</span> <code>{as_text(reason)}</code>'
    lines = list(_outline(fact["value"]))
    block = f'<pre class="value">{as_text(chr(10).join(lines), is_block=True)}</pre>'
    if len(lines) > _SHORT_LIST:
        return f"<details><summary>{as_text(_words('html-lines', lang, count=len(lines)))}</summary>{block}</details>"
    return block


def _outline(value: Any) -> Iterator[str]:
    """A JSON value as indented lines; what holds only plain values stands on one line.

    Example: {"a": 1, "b": [{"c": 2}, {"c": 3}]} -> "a: 1", "b:", "  - c: 2", "  - c: 3"
    """
    if _is_plain(value) or not value:
        yield _one_line(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            if _is_plain(item) or (isinstance(item, (dict, list)) and not item):
                yield f"{key}: {_one_line(item)}"
            else:
                yield f"{key}:"
                yield from (f"  {line}" for line in _outline(item))
    else:
        for item in value:
            if isinstance(item, dict) and all(map(_is_plain, item.values())):
                yield "- " + ", ".join(f"{key}: {_one_line(part)}" for key, part in item.items())
            else:
                first, *rest = _outline(item)
                yield f"- {first}"
                yield from (f"  {line}" for line in rest)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, (dict, list))


def _one_line(value: Any) -> str:
    if isinstance(value, str):
        return value if value.strip() else json.dumps(value)
    return "-" if value == [] or value == {} else json.dumps(value)


def _foot(asked: str, lang: str) -> Iterator[str]:
    yield '<footer class="meta">'
    if asked:
        yield f"<p><code>{as_text(asked)}</code></p>"
    yield f"<p>{as_text(_words('html-foot', lang, version=__version__))}</p></footer>"


def _words(name: str, lang: str, /, **args: object) -> str:
    return say(Message(f"doctor.{name}", args), lang)


def as_text(text: str, *, is_block: bool = False) -> str:
    """The text as HTML: escaped, without control characters, safe in an attribute too."""
    lines = text.split("\n") if is_block else [text]
    return html.escape("\n".join(map(clean, lines)), quote=True)


_ELEMENTS = {Status.FAIL: "failure", Status.UNKNOWN: "error", Status.SKIP: "skipped", Status.WARN: "system-out"}


def _title(finding: Finding) -> Message:
    return title(finding.check)


def render_junit(findings: Iterable[Finding], *, lang: str = "en") -> str:
    """The document of the doctor on one machine, one suite for each area."""
    suites = {area: doctor_cases(members, lang) for area, members in by_area(findings).items()}
    return junit("npuenv doctor", suites)


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
    findings: Sequence[Finding], *, lang: str, code: int, host: str, name_of: Callable[[Finding], Message] = _title
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
