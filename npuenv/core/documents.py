"""The one reader of JSON and the one of TOML, files with a limit, and the folder of what lies beside the code.

Both readers refuse what Python's take but their users fail on: NaN, numbers without end, hundreds of levels or of parts
of a key, endless files. TOML is read by tomli also where the standard library has the same reader: its wheels are
compiled, and read in a third of the time.
"""

from __future__ import annotations

import errno
import functools
import itertools
import json
import math
import os
import re
from pathlib import Path
from typing import Any, cast

import tomli

_MOST_BYTES = 256 * 1024**2  # a capture with the files of 400 packages has 20 MB
_MOST_DIGITS = 300  # float() of a longer one fails
_MOST_LEVELS = 100  # far below where a reader of the values meets Python's own limit
_TOO_DEEP = f"nested more than {_MOST_LEVELS} levels deep"
# A dotted key costs older parsers memory that grows with the square of its parts: one of 200 kB takes all there is.
_MOST_PARTS = 100
_PART = r"(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*\.[ \t]*"
_LONG_KEY = re.compile(rf"(?:{_PART}){{{_MOST_PARTS}}}")
_LONG_NUMBER = re.compile(r"0[xob]\w{300}|\d[\d_]{300}")  # str() or float() of such a one fails


@functools.cache
def folder_of(file: str) -> Path:
    """The folder of a module, by its `__file__`. Inside an archive it is what `zipfile` gives instead of a Path:
    `/`, `name`, `read_text`, `iterdir` and `is_file` work on both, `stem` and `glob` do not.
    """
    here = Path(file).parent
    if here.is_dir():
        return here
    import zipfile  # ten milliseconds that an installed npuenv does not need

    archive = next(place for place in here.parents if place.is_file())
    return cast("Path", zipfile.Path(str(archive), f"{here.relative_to(archive).as_posix()}/"))


def read_bytes(path: Path, most: int) -> bytes:
    """What a file holds. Raises OSError, for more than `most` bytes too: a device has no end, nor a size to ask for."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


class JsonError(ValueError):
    """It is no JSON that is read here; the text says why, with line and column where one place is to blame."""


def parse_json(text: str | bytes, *, has_nan: bool = False) -> Any:
    """The value of a text. `has_nan`: NaN and Infinity are numbers there. Raises JsonError."""
    try:
        plain = text if isinstance(text, str) else text.decode("utf-8-sig")
        return _shallow((_WITH_NAN if has_nan else _STRICT).decode(plain))
    except json.JSONDecodeError as error:
        raise JsonError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start} is not UTF-8") from error
    except RecursionError as error:
        raise JsonError(_TOO_DEEP) from error


def parse_json_at(text: str, start: int) -> tuple[Any, int]:
    """The value that begins at an offset, and the offset behind it. Raises JsonError."""
    try:
        value, end = _STRICT.raw_decode(text, start)
        return _shallow(value), end
    except json.JSONDecodeError as error:
        raise JsonError(error.msg) from error
    except RecursionError as error:
        raise JsonError(_TOO_DEEP) from error


def load_json(path: Path) -> Any:
    """The value of a file. Raises OSError or JsonError."""
    return parse_json(read_bytes(path, _MOST_BYTES))


def _shallow(value: Any) -> Any:
    level = [value]
    for _ in range(_MOST_LEVELS):
        inner = itertools.chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [each for each in inner if isinstance(each, (dict, list))] if isinstance(value, (dict, list)) else []
        if not level:
            return value
    raise JsonError(_TOO_DEEP)


def _int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise JsonError(f"a number of more than {_MOST_DIGITS} digits")
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise JsonError(f"{text[:_MOST_DIGITS]} is no number")
    return number


def _constant(text: str) -> float:
    raise JsonError(f"{text} is no number")


_STRICT = json.JSONDecoder(parse_int=_int, parse_float=_float, parse_constant=_constant)
_WITH_NAN = json.JSONDecoder(parse_int=_int)


class TomlError(ValueError):
    """It is no TOML that is read here; the text says why, with line and column where one place is to blame."""


def parse_toml(text: str, *, is_ours: bool = False) -> dict[str, Any]:
    """The tables of a TOML text; one of npuenv's own is not searched for what hurts. Raises TomlError."""
    try:
        if not is_ours:
            _require_harmless(text)
        return tomli.loads(text)
    except (ValueError, RecursionError) as error:
        raise TomlError(str(error)) from error


def load_toml(path: Path, *, is_ours: bool = False) -> dict[str, Any]:
    """The tables of a TOML file. Raises OSError or TomlError."""
    return parse_toml(path.read_text(encoding="utf-8"), is_ours=is_ours)


def _require_harmless(text: str) -> None:
    if any(line.count(".") >= _MOST_PARTS and _LONG_KEY.search(line) for line in text.split("\n")):
        raise TomlError(f"a key of more than {_MOST_PARTS} parts")
    if _LONG_NUMBER.search(text):
        raise TomlError("a number of more than 300 digits")
