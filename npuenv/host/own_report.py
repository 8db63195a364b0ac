"""Reports of npuenv's own doctor inside a paste: keeps only the evidence of failures and warnings.

Such a report mentions errors in the titles and sources of passed checks, so its text is no sign of a problem; the
evidence of its problems is. Formats with tags or keys are cut by `without_documents`, text by `without_text`. Of SARIF,
HTML and JUnit, which nobody pastes to ask for a cause, the evidence is not read.
"""

from __future__ import annotations

import functools
import html
import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.json_input import JsonError, loads_from
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Piece = tuple[int, str]  # the position of an evidence in the paste, and its text

_LANGUAGES = ("en", "zh")
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


def without_documents(text: str) -> tuple[str, int | None]:
    """The paste without JSON, SARIF, HTML and JUnit reports, and the first line of the first one, from 1; None: none.

    Of JSON the evidence of problems stays. Line numbers are kept if a document has enough lines.
    """
    if "npuenv" not in text:
        return text, None
    first: int | None = None
    for find in (_json, _tagged):
        for start, end, pieces in sorted(find(text), reverse=True):
            number = text.count("\n", 0, start) + 1
            first = number if first is None else min(first, number)
            text = text[:start] + _placed(text[start:end], start, pieces) + text[end:]
    return text, first


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
            document, end = loads_from(text, start)
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


@dataclass(frozen=True, slots=True)
class ReadLine:
    """A line of a paste for the diagnosis: its line number, and the relevant part of its text."""

    at: int
    text: str


def without_text(lines: Sequence[str]) -> tuple[list[ReadLine], int | None]:
    """The lines without text reports of the doctor but with their evidence, and the start of the first report."""
    if not any(map(_is_mark, lines)):
        return [ReadLine(at, line) for at, line in enumerate(lines)], None
    reader = _ReportReader(lines)
    for at in range(len(lines)):
        reader.read(at)
    return reader.result, reader.first


def _is_mark(line: str) -> bool:
    return bool(_SOURCE.search(line) or _SUMMARY.search(line.rstrip()) or _head().match(line.strip()))


class _ReportReader:
    """Reads lines that contain reports of the doctor."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self.result: list[ReadLine] = []
        self.first: int | None = None
        self._is_inside = False
        self._in_problem = False  # below a problem, where its evidence is
        # the position of the first finding; lines between it and the heading belong to the heading
        self._findings_at = 0
        self._evidence_at = -1  # the end of the last evidence
        self._label, self._problem, self._fix = _labels(_STATUSES), _labels(_PROBLEMS), _fix_label()

    def read(self, at: int) -> None:
        """Adds one line to the result, completely or as evidence, or leaves it out."""
        line = _QUOTED.sub("", self._lines[at], count=1)
        text = line.strip()
        if _head().match(text):
            self._enter(at)
            self._findings_at, self._in_problem = self._first_finding(at), False
        elif self._label.match(text):
            self._enter(at)
            self._in_problem = bool(self._problem.match(text))
        elif not self._is_inside or not self._belongs(at, line, text):
            self._is_inside = False
            self.result.append(ReadLine(at, self._lines[at]))
        elif self._in_problem:
            self._evidence(at, line)

    def _first_finding(self, head: int) -> int:
        near = enumerate(self._lines[head + 1 : head + 1 + _HEAD_AT_MOST], head + 1)
        return next((at for at, line in near if self._label.match(_QUOTED.sub("", line, count=1).strip())), head)

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
            self.result.append(ReadLine(at, text[arrow.end() :]))
            self._evidence_at = at
        elif text and self._evidence_at == at - 1 and not _BRANCH.match(line) and _FOLDED.match(line):
            self.result[-1] = ReadLine(self.result[-1].at, f"{self.result[-1].text} {text}".strip())
            self._evidence_at = at


def _words(key: str) -> list[str]:
    return [say(Message(f"doctor.{key}"), lang) for lang in _LANGUAGES]


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
    forms = (say(Message(key, {"says": ""}), lang) for key in keys for lang in _LANGUAGES)
    return re.compile("|".join(re.escape(form.rstrip()) for form in forms))
