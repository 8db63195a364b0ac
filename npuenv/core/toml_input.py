"""One TOML reader for all supported Pythons.

tomli also where the standard library has the same reader: its wheels are compiled, and read in a third of the
time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import tomli

if TYPE_CHECKING:
    from pathlib import Path

# A dotted key costs older parsers memory that grows with the square of its parts: one of 200 kB takes all there is.
_MOST_PARTS = 100
_PART = r"(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*\.[ \t]*"
_LONG_KEY = re.compile(rf"(?:{_PART}){{{_MOST_PARTS}}}")
_LONG_NUMBER = re.compile(r"0[xob]\w{300}|\d[\d_]{300}")  # str() or float() of such a one fails


class TomlError(ValueError):
    """It is no TOML that is read here; the text says why, with line and column where one place is to blame."""


def loads(text: str, *, is_ours: bool = False) -> dict[str, Any]:
    """The tables of a TOML text; one of npuenv's own is not searched for what hurts. Raises TomlError."""
    try:
        if not is_ours:
            _require_harmless(text)
        return tomli.loads(text)
    except (ValueError, RecursionError) as error:
        raise TomlError(str(error)) from error


def load_file(path: Path, *, is_ours: bool = False) -> dict[str, Any]:
    """The tables of a TOML file. Raises OSError or TomlError."""
    return loads(path.read_text(encoding="utf-8"), is_ours=is_ours)


def _require_harmless(text: str) -> None:
    if any(line.count(".") >= _MOST_PARTS and _LONG_KEY.search(line) for line in text.split("\n")):
        raise TomlError(f"a key of more than {_MOST_PARTS} parts")
    if _LONG_NUMBER.search(text):
        raise TomlError("a number of more than 300 digits")
