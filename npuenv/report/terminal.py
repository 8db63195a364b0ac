"""The doctor's findings as text: a tree on a terminal, plain lines elsewhere.

rich draws. It is imported for a terminal alone: the other forms of the report do without it.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from npuenv.checks import title
from npuenv.core.errors import BadInput
from npuenv.core.finding import PROBLEMS, Status
from npuenv.core.messages import Message, clean, say
from npuenv.core.shell import shell_line
from npuenv.matrix import load_matrix
from npuenv.report.doctor import FindingGroup, by_area, counts, fix_text, grouped, in_order, is_mendable, machine_lines
from npuenv.report.lines import for_capture, sources_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import RenderableType
    from rich.text import Text

    from npuenv.core.finding import Finding
    from npuenv.facts.collect import Facts

    Span = tuple[str, str]  # text and the name of a style

_STYLES = {
    Status.FAIL: "bold red",
    Status.UNKNOWN: "magenta",
    Status.WARN: "yellow",
    Status.OK: "green",
    Status.SKIP: "dim",
}
_MARKS = {Status.FAIL: "✘", Status.UNKNOWN: "?", Status.WARN: "!", Status.OK: "✔", Status.SKIP: "-"}
_ASCII_MARKS = {**_MARKS, Status.FAIL: "x", Status.OK: "+"}
_LABEL_WIDTH = 8  # the longest word for a status, and a space
_PLAIN_WIDTH = 100  # where a list is cut when there is no terminal to ask
_GUIDE_WIDTH = 4  # of the tree's lines before a branch
_NAMES_AT_MOST = 8  # of checks that share one reason
_EVIDENCE_LINES = 4  # of one deciding line, folded; -v shows all
_NOT_AT_THIS_LEVEL = "checks.skip-level"
_ROOM = 1 << 20  # rich cuts what is wider than its console; commands must stay whole


class Page(NamedTuple):
    """What the report is written on. Without `is_terminal` nothing is folded, so that a log keeps commands whole."""

    width: int = 100
    is_terminal: bool = False
    has_color: bool = False
    is_unicode: bool = True  # False: the terminal's encoding has no tree lines


class Manner(NamedTuple):
    """How much is said, and how.

    `restore` turns stand-ins back into this machine's names: in commands, and on a terminal in sentences too.
    """

    lang: str = "en"
    is_verbose: bool = False
    is_quiet: bool = False
    restore: Callable[[str], str] = str
    again: str = "npuenv doctor"  # the command line that repeats this run
    can_fix: bool = True  # False: a capture, or the single file
    capture: str = ""  # the file that was examined instead of this machine; "": none
    nothing_of: str = ""  # the use of which nothing is installed
    python: str = ""  # the interpreter that was judged
    deeper: str = ""  # the command line that looks further; "": nothing further to look at


class Branch(NamedTuple):
    """What stands below a finding. `commands` are never folded, so that they can be copied."""

    spans: tuple[Span, ...]
    commands: tuple[tuple[Span, ...], ...] = ()
    at_most: int = 0  # folded lines; 0: no limit


class Plain:
    """The report as plain lines, nothing folded. It does without rich, whose import takes longer than a whole look."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)

    def line(self, *spans: Span) -> None:
        """One line."""
        self._lines.append("".join(text for text, _ in spans).rstrip())

    def gap(self) -> None:
        """Plain lines need no space between them."""

    def finding(self, label: Span, says: Sequence[Span], branches: Iterable[Branch], *, is_whole: bool) -> None:
        """A finding with its branches."""
        self.line(label, *says)
        for branch in branches:
            self.line(("  ", ""), *branch.spans)
            for command in branch.commands:
                self.line(("    ", ""), *command)


