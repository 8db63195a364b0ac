"""A pasted report as numbered lines and blocks. Interpreting them is the task of `npuenv.diagnose`.

A paste is what people put into an issue: tables, lists, logs and shell sessions in any order, quoted, coloured,
prefixed, truncated. Here it is decoded, cleaned, thinned out if it is long, and cut into blocks at shell prompts.

Of reports of npuenv's own doctor inside a paste only the evidence of failures and warnings is kept. Such a report
mentions errors in the titles and sources of passed checks, so its text is no sign of a problem; the evidence of its
problems is. Formats with tags or keys are cut by `_without_documents`, text by `_without_text`. Of SARIF, HTML and
JUnit, which nobody pastes to ask for a cause, the evidence is not read.
"""

from __future__ import annotations

import contextlib
import functools
import html
import itertools
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import JsonError, parse_json_at
from npuenv.core.errors import BadInput
from npuenv.core.messages import LANGUAGES, Message, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Piece = tuple[int, str]  # the position of an evidence in the paste, and its text


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
_PROBLEMS = ("fail", "warn")
_STATUSES = (*_PROBLEMS, "unknown", "ok", "skip")
_JSON_MARK = re.compile(r'"schema":\s*"npuenv\.doctor/\d+"|"name":\s*"npuenv doctor"')
_OBJECT = re.compile(r"^[ \t]*(\{)", re.MULTILINE)
_OBJECTS_TRIED = 40
_DOCUMENTS_AT_MOST = 50
# Before a line that is not part of JSON.
_NO_JSON = re.compile(r'\n(?=[ \t>]*[^\s>"{}\[\]])(?![ \t>]*(?:-?\d[\d.eE+-]*|true|false|null),?\s*\n)')
_SUMMARY = re.compile(r"· (?:ok|正常):? \d+ · (?:skipped|跳过):? \d+$")
_SOURCE = re.compile(r"\[[a-z]+\.[\w.-]+\] (?:source: |依据：)")
_GUIDE = re.compile(r"^[ \t]*(?:[├└]── |[+`]-- )|^[ \t]*(?:│|\|) {1,3}")
_BRANCH = re.compile(r"^[ \t]*(?:[├└]── |[+`]-- )")
_FOLDED = re.compile(r"[ \t]*(?:│|\|) | {4}")  # the rest of an evidence that was wrapped at a terminal's width
_HEAD_AT_MOST = 8  # lines of a heading that a narrow terminal has wrapped
_QUOTED = re.compile(r"\A(?:> ?)+")
_FOLLOWING = re.compile(r"(?:next: |下一步：)")
_ARROW = re.compile(r" (?:->|→)(?: |$)")


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

    Raises: BadInput if the bytes are no text.
    """
    data, document = _without_documents(_as_utf8(data).replace(b"\r\n", b"\n").removesuffix(b"\n"))
    total = data.count(b"\n") + 1 if data else 0
    raw, first_of_tail = _ends(data, total)
    locations = list(_line_places(raw))
    cut = [_shorten(_decode(raw[at])) for at in locations]
    clean = _redacted([_CONTROL.sub(" ", _ANSI.sub("", line)) for line in cut], redact)
    numbers = [at + 1 if at < first_of_tail else at + 1 + total - len(raw) for at in locations]
    lines = tuple(piece for number, line in zip(numbers, clean) for piece in _pieces(number, line))
    lines, own = _without_text(lines)
    if document is not None:
        own = PasteLine(document, "npuenv doctor", "npuenv doctor")
    return Paste(lines, total, total - len(locations), own)


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


def _without_documents(data: bytes) -> tuple[bytes, int | None]:
    """The paste without JSON, SARIF, HTML and JUnit reports, and the first line of the first one, from 1; None: none.

    Of JSON the evidence of problems stays. Line numbers are kept if a document has enough lines.
    """
    if b"npuenv" not in data:
        return data, None
    text = data.decode("utf-8", errors="surrogateescape")
    first: int | None = None
    for find in (_json, _tagged):
        for start, end, pieces in sorted(find(text), reverse=True):
            number = text.count("\n", 0, start) + 1
            first = number if first is None else min(first, number)
            text = text[:start] + _placed(text[start:end], start, pieces) + text[end:]
    return text.encode("utf-8", errors="surrogateescape"), first


def _placed(document: str, start: int, pieces: Sequence[Piece]) -> str:
    """The evidence on its own lines, or on the next free ones; every other line empty."""
    lines = [""] * (document.count("\n") + 1)
    for at, piece in pieces:
        location = document.count("\n", 0, max(at - start, 0))
        while location < len(lines) and lines[location]:
            location += 1
        if location == len(lines):
            lines.append("")
        lines[location] = " ".join(piece.split("\n"))
    return "\n".join(lines)


def _json(text: str) -> Iterator[tuple[int, int, list[Piece]]]:
    done = 0
    for mark in itertools.islice(_JSON_MARK.finditer(text), _DOCUMENTS_AT_MOST):
        if mark.start() < done:
            continue
        found = _object_around(text, mark.start(), done)
        if found is None:  # truncated, or quoted: the rest has to go all the same
            start, end = _loose(text, mark.start(), done)
            yield start, end, []
        else:
            start, end, document = found
            yield start, end, list(_located(text, start, _of_document(document)))
        done = end


def _object_around(text: str, mark: int, after: int) -> tuple[int, int, dict[str, Any]] | None:
    starts = [match.start(1) for match in _OBJECT.finditer(text, after, mark)]
    for start in starts[-_OBJECTS_TRIED:]:
        try:
            document, end = parse_json_at(text, start)
        except JsonError:
            continue  # another text that begins with a brace
        if end > mark and ("findings" in document or "runs" in document):
            return start, end, document
    return None


def _loose(text: str, mark: int, after: int) -> tuple[int, int]:
    """From the line of the mark to the last line that looks like JSON."""
    start = max(text.rfind("\n", after, mark) + 1, after)
    other = _NO_JSON.search(text, mark)
    return start, other.start() if other else len(text)


def _of_document(document: dict[str, Any]) -> Iterator[str]:
    """The evidence of each problem in a document."""
    for finding in _dicts(document.get("findings")):
        if finding.get("status") in _PROBLEMS:
            yield from (str(item.get("line", "")) for item in _dicts(finding.get("evidence")))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _located(text: str, start: int, pieces: Iterable[str]) -> Iterator[Piece]:
    at = max(text.find('"findings"', start), start)
    for piece in pieces:
        written = (json.dumps(piece, ensure_ascii=is_ascii) for is_ascii in (False, True))
        at = next((location for form in written if (location := text.find(form, at)) >= 0), at)
        yield at, piece


def _tagged(text: str) -> Iterator[tuple[int, int, list[Piece]]]:
    """HTML and JUnit reports; a truncated one is not included."""
    titles = [f"<title>{html.escape(word)}</title>" for word in _words("html-title")]
    tags = (("<!DOCTYPE html>", "</html>", titles), ('<testsuites name="npuenv doctor"', "</testsuites>", [""]))
    for opening, closing, marks in tags:
        end = 0
        for _ in range(_DOCUMENTS_AT_MOST):
            start = text.find(opening, end)
            close = text.find(closing, start) if start >= 0 else -1
            if close < 0:
                break
            end = close + len(closing)
            if any(mark in text[start:end] for mark in marks):
                yield start, end, []


def _without_text(lines: tuple[PasteLine, ...]) -> tuple[tuple[PasteLine, ...], PasteLine | None]:
    """The lines without text reports of the doctor but with their evidence, and the start of the first report."""
    if not any(_is_mark(line.text) for line in lines):
        return lines, None
    reader = _ReportReader(lines)
    for at in range(len(lines)):
        reader.read(at)
    return tuple(reader.result), None if reader.first is None else lines[reader.first]


def _is_mark(line: str) -> bool:
    return bool(_SOURCE.search(line) or _SUMMARY.search(line.rstrip()) or _head().match(line.strip()))


class _ReportReader:
    """Reads lines that contain reports of the doctor."""

    def __init__(self, lines: Sequence[PasteLine]) -> None:
        self._lines = lines
        self.result: list[PasteLine] = []
        self.first: int | None = None
        self._is_inside = False
        self._in_problem = False  # below a problem, where its evidence is
        # the position of the first finding; lines between it and the heading belong to the heading
        self._findings_at = 0
        self._evidence_at = -1  # the end of the last evidence
        self._label, self._problem, self._fix = _labels(_STATUSES), _labels(_PROBLEMS), _fix_label()

    def read(self, at: int) -> None:
        """Adds one line to the result, completely or as evidence, or leaves it out."""
        line = self._text(at)
        text = line.strip()
        if _head().match(text):
            self._enter(at)
            near = range(at + 1, min(at + 1 + _HEAD_AT_MOST, len(self._lines)))
            self._findings_at = next((each for each in near if self._label.match(self._text(each).strip())), at)
            self._in_problem = False
        elif self._label.match(text):
            self._enter(at)
            self._in_problem = bool(self._problem.match(text))
        elif not self._is_inside or not self._belongs(at, line, text):
            self._is_inside = False
            self.result.append(self._lines[at])
        elif self._in_problem:
            self._evidence(at, line)

    def _text(self, at: int) -> str:
        return _QUOTED.sub("", self._lines[at].text, count=1)

    def _enter(self, at: int) -> None:
        self._is_inside = True
        self.first = at if self.first is None else self.first

    def _belongs(self, at: int, line: str, text: str) -> bool:
        if at < self._findings_at or not text or line[:1] in " \t" or _GUIDE.match(line):
            return True
        if _SUMMARY.search(text) or _FOLLOWING.match(text):
            self._in_problem = False
            return True
        return bool(_SOURCE.match(text) or self._fix.match(text) or (self._in_problem and _ARROW.search(text)))

    def _evidence(self, at: int, line: str) -> None:
        text = _GUIDE.sub("", line).strip()
        arrow = _ARROW.search(text)
        if _SOURCE.match(text) or self._fix.match(text):
            self._in_problem = False
        elif arrow is not None:
            self.result.append(_cut(self._lines[at], text[arrow.end() :]))
            self._evidence_at = at
        elif text and self._evidence_at == at - 1 and not _BRANCH.match(line) and _FOLDED.match(line):
            self.result[-1] = _cut(self.result[-1], f"{self.result[-1].text} {text}".strip())
            self._evidence_at = at


def _cut(line: PasteLine, text: str) -> PasteLine:
    """The line with the relevant part of its text alone."""
    return line if text == line.text else replace(line, shown=text, text=text, level="")


def _words(key: str) -> list[str]:
    return [say(Message(f"doctor.{key}"), lang) for lang in LANGUAGES]


@functools.cache
def _head() -> re.Pattern[str]:
    return re.compile(f"(?:{'|'.join(map(re.escape, _words('title')))})(?:  |$)")


def _labels(statuses: Iterable[str]) -> re.Pattern[str]:
    """The beginning of a finding: a mark and a word, or a word padded to a column."""
    words = [word for status in statuses for word in _words(f"label-{status}")]
    some, long = ("|".join(map(re.escape, group)) for group in (words, [word for word in words if len(word) > 6]))
    filled = rf"|(?:{long}) (?=\S[^:]*:)" if long else ""
    return re.compile(rf"[✘?!✔x+-] (?:{some}) |(?:{some}) {{2,}}(?=\S){filled}")


def _fix_label() -> re.Pattern[str]:
    """The beginning of a fix."""
    keys = ("doctor.fix", "doctor.fix-dangerous")
    forms = (say(Message(key, {"says": ""}), lang) for key in keys for lang in LANGUAGES)
    return re.compile("|".join(re.escape(form.rstrip()) for form in forms))
