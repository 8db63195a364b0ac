"""One TOML reader for all supported Pythons. Start from `loads` and `load_file`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib as _reader
else:
    import tomli as _reader

TomlError = _reader.TOMLDecodeError


def loads(text: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises TomlError with line and column."""
    return _reader.loads(text)


def load_file(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises OSError or TomlError."""
    return loads(path.read_text(encoding="utf-8"))
