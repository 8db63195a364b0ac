"""Errors after which the same run went on: caught, tried again, or done in another way. Start from `went_on`.

A run ends where the next command is typed, and at the fences and headings that people put between two logs: what
another run could do says nothing of this one. An error that comes back for good is not
recovered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.diagnose.timestamps import stands_before
from npuenv.host.report import typed_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.host.report import Line

# Work that is being done: steps with what they measured, results that were written, tries that came off.
_PROGRESS = re.compile(
    r"\b(?:global[_ ])?(?:step|iter|iteration|epoch)s?\b[ :=\[(]{0,3}\d+(?: ?/ ?\d+)?\b[^\n]{0,120}"
    r"\b(?:loss|lr|reward|tokens|grad_norm|throughput|elapsed|s/it|it/s)\b|\{'loss': |\bloss[ :=]+\d+\.\d+"
    r"|\b(?:checkpoint|ckpt|model|adapter|weights)\b[^\n]{0,40}\b(?:saved|written)\b"
    r"|\bsaved? (?:the )?(?:final )?(?:checkpoint|model)\b"
    r"|\b(?:retry|attempt|try)\b[^\n]{0,40}\b(?:succeeded|successful|succeeds|ok)\b"
    r"|\b(?:succeeded|connected|joined|recovered) (?:on|at|after|in) (?:\w+ )?"
    r"(?:attempt|retry|try|retries|attempts|tries)\b"
    r"|\b(?:all|both|\d+)(?: of \d+)? (?:ranks|workers|nodes) (?:are )?(?:connected|joined|ready|up)\b"
    r"|\b(?:server|service|engine|cluster|model) (?:is )?(?:now )?(?:ready|started|running|listening|up)\b"
    r"|\bready to (?:serve|accept)\b|Successfully (?:installed|built|tagged|connected)"
    r"|训练(?:正常|继续)|重试成功|第[二三四\d]次[^\n]{0,8}成功"
    r"|Application startup complete|\" 200 OK|Avg generation throughput",
    re.IGNORECASE,
)
_NO_PROGRESS = re.compile(
    r"\b(?:not|never|cannot|failed|fails|unable|isn't|without|nan)\b|未|没|不能|失败", re.IGNORECASE
)
# That someone dealt with an error.
_HANDLED = re.compile(
    r"\bcaught\b|\bretr(?:y|ies|ied|ying)\b|\battempt(?:s|ing)? ?#?\d"
    r"|\b(?:try|trying|tries) (?:again|another|next|port|the next|with)"
    r"|\bfall(?:s|ing|en)?[ -]?back\b|\bfell back\b|\b(?:decreas|reduc|lower|halv)ing\b"
    r"|\b(?:choos|select|us|pick)ing (?:another|port|the next|a smaller)"
    r"|\binstead\b|\bnext (?:free )?(?:port|mirror|server)\b|\bskipp(?:ed|ing)\b"
    r"|\bignor(?:ed|ing)\b|\brecover(?:ed|ing)\b"
    r"|重试|再试|改用|改为|回退|降级|跳过|忽略|已恢复|自动恢复",
    re.IGNORECASE,
)  # fmt: skip
_TROUBLE = re.compile(
    r"error|fail|exception|cannot|can't|could(?: not|n't)|unable|not found|no module|out of memory"
    r"|timed? ?out|timeout|refused|in use|unreachable|unavailable|not available|no space|insufficient|denied"
    r"|unsupported|not support|\bdied\b|killed|aborted|\blost\b|reset by peer|errno|traceback|no such"
    r"|失败|错误|超时|占用", re.IGNORECASE,
)  # fmt: skip
# Fences, headings, names of nodes, and sentences that bring in another log.
_BREAK = re.compile(
    r"\s*(?:```|~~~|#{1,6} \S|</?details|[=-]{2,} ?(?:[Nn]ode|[Ww]orker|[Hh]ost|[Rr]ank)"
    r"|(?:But|However|With|Without|If I|When I|While|Whereas|On the other)\b[ ,]+[a-z]"
    r"|(?:但是?|而|如果|换成?|改成|去掉|关掉|单卡|单机)[^\n]{0,60}$"
    r"|[\w ]{0,16}(?:[Nn]ode|[Ww]orker|[Hh]ost|[Rr]ank|[Hh]ead|[Mm]achine)[\w -]{0,16}(?:\([^()\n]{1,40}\))?[:：]\s*$)"
)
# After an empty line: elsewhere programs end lines so too.
_BRINGS_IN = re.compile(
    r"\s*(?!Traceback|The above|During handling)(?:[A-Z][\w' ,.()/=-]{2,80}"
    r"|[^\n:]{0,40}[\u4e00-\u9fff][^\n:]{0,40})[:：]\s*$"
)
_NEAR = 8  # lines after an error within which it is dealt with
_BEFORE = 3  # lines before it in which a try is announced
_STEADY = 2  # signs of progress after an error that nothing was said of


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a report shows to have gone on."""

    lines: frozenset[int]  # numbers of the lines whose error did not stop the run
    last: Line | None  # the last sign that a run which had met an error goes on; nothing failed after it


def went_on(lines: Sequence[Line], failures: Sequence[Line]) -> Recovery:
    """The errors of a report that were recovered from.

    failures: the lines that say that something failed, in order
    """
    recovered: set[int] = set()
    last = None
    broken = max((line.number for line in failures), default=0)
    for run in _runs(lines):
        progress = [at for at, line in enumerate(run) if is_progress(line)]
        if not progress:
            continue
        done = {at for at in range(progress[-1]) if _is_over(run, at, progress, broken)}
        recovered.update(run[at].number for at in done)
        if done and run[progress[-1]].number > broken:
            last = run[progress[-1]]
    return Recovery(frozenset(recovered), last)


def runs_of(lines: Sequence[Line]) -> dict[int, str]:
    """For the number of each line the command that was typed last before it; empty before the first."""
    typed, found = "", {}
    for line in lines:
        typed = typed_command(line.text) or typed
        found[line.number] = typed
    return found


def _runs(lines: Sequence[Line]) -> Iterator[list[Line]]:
    held: list[Line] = []
    for line in lines:
        if is_break(line, held[-1] if held else None) or typed_command(line.text) is not None:
            yield held
            held = []
        held.append(line)
    yield held


def is_break(line: Line, before: Line | None) -> bool:
    """Whether a fence, a heading, the name of a node or a sentence brings in another log."""
    if _BREAK.match(line.text):
        return True
    return _BRINGS_IN.match(line.text) is not None and not (before is not None and before.text.strip())


def is_progress(line: Line) -> bool:
    """Whether a line shows work that is being done."""
    text = line.text[:300]
    return _PROGRESS.search(text) is not None and _NO_PROGRESS.search(text) is None


def names_trouble(line: Line) -> bool:
    """Whether a line has a word in it that errors have."""
    return _TROUBLE.search(line.text[:600]) is not None


def _is_over(run: Sequence[Line], at: int, progress: Sequence[int], broken: int) -> bool:
    """Whether the line is an error that was dealt with before progress, or that progress simply went past."""
    line = run[at]
    if not names_trouble(line):
        return False
    after = [each for each in progress if each > at and stands_before(line, run[each])]
    if not after:
        return False
    near = range(max(0, at - _BEFORE), min(after[0], at + _NEAR) + 1)
    if any(_HANDLED.search(run[each].text[:300]) for each in near):
        return True
    ended_well = run[progress[-1]].number > broken
    return ended_well and (line.level in ("warning", "info") or len(after) >= _STEADY)
