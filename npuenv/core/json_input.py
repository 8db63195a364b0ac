"""One reader of JSON that others wrote.

Refuses what Python's reader takes but its users fail on: NaN, numbers without end, hundreds of levels, endless files.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING, Any

from npuenv.core.files import read_bytes

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 256 * 1024**2  # a capture with the files of 400 packages has 20 MB
_MOST_DIGITS = 300  # float() of a longer one fails
_MOST_LEVELS = 100  # far below where a reader of the values meets Python's own limit


class JsonError(ValueError):
    """It is no JSON that is read here; the text says why, with line and column where one place is to blame."""


def loads(text: str | bytes, *, has_nan: bool = False) -> Any:
    """The value of a text. `has_nan`: NaN and Infinity are numbers there. Raises JsonError."""
    try:
        plain = text if isinstance(text, str) else text.decode("utf-8-sig")
        return _shallow((_WITH_NAN if has_nan else _STRICT).decode(plain))
    except json.JSONDecodeError as error:
        raise JsonError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start} is not UTF-8") from error
    except RecursionError as error:
        raise _too_deep() from error


def loads_from(text: str, start: int) -> tuple[Any, int]:
    """The value that begins at an offset, and the offset behind it. Raises JsonError."""
    try:
        value, end = _STRICT.raw_decode(text, start)
        return _shallow(value), end
    except json.JSONDecodeError as error:
        raise JsonError(error.msg) from error
    except RecursionError as error:
        raise _too_deep() from error


def load_file(path: Path) -> Any:
    """The value of a file. Raises OSError or JsonError."""
    return loads(read_bytes(path, _MOST_BYTES))


def _shallow(value: Any) -> Any:
    level = [value]
    for _ in range(_MOST_LEVELS):
        inner = itertools.chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [each for each in inner if isinstance(each, (dict, list))] if isinstance(value, (dict, list)) else []
        if not level:
            return value
    raise _too_deep()


def _too_deep() -> JsonError:
    return JsonError(f"nested more than {_MOST_LEVELS} levels deep")


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
