"""Whether a text explains (a guide, a list of known problems, code) or reports what happened."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.host.report import Line

_GUIDE = re.compile(
    r"\b(?:if (?:you|your|the|this|an?)\b|you (?:can|need|may|should|must|see|encounter|want|are|will|have)\b"
    r"|it is recommended|we recommend)"
    r"|^\W*(?:\d+[.)])?\W*(?:please|check|make sure|ensure|set|use|run|install|upgrade|refer to|verify|confirm|add"
    r"|configure|download|select|reduce|increase|for (?:more|example|details))\b"
    r"|请(?:参考|参见|检查|确认|使用|执行|安装|将|根据|先|注意|联系|尝试|按)|如果|若(?!干)|建议|推荐|步骤|默认"
    r"|适用|用于|参见|详见"
    r"|需(?:要|根据|确保|先|手动)|可(?:以|能是|能由|通过|参考|尝试|使用)",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"^\W*(?:\d+[.)]\s*)?(?:(?:问题)?现象(?:描述)?|(?:问题|报错|故障|可能)?原因(?:分析)?|(?:问题|故障)分析"
    r"|处理(?:方法|方式|步骤|建议|措施)"
    r"|(?:临时)?解决(?:方案|方法|办法|措施)|symptoms?|(?:possible |root )?causes?|solutions?|resolution|workaround"
    r"|mitigation"
    r"|troubleshooting\b.{0,30}|known issues?|limitations?|faqs?|常见问题)\W*(?:$|[:：].*)"
    r"|^#{2,6} (?!.*this (?:PR|patch)).*(?:\?|？|怎么办|如何.*|\bhow to .*|what (?:should|to|if|is|are) .*)$"
    r"|^\W*[QA]\d*[:：.]|^#+ .*问题 ?\d|^#+ \d+\. ",
    re.IGNORECASE,
)
_MARKUP = re.compile(
    r"\]\((?!https?://\S*/(?:issues|pull)/)\S|<term>|\[!\w+\]|^\s*(?::::|\.\. |!!! )|:ref:|:doc:"
    r"|^\s*\|(?: ?:?-{2,}:? ?\|)+|`[^`\n]{2,60}`|^\s*(?:[-*+]|\d{1,2}[.)、])\s+\S"
)
_CODE = re.compile(
    r"^\s*(?:def |class |import \w+$|from \w[\w.]* import |return\b|(?:el)?if .*[:{]$|else ?[:{]$|for .*[:{]$|while "
    r"|try:$|except .*:$|with .*:$|self\.|@\w|#include|assert |raise |\"\"\"|logger\.|# |//|[\w.:<>*& ]+\(.*\) ?\{$"
    r"|[\w.\[\]]+ = \w[\w.]*\(|(?:const |auto |static |std::|TORCH_\w+\(|ASCEND_LOG|\};?$|\)$|fi$|done$|then$))"
)
_EVENT = re.compile(
    r"\d\d:\d\d:\d\d|\bpid[=: ]\d|\[PID|\brank ?\d|0x[0-9a-f]{6,}|\.py:\d+\]|^\s*(?:E\s+)?File \"/|frame #\d"
    r"|^\s*\[?\w+@[\w.-]+[ :]|^\s*(?:PyTorch version|OS|GCC version|Libc version|Python version|CPU|\[pip3\]) ?:"
    r"|^[\w.-]{2,30}==\d|^[\w.-]{2,30}\s{2,}\d+\.\d+\S*$"
)
_ERROR = re.compile(
    r"^\s*(?:[\w.]+\.)?(?:[A-Z]\w*)?(?:Error|Exception)\b:|^\W*ERROR\b|^(?:docker: )?error\b:?|^\s*E[A-Z]\d{4}"
    r"|Traceback"
)
_PERSON = re.compile(
    r"^(?!#).*(?:(?:^|[\s(])(?:I|I'm|I've|my|me|we tried)\b(?![-/.])|我(?!们)|请问|求助|怎么(?:解决|办|回事)|大佬"
    r"|帮忙|是什么(?:原因|问题)"
    r"|为什么|吗？|报错如下|\bthanks\b|any (?:idea|help))"
    r"|describe the bug|your current environment|to reproduce|reproduction|system info|^\W*\[(?:bug|installation"
    r"|usage|question)"
    r"|expected behavio|actual behavio|复现|软件版本|this PR\b|user-facing change|how was this (?:patch )?tested"
    r"|searched (?:for )?related issues|what I tried|^#+ *(?:logs?|日志|报错)\b",
    re.IGNORECASE,
)
_HEADING = re.compile(r"^\s*#{2,6} \S")
# What more lines of a kind add: a logistic fit to 1,700 passages of public guides that speak of errors, and to
# 1,500 reports of failures, most of them in the templates of issue trackers.
_WEIGHTS = (
    (_HEADING, 1.5),
    (_GUIDE, 0.8),
    (_LABEL, 2.5),
    (_MARKUP, 1.3),
    (_EVENT, -1.0),
    (_ERROR, -1.8),
    (_PERSON, -3.8),
)
_DOCUMENT = 3.2
_CODE_SHARE, _CODE_LINES = 0.4, 6


def role_signs(lines: Sequence[Line]) -> Iterator[tuple[str, Line]]:
    """`is-document` for a guide or a list of problems, `is-code` for a source file, `nothing-happened` where no line of
    a log is in the text."""
    texts = [line.shown[:500] for line in lines if line.shown]
    if not texts:
        return
    counts = {pattern: sum(pattern.search(text) is not None for text in texts) for pattern, _ in _WEIGHTS}
    if sum(weight * math.log1p(counts[pattern]) for pattern, weight in _WEIGHTS) > _DOCUMENT:
        yield "is-document", lines[0]
    if counts[_EVENT] or counts[_ERROR]:
        return
    yield "nothing-happened", lines[0]
    code = sum(_CODE.search(text) is not None for text in texts)
    if not counts[_PERSON] and code >= _CODE_LINES and code > _CODE_SHARE * len(texts):
        yield "is-code", lines[0]
