"""The text of a report: prefixes of log collectors and fixed text of messages taken off, then searched.

`npuenv.host.report` has cut lines and taken off the usual prefixes; here go those that only whole files of logs have:
journald, container runtimes, `kubectl logs`, loggers, and lines that were joined by `\\n`. Fixed text of messages says
the same whatever the cause; what is filled in stays.

A wanted text is written as the software prints it; `*` stands for anything within the same line. Case does not count.
All quotation marks are alike: people copy them from terminals, web pages and chats. Wanted texts are no regular
expressions: a report can be 10 MB of anything, and knowledge is written by many hands.
"""

from __future__ import annotations

import bisect
import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.documents import JsonError, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npuenv.host.report import PasteLine
    from npuenv.matrix.error_patterns import BoilerplateRow


_LEVEL = r"(?:ERROR|WARNING|WARN|INFO|DEBUG|CRITICAL|FATAL)"
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_COLLECTED = re.compile(
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w./@-]{1,60}(?:\[\d+\])?: |(?:" + _TIME + r" )?(?:stdout|stderr) [FP] "
    r"|\[pod/[^\]\n]{1,120}\] |\[" + _TIME + r"\] ?(?:\[" + _LEVEL + r"\] ?(?:\[[\w.]{1,60}:\d+(?::\w+)?\] ?)?)"
    r"|(?:" + _TIME + r" )?\| " + _LEVEL + r" *\| [\w.<>]{1,80}:[\w.<>]{1,60}:\d+ - "
    r"|" + _TIME + r" - [\w.]{1,80} - " + _LEVEL + r" - |#\d{1,3} \d+\.\d+ "
)  # fmt: skip
_WORKER = re.compile(
    r"\([^()\n]{0,60}\b(?:pid|rank|ip)=[^()\n]{1,60}\)\s*|\[rank\d{1,4}\]:?\s*"
    r"|" + _LEVEL + r"\s+\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[?[\w.]+:\d+\]\s?"
)


def strip_prefixes(lines: Sequence[PasteLine]) -> tuple[PasteLine, ...]:
    """The same lines, with their numbers and as they are shown; only their text is what the program itself wrote."""
    return tuple(piece for line in lines for piece in _pieces(line))


def _pieces(line: PasteLine) -> Iterator[PasteLine]:
    text = _of_docker(line.text)
    for part in text.split("\\n") if text.count("\\n") > 1 else [text]:
        own = _taken_off(part, is_collected=text != line.text)
        yield line if own == line.text else replace(line, text=own)


def _taken_off(text: str, *, is_collected: bool) -> str:
    match = _COLLECTED.match(text)
    if match is None and not is_collected:
        return text
    text = text[match.end() :] if match else text
    for _ in range(4):
        match = _WORKER.match(text)
        if match is None:
            break
        text = text[match.end() :]
    return text


def _of_docker(text: str) -> str:
    """The text of a line of docker's own log files. Example: `{"log":"a\\n","stream":"stderr"}` -> `a`."""
    if not text.startswith('{"log":'):
        return text
    try:
        record = parse_json(text)
    except JsonError:  # a line that was cut
        return text
    return str(record.get("log", text)).rstrip("\n")


_LONGEST_FIELD = 200  # characters that a program fills in


def drop_boilerplate(lines: Iterable[PasteLine], rows: Sequence[BoilerplateRow]) -> tuple[PasteLine, ...]:
    """The same lines, the fixed text of some rows taken out of what is matched; what is shown stays."""
    fixed = [(_anchor(text), text) for row in rows for text in row.texts]
    return tuple(_without(line, fixed) for line in lines)


def _without(line: PasteLine, fixed: Sequence[tuple[str, str]]) -> PasteLine:
    text, lower = line.text, line.text.lower()
    for anchor, each in fixed:
        if anchor in lower:
            text = _pattern(each).sub(lambda match: " ".join(("", *match.groups(), "")), text)
    return line if text == line.text else replace(line, text=text.rstrip())


def _anchor(text: str) -> str:
    """A word that each match has, in lower case: most patterns are never needed, and many take long to compile."""
    return max(text.removesuffix("**").replace("*", " ").split(), key=len).lower()


