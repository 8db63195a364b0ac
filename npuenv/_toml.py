"""One TOML reader for all supported Pythons. Start from `loads` and `load_file`.

tomli also where the standard library has the same reader: its wheels are compiled, and read in a third of the
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tomli

if TYPE_CHECKING:
    from pathlib import Path

TomlError = tomli.TOMLDecodeError


def loads(text: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises TomlError with line and column."""
    return tomli.loads(text)


def load_file(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises OSError or TomlError."""
    return loads(path.read_text(encoding="utf-8"))
