"""A pasted report as numbered lines and blocks. Interpreting them is the task of `npuenv.diagnose`.

A paste is what people put into an issue: tables, lists, logs and shell sessions in any order, quoted, coloured,
prefixed, truncated. Here it is decoded, cleaned, thinned out if it is long, and cut into blocks at shell prompts.

Of a report of npuenv's own doctor only the evidence of failures and warnings is kept: a paste that is one in JSON, and
text from its title to its summary. Such a report mentions errors in the titles and sources of passed checks, so its
text is no sign of a problem; the evidence of its problems is. Any other form of such a report is refused.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.core.documents import JsonError, parse_json
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MAX_LINE = 2000  # characters of a line that are used; longer ones lose their middle
_EDGE_LINES = 600  # lines at either end of a paste that are never dropped as repeats
_MAX_SAME_SHAPE = 3  # lines that differ only in digits
_MAX_LINES = 5_000  # that are used in all
_MAX_SCANNED = 100_000  # lines at either end of a paste that are compared with each other at all
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_INFORMATIVE = (
    b"rror", b"xception", b"raceback", b"ailed", b"annot", b"arning", b"ersion", b"No module", b"not ", b"Killed",
)  # fmt: skip

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\[(?:0|1|2|[39][0-7])(?:;[0-9]{1,3}){0,3}m")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u2028\u2029\x85]")
# Prefixes of logs, containers and quotes. Each is tried at the start, repeatedly.
_PREFIX = re.compile(
    r"(?:> ?)+(?!>)(?=\s*\S)|\|\|\s"
    r"|\([^()\n]{0,60}\b(?:pid|rank|ip)=[^()\n]{1,60}\)\s*|\[(?:rank|default)\d{1,4}\]:?\s*"
    r"|(?:ERROR|WARNING|INFO|CRITICAL|DEBUG)\s+\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[?[\w.]+:\d+\]\s?"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? |[\w.-]{1,40}-\d{1,3} +\| |##\[error\]"
)
_PROMPT = re.compile(r"(?:\([\w.@-]+\)\s*)*(?:\[[^\]\n]{1,80}\]\s?|[\w.-]+@[\w.-]+:[^\n$#]{0,80})?[$#]\s+(\S[^\n]*)")
_LEVEL = re.compile(r"(?:\b|\[)(ERROR|WARNING|WARN|INFO|CRITICAL|FATAL|DEBUG)\b|\[([EWI])\d{3,4} |^\[([EWI]) ")
_LEVELS = {"E": "error", "W": "warning", "I": "info", "warn": "warning", "critical": "error", "fatal": "error"}
_HEAD_AT_MOST = 8  # lines of a heading that a narrow terminal has wrapped
_OWN_DOCUMENT = re.compile(
    rb'"schema": *"npuenv\.doctor/\d|"name": *"npuenv doctor"|<testsuites name="npuenv doctor"|<title>npuenv '
)
# Lines of a text report of the doctor: its title, a finding (in a group: a problem), the source or fix and a branch
# below one, the summary.
_TITLE = re.compile(r"npuenv (?:doctor|诊断)(?:  |$)")
_FINDING = re.compile(r"(?:[✘?!✔x+-] )?(?:(FAIL|warn|故障|警告)|ok|unknown|skip|正常|未知|跳过) ")
_BELOW = re.compile(r"\[[a-z]+\.[\w.-]+\] (?:source: |依据：)|fix(?: \(|: )|解决办法")
_BRANCH = re.compile(r"[├└]── |[+`]-- ")
_GUIDE = re.compile(r"[├└]── |[+`]-- |[│|] ")
_ARROW = re.compile(r" (?:->|→)(?: |$)")
_SUMMARY = re.compile(r"(?:Problems: \d+|No failures|故障 \d+|无故障) · (?:warnings:|警告) \d+ · ")


@dataclass(frozen=True, slots=True)
class PasteLine:
    """One line of a paste."""

    number: int  # from 1, as an editor counts them
    shown: str  # as pasted, without colours and surrounding white space
    text: str  # the same without quote marks and log prefixes; leading white space is kept
    level: str = ""  # "error", "warning", "info" if the line states it


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that belong together: the output of a typed command, or the lines before the first command."""

    command: str | None  # None: nothing was typed before
    lines: tuple[PasteLine, ...]  # the command's own line first


@dataclass(frozen=True, slots=True)
class Paste:
    """A report that was read."""

    lines: tuple[PasteLine, ...]
    total: int  # lines in the paste
    dropped: int  # the number of dropped lines: repeats, and lines beyond the limit
    # the start of a report of npuenv's own doctor, of which only the evidence of problems is included
    own: PasteLine | None = None