@functools.lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    """The pattern of a fixed text, in which each field is a group."""
    whole = text.removesuffix("**")
    parts = whole.split("*")
    fields = f"(.{{0,{_LONGEST_FIELD}}}?)".join(re.sub(r"(\\ )+", r"\\s+", re.escape(part)) for part in parts)
    rest = ".*" if text.endswith("**") else ""
    return re.compile(fields + rest, re.IGNORECASE)


_WORD = re.compile(r"[a-z_]{3,}")
_QUOTES = str.maketrans(dict.fromkeys('"`´‘’“”', "'"))
_MAX_HITS = 400  # places of one wanted text that are looked at


class Text:
    """The lines of a report, ready to be searched. Nobody changes it."""

    def __init__(self, lines: Sequence[PasteLine]) -> None:
        self.lines = lines
        self._lower = [_folded(line.text) for line in lines]
        starts, at = [], 0
        for line in self._lower:
            starts.append(at)
            at += len(line) + 1
        self._starts = starts
        self._whole = "\n".join(self._lower)
        self._words = frozenset(_WORD.findall(self._whole))
        self._letters = "\n".join(sorted(self._words))

    def candidates(self, wanted: tuple[str, ...]) -> list[str]:
        """Some texts without those of which a word is missing: `all` finds none of these. Signs and codes stay."""
        words, letters = self._words, self._letters
        return [text for text, word, is_whole in _words_of(wanted) if word in (words if is_whole else letters)]

    def first(self, wanted: str) -> PasteLine | None:
        """The first line that holds the text; one that is no warning goes before those that are."""
        found = next(self.all(wanted), None)
        if found is None or found.level not in ("warning", "info"):
            return found
        return next((line for line in self.all(wanted) if line.level not in ("warning", "info")), found)

    def all(self, wanted: str) -> Iterator[PasteLine]:
        """Every line that holds the text, in order; at most some hundred places are looked at."""
        parts, anchor, word, is_whole = _parts(wanted)
        if word not in (self._words if is_whole else self._letters):
            return
        at, hits, last = self._whole.find(anchor), 0, -1
        while at >= 0 and hits < _MAX_HITS:
            number = bisect.bisect_right(self._starts, at) - 1
            if number != last and _holds(self._lower[number], parts):
                yield self.lines[number]
            last, hits = number, hits + 1
            end = self._starts[number] + len(self._lower[number])
            at = self._whole.find(anchor, end)

    def with_any(self, words: Iterable[str]) -> list[PasteLine]:
        """Every line that holds one of some folded words, in order: the few lines worth a closer look."""
        found: set[int] = set()
        for word in words:
            at = self._whole.find(word)
            while at >= 0:
                number = bisect.bisect_right(self._starts, at) - 1
                found.add(number)
                at = self._whole.find(word, self._starts[number] + len(self._lower[number]))
        return [self.lines[number] for number in sorted(found)]

    def __contains__(self, wanted: object) -> bool:
        return isinstance(wanted, str) and self.first(wanted) is not None


def _folded(text: str) -> str:
    """A text as it is compared: small letters, one kind of quotation mark."""
    return text.lower().translate(_QUOTES)


def named(text: Text, sign: str, wanted: Sequence[str]) -> Iterator[tuple[str, PasteLine]]:
    """The sign for each of some texts that is there."""
    for each in wanted:
        line = text.first(each)
        if line is not None:
            yield sign, line


@functools.lru_cache(maxsize=4096)
def _parts(wanted: str) -> tuple[tuple[str, ...], str, str, bool]:
    """The pieces between the stars, the longest of them, which is looked for first, and one word of that.

    The words of a long log are few: one that is not among them saves the search through the log. A word inside the
    piece is whole in the log too; one at its ends can be a part of a longer one.
    """
    parts = tuple(filter(None, _folded(wanted).split("*")))
    anchor = max(parts, key=len)
    words = list(_WORD.finditer(anchor))
    inner = [match.group() for match in words if match.start() > 0 and match.end() < len(anchor)]
    word = max(inner or [match.group() for match in words], key=len, default="")
    return parts, anchor, word, bool(inner)


@functools.lru_cache(maxsize=4096)
def _words_of(wanted: tuple[str, ...]) -> tuple[tuple[str, str, bool], ...]:
    """Each text with its word and whether that is a whole one; with an empty piece where it is a sign or a code."""
    return tuple((text, *(("", False) if text[0] in "@#" else _parts(text)[2:])) for text in wanted)


def _holds(line: str, parts: tuple[str, ...]) -> bool:
    at = 0
    for part in parts:
        at = line.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True
