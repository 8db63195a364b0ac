"""Errors that a sentence only mentions, in a wish or as an example, and nothing printed. Start from `unmentioned`.

A person who quotes the one error that was seen, and asks about it, reports a failure: that quote stays.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.host.report import Line

_QUOTED = re.compile(r"`[^`\n]{3,300}`|“[^”\n]{3,300}”|「[^」\n]{3,300}」|『[^』\n]{3,300}』|\"[^\"\n]{3,300}\"")
_TROUBLE = re.compile(
    r"error|fail|exception|cannot|can't|could not|unable|not found|no module|no such|out of memory"
    r"|time[sd]? ?out|timeout|refused|in use|undefined|unsupported|(?:less|larger|greater|too) \w|not support"
    r"|mismatch|killed|denied|insufficient|invalid|\bdown\b"
    r"|\bE[A-Z]\d{4}\b|\bE\d{5}\b|\b\d{6}\b|失败|错误|超时|不支持", re.IGNORECASE,
)  # fmt: skip
# What a log, a traceback or a prompt begins with; no sentence does.
_PRINTED = re.compile(
    r"\s*(?:\[?\d{4}[-/]\d\d|\d\d:\d\d:\d\d|\[[A-Z]+\]\s|[EWI]\d{4} |(?:ERROR|WARNING|INFO|WARN|DEBUG|CRITICAL)\b"
    r"|File \"|Traceback|(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception): |[\[({<|]|\$ |# \w+ |\w+=|E\s+\w)"
)
_WORDS = re.compile(r"[A-Za-z']{2,}|[\u4e00-\u9fff]{2}")
_FEWEST_WORDS = 3  # of a sentence around a quote
_ANYBODY = re.compile(r"\b(?:users|people|newcomers|beginners|customers)\b|用户|新手", re.IGNORECASE)
_SUBJECT = (
    r"\b(?:I|I'm|we|me|us|it|this|and|then|but|always|now|currently"
    r"|training|server|service|script|job|process|run|import|engine|worker)\b"
)
_HAPPENED = re.compile(
    _SUBJECT + r"(?:(?!\b(?:should|would|could|may|might|can|if|when|whether|not)\b)[^\n`\"]){0,40}"
    r"\b(?:gets?|got|getting|sees?|saw|seeing|hits?|fails?|failed|failing|crash\w*|dies|died|raises?|raised|throws?|threw|ends|ended|stops"
    r"|stopped|reports?|reported|prints|printed|shows|showed|exits|exited|aborts|aborted|gave|gives)\b"
    r"|\b(?:fail(?:s|ed|ing)?|crash\w*|dies|died|stops|stopped|exits|exited|aborts|aborted|errors out|ends|ended"
    r"|results?|resulted) (?:with|on|at|in)\b"
    r"|(?:我|运行|启动|训练|执行|推理|导入|编译|安装|之后|后|时|就|总是|一直|现在|今天)"
    r"[^\n`「“]{0,12}(?:报|出现|遇到|抛|崩|退出|失败|卡)"
    r"|[就都直]报", re.IGNORECASE,
)  # fmt: skip
_SUPPOSED = re.compile(
    r"\b(?:such as|e\.g\.|(?:can|may|might) (?:print|raise|throw|log|emit|show)|for (?:example|instance)"
    r"|(?:errors?|messages?|failures?|problems?|issues?|lines?|ones?|something|things?)"
    r" like|instead of|rather than|would|could be|suggest\w*|propos\w*|recommend\w*|friendl\w*|clearer"
    r"|nicer|more helpful)\b"
    r"|\bshould(?! (?:I|we)\b)|之类|例如|比如|诸如|类似|等(?:错误|报错|问题|信息|提示)|建议|希望|应该|最好|而不是",
    re.IGNORECASE,
)  # fmt: skip
_REQUEST = re.compile(
    r"\[(?:Docs?|Documentation|Feature|RFC|Proposal|Roadmap|Enhancement|Feature Request|文档|需求|建议)[^\]\n]{0,30}\]"
    r"|feature request|enhancement proposal|功能(?:请求|需求|建议)"
    r"|^\W*(?:Docs?|RFC|Proposal|Feature|Suggestion)\s*[:：]",
    re.IGNORECASE,
)
_TITLE_LINES = 6  # among which a report says what it is


def unmentioned(lines: Sequence[Line]) -> tuple[Line, ...]:
    """The same lines; an error that a sentence only mentions is blanked out of their text."""
    is_request = any(_REQUEST.search(line.text[:200]) for line in _title(lines))
    return tuple(_blanked(line, is_request) for line in lines)


def _title(lines: Sequence[Line]) -> Iterator[Line]:
    filled = (line for line in lines if line.text.strip())
    yield from (line for line, _ in zip(filled, range(_TITLE_LINES)))


def _blanked(line: Line, is_request: bool) -> Line:
    text = line.text
    if len(text) > 1000 or not _QUOTED.search(text) or _PRINTED.match(text):
        return line
    around = _QUOTED.sub(" ", text)
    if len(_WORDS.findall(around)) < _FEWEST_WORDS or not _is_mention(around, is_request):
        return line
    return replace(line, text=_QUOTED.sub(lambda match: " " if _TROUBLE.search(match.group()) else match.group(), text))


def _is_mention(around: str, is_request: bool) -> bool:
    """Whether the sentence around a quote wishes, compares or gives an example, and tells nothing that happened."""
    if _ANYBODY.search(around):
        return True
    if _HAPPENED.search(around):
        return False
    return is_request or _SUPPOSED.search(around) is not None