def read_paste(data: bytes, redact: Callable[[str], str] = str) -> Paste:
    """The lines of a paste, each redacted first.

    Raises: BadInput if the bytes are no text, or a report of the doctor in a form that is not read.
    """
    data = _as_utf8(data).replace(b"\r\n", b"\n").removesuffix(b"\n")
    total = data.count(b"\n") + 1 if data else 0
    evidence = _evidence_in_json(data)
    used = list(_used(data, total)) if evidence is None else evidence
    clean = _redacted([_CONTROL.sub(" ", _ANSI.sub("", _shorten(line))) for _, line in used], redact)
    lines = tuple(piece for (number, _), line in zip(used, clean) for piece in _pieces(number, line))
    if evidence is not None:
        return Paste(lines, total, 0, PasteLine(1, "npuenv doctor", "npuenv doctor"))
    lines, own = _without_reports(lines)
    return Paste(lines, total, total - len(used), own)


def _used(data: bytes, total: int) -> Iterator[tuple[int, str]]:
    """The lines that are read, with their numbers."""
    raw, first_of_tail = _ends(data, total)
    for at in _line_places(raw):
        yield at + 1 if at < first_of_tail else at + 1 + total - len(raw), _decode(raw[at])


def _ends(data: bytes, total: int) -> tuple[list[bytes], int]:
    """The lines of the data, or of a very long paste those of its two ends, and the start of the second end."""
    if not data:
        return [], 0
    if total <= 2 * _MAX_SCANNED:
        return data.split(b"\n"), total
    head, tail = data.split(b"\n", _MAX_SCANNED), data.rsplit(b"\n", _MAX_SCANNED)
    return head[:-1] + tail[1:], _MAX_SCANNED


def blocks(lines: Iterable[PasteLine]) -> Iterator[Block]:
    """The paste cut at shell prompts."""
    command: str | None = None
    block: list[PasteLine] = []
    for line in lines:
        typed = typed_command(line.text)
        if typed is not None:
            if block:
                yield Block(command, tuple(block))
            command, block = typed, []
        block.append(line)
    if block:
        yield Block(command, tuple(block))


def typed_command(text: str) -> str | None:
    """The command typed at a prompt. Example: `[root@host1 ~]# npu-smi info` -> `npu-smi info`; None: no prompt."""
    match = _PROMPT.match(text.strip())
    return match.group(1) if match else None