class Drawn:
    """The report drawn by rich: folded at the terminal's width, findings as trees, with colour."""

    def __init__(self, page: Page) -> None:
        from rich.console import Console

        self._page = page
        self._file = _Memory(page)
        self._console = Console(
            file=self._file,
            width=_ROOM,
            force_terminal=page.has_color,
            color_system="standard" if page.has_color else None,
            no_color=not page.has_color,
            legacy_windows=False,
            highlight=False,
        )

    @property
    def text(self) -> str:
        return self._file.getvalue()

    def line(self, *spans: Span) -> None:
        """One line, or as many as it takes."""
        self._add(self._folded(spans))

    def gap(self) -> None:
        """Space between two parts."""
        self._add("")

    def finding(self, label: Span, says: Sequence[Span], branches: Iterable[Branch], *, is_whole: bool) -> None:
        """A finding with its branches; `is_whole`: evidence is never cut."""
        from rich.text import Text
        from rich.tree import Tree

        indent = _indent(self._page)
        if indent > _GUIDE_WIDTH:  # a column of its own
            head = Text.assemble(label, self._folded(says, indent=indent))
        else:
            head = self._folded([label, *says], indent=indent)
        tree = Tree(head, guide_style="dim")
        for branch in branches:
            text = self._folded(branch.spans, before=_GUIDE_WIDTH, at_most=0 if is_whole else branch.at_most)
            tree.add(Text("\n").join([text, *(Text.assemble("  ", *command) for command in branch.commands)]))
        self._add(tree)

    def _add(self, thing: RenderableType) -> None:
        self._console.print(thing, no_wrap=True, crop=False, overflow="ignore")

    def _folded(self, spans: Iterable[Span], *, before: int = 0, indent: int = 0, at_most: int = 0) -> Text:
        """Styled text in lines that fit behind `before` columns; all but the first begin `indent` columns later.

        With `at_most` the rest is cut with an ellipsis.
        """
        from rich.text import Text

        width = max(self._page.width - before - indent, 8)  # narrower than that, nothing can be read anyway
        lines = list(Text.assemble(*spans).wrap(self._console, width))
        if at_most and len(lines) > at_most:
            lines = lines[:at_most]
            lines[-1].truncate(width - 2)
            lines[-1].append(" …" if self._page.is_unicode else "..", "dim")
        for line in lines:
            line.rstrip()
        return Text("\n" + " " * indent).join(lines)


class _Memory(io.StringIO):
    """Keeps what is printed; rich draws with plain characters where the encoding is ASCII."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self._encoding = "utf-8" if page.is_unicode else "ascii"

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def render_report(findings: Sequence[Finding], facts: Facts, page: Page, manner: Manner) -> str:
    """The whole report. Worst first, causes before their consequences; what is well in one line per area.

    With `is_quiet` only what went wrong; with `is_verbose` every check with its id and source.
    """
    sheet = Drawn(page) if page.is_terminal else Plain()
    if not manner.is_quiet:
        _add_head(sheet, facts, manner)
    told: tuple[Status, ...] = PROBLEMS
    if manner.is_quiet:  # what decides the exit code
        told = (Status.FAIL,) if counts(findings)[Status.FAIL] else (Status.UNKNOWN,)
    groups = grouped(findings, is_merging=not manner.is_verbose)
    shown = [group for group in groups if group.first.status in told or (manner.is_verbose and not manner.is_quiet)]
    own = manner.restore if page.is_terminal else str
    for group in shown:
        says = list(_says(group, manner.lang, own))
        branches = branches_of(group.first, page, manner, own, has_evidence=group.because is None)
        sheet.finding(label_of(group.first.status, page, manner.lang), says, branches, is_whole=manner.is_verbose)
    has_gap = bool(shown) and not manner.is_quiet
    if not (manner.is_verbose or manner.is_quiet):
        if has_gap:
            sheet.gap()
        _add_well(sheet, in_order(findings), page, manner)
    if has_gap:
        sheet.gap()
    if not manner.is_quiet:
        _add_sources(sheet, facts, manner)
    _add_end(sheet, findings, manner)
    stand_ins = _stand_ins(group.first for group in shown) if manner.restore is str else ()
    if stand_ins and not manner.is_quiet:
        sheet.line((say(Message("doctor.stand-ins", {"names": stand_ins}), manner.lang), "dim"))
    return sheet.text


def _stand_ins(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The stand-ins for names that nobody can type as they are, in the commands of findings."""
    fixes = [finding.fix for finding in findings if finding.fix is not None]
    lines = [shell_line(argv) for fix in fixes for argv in fix.commands]
    return tuple(sorted({name for line in lines for name in re.findall(r"\b(?:user|host)[0-9]+\b", line)}))


