"""When lines were printed, by the clocks in them: which came first, and whether a process came late.

Start from `stands_before`. A line without a date and a time of day has no moment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.diagnose.search import Text
    from npuenv.host.report import Line

_CLOCK = re.compile(r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[-T _](\d\d):(\d\d):(\d\d)")
_GAVE_UP = re.compile(
    r"EI0015|EI0006|socket timeout|socket times out|establish timeout|connect timeout|Not all ranks connect",
    re.IGNORECASE,
)
# What a process says when it comes to the first collective call, or is still busy with what goes before.
_ARRIVES = re.compile(
    r"process[_ ]group|HcclCommInit|Entry-Hccl|all_?gather|all_?reduce|\bbarrier\b|rendezvous|\bentered\b|\benters\b"
    r"|\b(?:done|finished|completed|took) (?:in |after )?\d"
    r"|\b(?:loaded|loading|untar|unpack|download|preprocess|tokeniz)\w*",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"\d{4}[-/]\d\d[-/]\d\d[-T _]\d\d:\d\d:\d\d[.,\d]*|\b\d{4,}\b")


def moment(line: Line) -> str:
    """The date and time of a line, to be compared as text: `20260122090205`; empty where it has none."""
    # What collectors of logs put before a line is gone from its text.
    match = _CLOCK.search(line.text[:200]) or _CLOCK.search(line.shown[:200])
    return "".join(match.groups()) if match else ""


def stands_before(one: Line, other: Line) -> bool:
    """Whether a line came no later than another: by the clocks in them, or else by where they stand."""
    mine, theirs = moment(one), moment(other)
    return mine <= theirs if mine and theirs and mine != theirs else one.number <= other.number


def late_ranks(text: Text) -> Iterator[tuple[str, Line]]:
    """`late-rank` for a process that only came to the first collective call after another one had given up waiting.

    A process that said the same before was started anew, and is none.
    """
    given_up = [at for line in text.with_any(_WAITED) if _GAVE_UP.search(line.text[:400]) and (at := moment(line))]
    if not given_up:
        return
    first = min(given_up)
    said = [(moment(line), line) for line in text.lines if _ARRIVES.search(line.text[:300])]
    before = {_NUMBERS.sub("", line.shown) for at, line in said if at and at <= first}
    for at, line in said:
        if at > first and not _GAVE_UP.search(line.text[:400]) and _NUMBERS.sub("", line.shown) not in before:
            yield "late-rank", line


_WAITED = ("ei0015", "ei0006", "timeout", "times out", "not all ranks")