def _as_utf8(data: bytes) -> bytes:
    """The bytes in an encoding that can be split into lines. Raises: BadInput."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace").encode("utf-8", errors="replace")
    data = data[3:] if data.startswith(b"\xef\xbb\xbf") else data
    head = data[:65536]
    odd = sum(head.count(bytes([code])) for code in (*range(9), *range(14, 27), 127))
    if odd > len(head) // 20 + 2:
        raise BadInput(Message("diagnose.not-text"), Message("diagnose.not-text-hint"))
    return data


def _decode(line: bytes) -> str:
    for encoding in ("utf-8", "gb18030"):  # Chinese consoles write GB 18030
        with contextlib.suppress(UnicodeDecodeError):
            return line.decode(encoding)
    return line.decode("utf-8", errors="replace")


def _line_places(raw: list[bytes]) -> Iterator[int]:
    """Indexes of the used lines: all of a short paste; of a long one the ends and lines without repeats."""
    if len(raw) <= 2 * _EDGE_LINES:
        yield from range(len(raw))
        return
    fresh = _without_repeats(raw)
    if len(fresh) > _MAX_LINES:
        half = _MAX_LINES // 2
        front = itertools.islice((at for at in fresh if _is_informative(raw[at])), half)
        back = itertools.islice((at for at in reversed(fresh) if _is_informative(raw[at])), half)
        fresh = sorted({*front, *back, *fresh[:_EDGE_LINES], *fresh[-_EDGE_LINES:]})
    yield from fresh


def _is_informative(line: bytes) -> bool:
    return any(word in line for word in _INFORMATIVE)


def _without_repeats(raw: list[bytes]) -> list[int]:
    seen: dict[bytes, int] = {}
    kept = []
    last = len(raw) - _EDGE_LINES
    for at, line in enumerate(raw):
        shape = line[:400].translate(_DIGITS)
        count = seen.get(shape, 0)
        seen[shape] = count + 1
        if count < _MAX_SAME_SHAPE or at < _EDGE_LINES or at >= last:
            kept.append(at)
    return kept


def _shorten(line: str) -> str:
    """A line of bounded length; a log that was pasted as one line with escaped line ends keeps its ends."""
    if len(line) <= MAX_LINE or "\\n" in line[:200_000]:
        return line[:400_000]
    return f"{line[: MAX_LINE // 2]} ... {line[-MAX_LINE // 2 :]}"


def _redacted(lines: list[str], redact: Callable[[str], str]) -> list[str]:
    """All lines together, because a name that one line reveals is replaced in all; a redactor keeps line ends."""
    whole = redact("\n".join(lines)).split("\n")
    return whole if len(whole) == len(lines) else [redact(line).replace("\n", " ") for line in lines]


def _pieces(number: int, line: str) -> Iterator[PasteLine]:
    if len(line) <= MAX_LINE:
        yield _line(number, line)
        return
    for piece in line.split("\\n")[:2000]:
        yield _line(number, piece[:MAX_LINE])


def _line(number: int, line: str) -> PasteLine:
    text = line.replace("\r", " ").rstrip()
    shown = text.strip()
    level = _LEVEL.search(shown[:120])
    for _ in range(6):
        match = _PREFIX.match(text.lstrip() if text[:1] in " \t" and _PREFIX.match(text.lstrip()) else text)
        if match is None:
            break
        text = (text.lstrip() if text[:1] in " \t" else text)[match.end() :]
    return PasteLine(number, shown, text, _level(level))


def _level(match: re.Match[str] | None) -> str:
    if match is None:
        return ""
    word = match.group(1)
    letter = match.group(2) or match.group(3)
    return _LEVELS.get(word.lower(), word.lower()) if word else _LEVELS[letter]


def _evidence_in_json(data: bytes) -> list[tuple[int, str]] | None:
    """The evidence of each problem in a report of the doctor, with the line it stands in; None: the paste is none.

    Raises: BadInput if it is one as SARIF, HTML or JUnit, or a part of one.
    """
    if not _OWN_DOCUMENT.search(data):
        return None
    try:
        document = parse_json(data)
        items = [
            item["line"]
            for each in document["findings"]
            if each["status"] in ("fail", "warn")
            for item in each["evidence"]
        ]
    except (JsonError, KeyError, TypeError) as error:  # its titles and sources would be read as what went wrong
        raise BadInput(Message("diagnose.own-form"), Message("diagnose.own-form-hint")) from error
    text, at, found = data.decode(), 0, []
    for item in items:
        at = max(text.find(json.dumps(item)[1:-1], at), text.find(json.dumps(item, ensure_ascii=False)[1:-1], at), at)
        found.append((text.count("\n", 0, at) + 1, item))
    return found


def _without_reports(lines: Iterable[PasteLine]) -> tuple[tuple[PasteLine, ...], PasteLine | None]:
    """The lines without text reports of the doctor but with their evidence, and the title of the first report."""
    kept: list[PasteLine] = []
    title, own = None, None
    for line in lines:
        text = line.text.strip()
        if _TITLE.match(text):
            title = len(kept)
        kept.append(line)
        if title is not None and _SUMMARY.match(text):
            own = own or kept[title]
            kept[title:] = _evidence(kept[title:])
            title = None
    if title is not None and any(_FINDING.match(line.text.strip()) for line in kept[title : title + _HEAD_AT_MOST]):
        own = own or kept[title]  # the rest of it was cut off
        kept[title:] = _evidence(kept[title:])
    return tuple(kept), own


def _evidence(report: Sequence[PasteLine]) -> list[PasteLine]:
    """The evidence of problems, each in one line though a terminal wrapped it."""
    found: list[PasteLine] = []
    is_problem = is_open = False
    for line in report:
        whole = line.text.strip()
        text = _GUIDE.sub("", whole, count=1).strip()
        finding, arrow = _FINDING.match(whole), _ARROW.search(text)
        if finding or _BELOW.match(text):
            is_problem, is_open = bool(finding and finding.group(1)), False
        elif is_problem and arrow:
            found.append(_cut(line, text[arrow.end() :]))
            is_open = True
        elif is_open and text and not _BRANCH.match(whole):
            found[-1] = _cut(found[-1], f"{found[-1].text} {text}".strip())
        else:
            is_open = False
    return found


def _cut(line: PasteLine, text: str) -> PasteLine:
    """The line with the relevant part of its text alone."""
    return replace(line, shown=text, text=text, level="")
