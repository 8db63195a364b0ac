"""A pasted report as numbered lines and blocks. Interpreting them is the task of `npuenv.diagnose`.

A paste is what people put into an issue: tables, lists, logs and shell sessions in any order, quoted, coloured,
prefixed, truncated. Here it is decoded, cleaned, thinned out if it is long, and cut into blocks at shell prompts.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.host.own_report import without_documents, without_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
    lines, own = _without_own(lines, document)
    return Paste(lines, total, total - len(locations), own)


def _without_documents(data: bytes) -> tuple[bytes, int | None]:
    """The paste without documents of npuenv's own doctor, and the line number of the first."""
    if b"npuenv" not in data:
        return data, None
    text, first = without_documents(data.decode("utf-8", errors="surrogateescape"))
    return text.encode("utf-8", errors="surrogateescape"), first


def _without_own(lines: tuple[PasteLine, ...], document: int | None) -> tuple[tuple[PasteLine, ...], PasteLine | None]:
    """The lines without text reports of npuenv's own doctor, and the line of the first report."""
    kept, first = without_text([line.text for line in lines])
    own = None if document is None else PasteLine(document, "npuenv doctor", "npuenv doctor")
    if first is None:
        return lines, own
    return tuple(_cut(lines[each.at], each.text) for each in kept), own or lines[first]


def _cut(line: PasteLine, text: str) -> PasteLine:
    return line if text == line.text else replace(line, shown=text, text=text, level="")


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
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        pass  # not UTF-8: Chinese consoles write GB 18030
    try:
        return line.decode("gb18030")
    except UnicodeDecodeError:
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
