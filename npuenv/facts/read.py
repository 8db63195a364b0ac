"""Shared by the parsers: files as facts, `key=value` texts, and JSON objects."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.host.base import Host, Ran

T = TypeVar("T")


def file_text(host: Host, path: str) -> Fact[str]:
    """The text of a file; absent where nothing is there, unknown where it cannot be read or is no file."""
    looked = host.look(path)
    if looked.state is PathState.FILE:
        return known(looked.text, Evidence(path, first_line(looked.text)))
    if looked.state is PathState.ABSENT:
        return absent(Evidence(path, "absent"))
    return unknown(Evidence(path, looked.error or looked.state.value))


def pairs(text: str, separator: str = "=") -> dict[str, str]:
    """`Key=value` lines as a mapping; other lines are left out. The first of two equal keys counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, mark, value = line.partition(separator)
        if mark and key.strip() and not key.lstrip().startswith("#"):
            found.setdefault(key.strip(), value.strip())
    return found


def line_with(text: str, key: str) -> str:
    """The first line that starts with `key`, for evidence; "" when there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip().startswith(key)), "")


def why_failed(ran: Ran) -> str:
    """One line that says how a command failed."""
    if ran.timed_out:
        return "timed out"
    lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit {ran.code}"


def first_line(text: str) -> str:
    """The first line that is not blank; "" when there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def from_json(kind: type[T], found: Mapping[str, Any]) -> T:
    """The dataclass or NamedTuple of a JSON object with its fields' names; fields with a default may be missing.

    Raises KeyError, TypeError, AttributeError or ValueError for what a foreign interpreter or capture may hold.
    """
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    names = [name for name, is_required in _fields(kind) if name in found or is_required]  # type: ignore[arg-type]
    return kind(**{name: _value(hints[name], found[name]) for name in names})


_hints = functools.cache(get_type_hints)


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, bool], ...]:
    """The name of each field, and whether it has no default."""
    if issubclass(kind, tuple):
        return tuple((name, name not in kind._field_defaults) for name in kind._fields)
    return tuple((item.name, item.default is MISSING and item.default_factory is MISSING) for item in fields(kind))


def _value(kind: Any, value: Any) -> Any:
    if get_origin(kind) is tuple:
        if isinstance(value, str):
            raise TypeError(value)
        return tuple(_value(get_args(kind)[0], item) for item in value)
    if get_origin(kind) is Mapping:
        return {str(key): _value(get_args(kind)[1], item) for key, item in value.items()}
    has_fields = hasattr(kind, "_fields") or hasattr(kind, "__dataclass_fields__")
    return from_json(kind, value) if has_fields else kind(value)