def _add_head(sheet: Plain | Drawn, facts: Facts, manner: Manner) -> None:
    """Which machine this is, in one line, and what is on it, in another; what is not known is left out."""
    machine, versions = machine_lines(facts, manner.lang)
    name = say(Message("doctor.title"), manner.lang)
    sheet.line((name, "bold"), ("  " if machine else "", ""), (clean(machine), "dim"))
    if versions:
        sheet.line((clean(versions), "cyan"))


def _says(group: FindingGroup, lang: str, own: Callable[[str], str]) -> Iterator[Span]:
    names = [clean(say(title(finding.check), lang)) for finding in group.findings]
    if len(names) > _NAMES_AT_MOST:
        left = len(names) - _NAMES_AT_MOST + 1
        names = [*names[: _NAMES_AT_MOST - 1], say(Message("doctor.more", {"count": left}), lang)]
    joint = "、" if lang == "zh" else ", "
    yield joint.join(names) + ("：" if lang == "zh" else ": "), "bold"
    yield clean(own(say(group.first.says, lang))), ""
    if group.because is not None:
        yield " " + say(Message("doctor.because", {"name": title(group.because)}), lang), "dim"


def branches_of(
    finding: Finding, page: Page, manner: Manner, own: Callable[[str], str] = str, *, has_evidence: bool = True
) -> Iterator[Branch]:
    """What stands below a finding: its evidence where it is a problem, its source with `-v`, its fix."""
    if has_evidence and (finding.status in PROBLEMS or manner.is_verbose):
        arrow = " → " if page.is_terminal and page.is_unicode else " -> "
        for item in dict.fromkeys(finding.evidence):
            command, line = clean(own(item.command)), clean(own(item.line))
            spans = (command, "dim"), (arrow if line else "", "dim"), (line, "cyan")
            yield Branch(spans, at_most=_EVIDENCE_LINES)
    if manner.is_verbose:
        source = say(Message("doctor.source", {"source": finding.source}), manner.lang)
        yield Branch(((f"[{finding.check}] {clean(source)}", "dim"),))
    if finding.fix is not None:
        prompt = "# " if finding.fix.needs_root else "$ "
        lines = [for_capture(manner.restore(shell_line(argv)), manner.capture) for argv in finding.fix.commands]
        commands = tuple(((prompt, "dim"), (line, "bold")) for line in lines)
        text = for_capture(own(fix_text(finding.fix, manner.lang)), manner.capture)
        yield Branch(((clean(text), ""),), commands)


def _add_well(sheet: Plain | Drawn, findings: Sequence[Finding], page: Page, manner: Manner) -> None:
    """What is well, one line per area, cut where the line ends; then how much does not apply."""
    room = (page.width if page.is_terminal else _PLAIN_WIDTH) - _indent(page)
    for area, members in by_area(finding for finding in findings if finding.status is Status.OK).items():
        names = [say(title(finding.check), manner.lang) for finding in members]
        sheet.line(label_of(Status.OK, page, manner.lang), (_listed(area, names, room, manner.lang), ""))
    for says in _skipped(findings):
        sheet.line(label_of(Status.SKIP, page, manner.lang), (_cut(say(says, manner.lang), room), "dim"))


def _skipped(findings: Sequence[Finding]) -> Iterator[Message]:
    """How many checks do not apply, and apart from them how many a higher level would ask."""
    skipped = [finding.says for finding in findings if finding.status is Status.SKIP]
    levels = Counter(str(says.args["level"]) for says in skipped if says.key == _NOT_AT_THIS_LEVEL)
    if len(skipped) > sum(levels.values()):
        yield Message("doctor.skipped", {"count": len(skipped) - sum(levels.values())})
    if levels:
        parts = (Message("doctor.need-level", {"count": levels[level], "level": level}) for level in sorted(levels))
        yield Message("doctor.skipped-level", {"parts": tuple(parts)})


