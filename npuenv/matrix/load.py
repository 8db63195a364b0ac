"""What every row has, and how a table is read.

Every row is checked against its dataclass; an error names the file and the row.
"""

from __future__ import annotations

import functools
import types
import typing
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from npuenv.core.documents import TomlError, parse_toml
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

Strength = Literal[
    "identity", "recommended-pair", "compatible-set", "wheel-exists", "metadata-range", "image-practice", "request"
]
VerifiedBy = Literal["published", "recommended", "compatible", "satisfiable", "measured-here"]


@dataclass(frozen=True, slots=True)
class Row:
    """What every row has."""

    id: str
    source: str
    seen: str  # date on which the source was read, YYYY-MM-DD


if TYPE_CHECKING:
    from pathlib import Path

R = TypeVar("R", bound=Row)


def load_table(path: Path, row_type: type[R]) -> tuple[R, ...]:
    """The rows of a table file. Raises: BadInput for a file that cannot be read or a row that is not right."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    return parse_table(text, row_type, path.name)


def parse_table(text: str, row_type: type[R], file: str) -> tuple[R, ...]:
    """The rows of a table's text, which is a list of `[[row]]`. Raises: BadInput."""
    try:
        raw = parse_toml(text, is_ours=True)
    except TomlError as error:
        raise _bad("unreadable", file=file, row="-", what=str(error)) from error
    unknown = sorted(set(raw) - {"row"})
    if unknown or not isinstance(raw.get("row"), list):
        raise _bad("not-rows", file=file, row="-", what=", ".join(unknown) or "row")
    rows = tuple(_build(row_type, item, file, _row_name(item, at)) for at, item in enumerate(raw["row"], 1))
    for name, count in Counter(row.id for row in rows).items():
        if count > 1:
            raise _bad("duplicate", file=file, row=name, what=name)
    return rows


def _build(kind: type[Any], raw: Any, file: str, row: str) -> Any:
    """One dataclass value from a TOML table."""
    if not isinstance(raw, Mapping):
        raise _bad("wrong-type", file=file, row=row, what=kind.__name__, wanted="table")
    hints, required = _shape(cast("Hashable", kind))
    unknown = sorted(set(raw) - set(hints))
    if unknown:
        raise _bad("unknown-key", file=file, row=row, what=unknown[0])
    missing = sorted(required - set(raw))
    if missing:
        raise _bad("missing-key", file=file, row=row, what=missing[0])
    return kind(
        **{
            # Most values are plain texts, and a table has thousands.
            key: value if type(value) is hints[key] else _value(hints[key], value, file, row, key)
            for key, value in raw.items()
        }
    )


@functools.cache
def _shape(kind: Hashable) -> tuple[dict[str, Any], frozenset[str]]:
    """The fields of a dataclass with their types, and those without a default."""
    assert isinstance(kind, type) and is_dataclass(kind)
    hints = get_type_hints(kind)
    required = {item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING}
    return {item.name: hints[item.name] for item in fields(kind)}, frozenset(required)


def _value(kind: Any, value: Any, file: str, row: str, key: str) -> Any:
    if type(value) is kind:
        return value
    origin = get_origin(kind)
    if origin is Literal:
        if value not in get_args(kind):
            raise _bad("not-one-of", file=file, row=row, what=f"{key} = {value!r}", wanted=", ".join(get_args(kind)))
        return value
    if origin is tuple and isinstance(value, list):
        item = get_args(kind)[0]
        if all(type(each) is item for each in value):
            return tuple(value)
        return tuple(_value(item, each, file, row, f"{key}[{at}]") for at, each in enumerate(value, 1))
    if origin in (Mapping, typing.Mapping) and _is_text_mapping(value):
        return types.MappingProxyType(dict(value))
    if is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, value, file, f"{row}: {key}")
    raise _bad("wrong-type", file=file, row=row, what=key, wanted=str(getattr(kind, "__name__", kind)))


def _is_text_mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _row_name(raw: Any, at: int) -> str:
    """How an error names a row: its id, or its place where it has none."""
    found = raw.get("id") if isinstance(raw, Mapping) else None
    return found if isinstance(found, str) else f"#{at}"


def _bad(key: str, **args: str) -> BadInput:
    return BadInput(Message(f"matrix.{key}", args), Message("matrix.hint", {"file": args["file"]}))


def unreadable(path: Path, error: Exception) -> BadInput:
    """The error for a table file that cannot be read."""
    return _bad("unreadable", file=path.name, row="-", what=str(error))


def dangling(file: str, row: str, what: str) -> BadInput:
    """The error for a reference to a row that does not exist."""
    return _bad("dangling", file=file, row=row, what=what)
