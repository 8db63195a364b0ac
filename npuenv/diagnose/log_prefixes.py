"""The lines of a paste without what collectors of logs put around them.

`npuenv.host.report` has cut lines and taken off the usual prefixes; here go those that only whole files of logs have:
journald, container runtimes, `kubectl logs`, loggers, and lines that were joined by `\n`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.json_input import JsonError, loads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.host.report import PasteLine

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
        record = loads(text)
    except JsonError:  # a line that was cut
        return text
    return str(record.get("log", text)).rstrip("\n")