def _listed(area: str, names: Sequence[str], width: int, lang: str) -> str:
    """The names of an area's checks, as many as fit into one line, and how many more there are."""
    from rich.cells import cell_len

    says = ""
    for num_shown in range(len(names), -1, -1):
        shown: tuple[object, ...] = tuple(names[:num_shown])
        if num_shown < len(names):
            left = len(names) - num_shown
            more = Message("doctor.more" if shown else "doctor.num-checks", {"count": left})
            shown = (*shown, more)
        says = say(Message("doctor.well", {"area": Message(f"doctor.area-{area}"), "names": shown}), lang)
        if cell_len(says) <= width:
            break
    return _cut(says, width)


def _cut(text: str, width: int) -> str:
    """The text in one line of `width` columns, with an ellipsis where it is longer."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"


def _add_end(sheet: Plain | Drawn, findings: Sequence[Finding], manner: Manner) -> None:
    """The counts in one line, and what to do next in another."""
    is_bad = bool(counts(findings)[Status.FAIL])
    sheet.line((say(summary(findings), manner.lang), "bold red" if is_bad else "green"))
    if manner.nothing_of and not manner.is_quiet:
        command = ("up",) if manner.nothing_of == "cpu" else ("install", "--host", "this")
        args = {"name": manner.nothing_of, "command": shell_line(("npuenv", *command, "--for", manner.nothing_of))}
        args["python"] = manner.restore(manner.python)
        key = f"doctor.nothing-of{'-there' if manner.capture else ''}"
        sheet.line((say(Message(key, args), manner.lang), ""))
    following = _next(findings, manner)
    if following and not manner.is_quiet:
        sheet.line((say(following, manner.lang), ""))


def _add_sources(sheet: Plain | Drawn, facts: Facts, manner: Manner) -> None:
    """When the rows were read that the installed versions were compared with, where there are any."""
    python, cann = facts.python.interpreter.value, facts.cann.toolkit.value
    has = {name: version.split("+")[0] for name, version in (python.distributions if python else {}).items()}
    try:
        rows = load_matrix().version_rows(has, cann.version if cann else None)
    except BadInput:  # what calls itself a version is none
        return
    days = [row.seen for row in rows]
    if days:
        sheet.line((say(sources_line(min(days), max(days)), manner.lang), "dim"))


def summary(findings: Sequence[Finding]) -> Message:
    """The counts of findings in one line."""
    number = counts(findings)
    args = {status.value: number[status] for status in Status}
    return Message("doctor.summary-bad" if number[Status.FAIL] else "doctor.summary-good", args)


def _next(findings: Sequence[Finding], manner: Manner) -> Message | None:
    """The one thing to do next."""
    number = counts(findings)
    num_mendable = sum(is_mendable(finding) for finding in findings)
    if num_mendable and manner.can_fix:
        return Message("doctor.next-fix", {"command": f"{manner.again} --fix", "count": num_mendable})
    if number[Status.FAIL]:
        return Message(f"doctor.next-mend{'-there' if manner.capture else ''}", {"command": manner.again})
    if number[Status.UNKNOWN]:
        return Message("doctor.next-unknown")
    return Message("doctor.next-deeper", {"command": manner.deeper}) if manner.deeper else None


def label_of(status: Status, page: Page, lang: str) -> Span:
    """The mark and the word for a status, filled up to one width in columns."""
    from rich.cells import cell_len

    word = say(Message(f"doctor.label-{status.value}"), lang)
    if page.is_terminal:
        marks = _MARKS if page.is_unicode else _ASCII_MARKS
        word = f"{marks[status]} {word}"
    return word + " " * max(1, _indent(page) - cell_len(word)), _STYLES[status]


def _indent(page: Page) -> int:
    """Columns before the text of a finding; on a narrow terminal the text takes them."""
    if not page.is_terminal:
        return _LABEL_WIDTH
    return _LABEL_WIDTH + 2 if page.width >= 60 else 4
