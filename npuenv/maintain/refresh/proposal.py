"""A proposed change of the matrix as a value, and its text: TOML in the form of the tables, or a diff of many.

Nothing here reads an index or writes a file (`as_diff` reads some).
"""

from __future__ import annotations

import difflib
import functools
import itertools
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Literal

from npuenv.core.toml_input import TomlError, loads
from npuenv.core.versions import specifier
from npuenv.maintain.refresh.release import flat
from npuenv.matrix.rows import ReleaseImage, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# The keys whose place in a table is not their place in the dataclass; they come behind `id`, the rest follows.
_FIRST = {
    "VllmAscend": ("version", "vllm", "python", "cann", "cann_image", "torch_npu", "released", "in_policy_table"),
    "TorchNpu": ("version", "torch", "status", "cann", "cann_compatible", "cann_unofficial"),
}
_LAST = ("source", "seen")
_ELSEWHERE = {"VllmAscend": ("requires",)}  # fields that are joined from another table


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change of one row. Nobody has made it yet."""

    file: str  # inside the matrix folder: "vllm_ascend.toml", "built/vllm.toml"
    row_id: str
    kind: Literal["new", "changed"]
    key: str  # the field; "" for a new row
    old: str  # TOML value in the row; "" for a new row and where the row leaves the key out
    new: str  # TOML value; "" for a new row and where the key is to go
    text: str  # the TOML row, or the line of the key
    source: str  # what was read


def new_row(file: str, row: Row) -> Proposal:
    """The proposal to add a row."""
    return Proposal(file, row.id, "new", "", "", "", row_text(row), row.source)


def changed_keys(file: str, old: Row, new: Row, source: str) -> Iterator[Proposal]:
    """A proposal for each field in which two rows of one kind differ, their source and date left aside.

    Specifiers are compared by what they mean, images one hardware and system at a time.
    """
    assert type(old) is type(new) and old.id == new.id
    for key in _keys(new):
        before, after = getattr(old, key), getattr(new, key)
        if key not in _LAST and not _is_same(key, before, after):
            texts = [value_text(value) if value not in ("", ()) else "" for value in (before, after)]
            line = f"{key} = {texts[1]}" if texts[1] else ""
            yield Proposal(file, old.id, "changed", key, texts[0], texts[1], line, source)


def row_text(row: Row) -> str:
    """A row as it stands in a table; fields that have their default are left out."""
    defaults = {item.name: item.default for item in fields(row)}
    lines = ["[[row]]"]
    for key in _keys(row):
        value = getattr(row, key)
        if defaults[key] is MISSING or value != defaults[key]:
            lines.append(f"{key} = {value_text(value)}")
    return "\n".join(lines) + "\n"


def value_text(value: object) -> str:
    """A TOML value; images as inline tables, one a line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return json.dumps(value, ensure_ascii=False)  # a JSON string is a basic string of TOML
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {value_text(item)}" for key, item in value.items()) + " }"
    assert isinstance(value, tuple)
    if value and isinstance(value[0], ReleaseImage):
        return "[\n" + "".join(f"  {_inline(item)},\n" for item in value) + "]"
    return "[" + ", ".join(value_text(item) for item in value) + "]"


def as_diff(proposals: Iterable[Proposal], folder: Path) -> str:
    """All proposals as a unified diff of the tables in a folder: `patch -p1 -d FOLDER` makes the changes.

    Above each file stand its rows with what was read: "# torch-npu.2.9.0: package index". Reads the tables.
    """
    lines: list[str] = []
    in_order = sorted(proposals, key=lambda item: item.file)
    for file, group in itertools.groupby(in_order, key=lambda item: item.file):
        changes = list(group)
        lines += dict.fromkeys(f"# {item.row_id}: {item.source}\n" for item in changes)
        before = (folder / file).read_text(encoding="utf-8").splitlines(keepends=True)
        after = functools.reduce(_changed, changes, before)
        lines += difflib.unified_diff(before, after, f"a/{file}", f"b/{file}")
    return "".join(lines)


def _changed(lines: list[str], item: Proposal) -> list[str]:
    """The lines of a table with one proposal made. A new row stands last."""
    text = item.text.rstrip("\n").splitlines(keepends=True)
    text[-1:] = [f"{line}\n" for line in text[-1:]]
    if item.kind == "new":
        return [*lines, "\n", *text]
    start = lines.index(f"id = {value_text(item.row_id)}\n")
    end = next((at for at in range(start, len(lines)) if lines[at] == "[[row]]\n"), len(lines))
    # A key that the row leaves out goes where `source` is, behind all others.
    key = item.key if item.old else "source"
    first = next(at for at in range(start, end) if lines[at].startswith(f"{key} = "))
    behind = _end_of_value(lines, first) if item.old else first
    return [*lines[:first], *text, *lines[behind:]]


def _end_of_value(lines: list[str], first: int) -> int:
    """Behind the last line of the key that starts at `first`: the first lines that are TOML by themselves."""
    for behind in range(first + 1, len(lines)):
        try:
            loads("".join(lines[first:behind]), is_ours=True)
        except TomlError:
            continue
        return behind
    return len(lines)


def _inline(image: ReleaseImage) -> str:
    pairs = {item.name: getattr(image, item.name) for item in fields(image)}
    return "{ " + ", ".join(f"{key} = {value_text(value)}" for key, value in pairs.items() if value) + " }"


def _keys(row: Row) -> list[str]:
    names = [item.name for item in fields(row)]
    first = ("id", *_FIRST.get(type(row).__name__, ()))
    others = {*first, *_LAST, *_ELSEWHERE.get(type(row).__name__, ())}
    return [*first, *(name for name in names if name not in others), *_LAST]


def _is_same(key: str, before: object, after: object) -> bool:
    if key == "image" and isinstance(before, tuple) and isinstance(after, tuple):
        return flat(before) == flat(after)
    if key.startswith("requires_") and isinstance(before, str) and isinstance(after, str):
        first, second = before.removeprefix("torch"), after.removeprefix("torch")
        return specifier(first) == specifier(second)
    return before == after
