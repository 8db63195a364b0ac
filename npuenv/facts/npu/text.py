"""Text as terminals, logs and people hand it on: colours, carriage returns and prefixes taken off, nothing else."""

from __future__ import annotations

import functools
import re
from typing import TypeVar

N = TypeVar("N", int, float)

_LONGEST = 1000  # characters of a line; patterns may take quadratic time in it
HEALTHS = ("OK", "Warning", "Alarm", "Critical", "UNKNOWN")  # all that the tool says of a chip
VERSION = re.compile(r"[0-9]+(?:\.[0-9A-Za-z]+)+")  # 25.0.rc1.b010, 7.1.0.11.220
BUS_ID = re.compile(r"[0-9A-Fa-f]{4,}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_CHIP_NAME = re.compile(r"(?:Ascend ?)?[0-9]{3}(?:[A-Za-z0-9_-]*[A-Za-z0-9])?")  # 910, 310P3, Ascend950PR
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain_lines(text: str) -> list[str]:
    """The lines without colour codes and blanks at their ends, cut where they are longer than any the tools print."""
    return [line[:_LONGEST].rstrip("\r\n\t ") for line in _ANSI.sub("", text).splitlines()]


def whole_lines(text: str) -> list[str]:
    """The same without a last line that has no end: half a number reads like a whole one."""
    lines = plain_lines(text)
    return lines if not lines or text.endswith(("\n", "\r")) else lines[:-1]


def labelled(line: str, labels: re.Pattern[str]) -> tuple[str, str] | None:
    """(label, value) of a line `LABEL : value` that may carry a log's prefix; None where no known label is in it."""
    found = labels.search(line)
    return (found.group("label"), found.group("value").strip()) if found else None


@functools.cache
def pattern_of(labels: tuple[str, ...]) -> re.Pattern[str]:
    """What finds one of the labels before a colon. A longer label wins over a shorter one that it ends with."""
    words = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    # What ends a log's prefix may stand before it; anything else makes it the end of another label: `Physical Chip ID`.
    return re.compile(rf"(?:^|[0-9|:>\])])\s*(?P<label>{words})\s*:(?P<value>.*)$")


def integer(text: str | None) -> int | None:
    """A whole number; None for anything else, such as NA and `-`."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None


def number(text: str | None) -> float | None:
    """A number with or without a fraction; None for anything else."""
    return float(text) if text is not None and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) else None


def word(text: str | None) -> str | None:
    """The text; None where the tool has nothing to say."""
    return None if text is None or text.strip() in ("", "-", "NA", "N/A", "xxx", "x.x.x") else text.strip()


def percent(value: N | None) -> N | None:
    """The value; None where it is none between 0 and 100."""
    return value if value is not None and 0 <= value <= 100 else None


def chip_name(text: str | None) -> str | None:
    """The text; None where no chip is called so, as where a document prints `xxx`."""
    return formed(text, _CHIP_NAME)


def formed(text: str | None, form: re.Pattern[str]) -> str | None:
    """The text; None where it has another form: a part of it may be missing."""
    return text if text is not None and form.fullmatch(text.strip()) else None
