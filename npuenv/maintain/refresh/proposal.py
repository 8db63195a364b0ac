"""One run of a refresh and what it gives: a proposed change of the matrix as a value, and its text.

A run reads a file of an index without failing over it. A proposal's text is TOML in the form of the tables, or a diff
of many (`as_diff` reads the tables). Nothing here writes a file.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from npuenv.core.documents import TomlError, parse_toml
from npuenv.core.messages import Message
from npuenv.core.versions import specifier
from npuenv.index.metadata import Requires, Unreadable, metadata_requires
from npuenv.matrix.rows import ReleaseImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from packaging.tags import Tag

    from npuenv.index.pages import Indexes, IndexFile
    from npuenv.matrix.load import Row
    from npuenv.matrix.tables import Matrix


DEFAULT = "default"  # what the matrix calls the indexes that pip is set up with
_OLD_MANYLINUX = {"manylinux2014": 17, "manylinux2010": 12, "manylinux1": 5}


@dataclass(slots=True)
class MatrixComparison:
    """What is compared with the matrix, whatever is read. Only `partners` grows while it runs."""

    matrix: Matrix
    on_step: Callable[[Message], None]
    today: str  # YYYY-MM-DD, the `seen` of new rows
    partners: dict[str, None] = field(default_factory=dict)  # vllm versions of the rows that were compared, in order


@dataclass(slots=True, kw_only=True)
class Refresh(MatrixComparison):
    """What a refresh from the indexes was asked for."""

    indexes: Indexes
    is_thorough: bool  # read again what the rows have seen already

    def by_version(self, name: str, oldest: str) -> Iterator[tuple[str, tuple[IndexFile, ...]]]:
        """The files of each version from `oldest` on, in order. What is older than the table is not its business."""
        self.on_step(Message("refresh.page", {"package": name}))
        files = (item for item in self.indexes.files(name) if Version(item.version) >= Version(oldest))
        for version, group in itertools.groupby(files, key=lambda item: item.version):
            yield version, tuple(group)

    def is_news(self, files: Iterable[IndexFile], seen: str) -> bool:
        """Whether files may say something that a row does not know: one came on or after the day it was `seen`.

        A file on an index never changes, so what is older needs no second reading; a file without a date does.
        """
        return self.is_thorough or any(not item.uploaded or item.uploaded >= seen for item in files)

    def wheel_requires(self, item: IndexFile) -> Requires | None:
        """What a wheel asks for; None, said aloud, where it cannot be read. Raises: CannotTell."""
        self.on_step(Message("refresh.reading", {"file": item.file}))
        try:
            return metadata_requires(self.indexes.metadata(item), "METADATA")
        except Unreadable as error:
            self.skipped(item, error)
            return None

    def texts(self, item: IndexFile, wanted: Iterable[str]) -> dict[str, str] | None:
        """Files of an sdist; None, said aloud, where it cannot be read. Raises: CannotTell."""
        self.on_step(Message("refresh.reading", {"file": item.file}))
        try:
            return self.indexes.texts(item, wanted)
        except Unreadable as error:
            self.skipped(item, error)
            return None

    def skipped(self, item: IndexFile, error: Unreadable) -> None:
        self.on_step(Message("refresh.skipped", {"file": item.file, "why": str(error)}))


def wheels(files: Iterable[IndexFile], arch: str = "") -> list[IndexFile]:
    """The wheels among files, or those of one architecture."""
    found = [item for item in files if item.kind == "wheel"]
    return [item for item in found if not arch or any(tag.platform.endswith((arch, "any")) for tag in _tags(item))]


def sdist(files: Iterable[IndexFile]) -> IndexFile | None:
    return next((item for item in files if item.kind == "sdist"), None)


def pythons(files: Iterable[IndexFile]) -> tuple[str, ...]:
    """The CPython versions that wheels are built for, oldest first: ("3.10", "3.11")."""
    names = {tag.interpreter for item in files for tag in _tags(item)}
    found = {(int(match[1]), int(match[2])) for name in names if (match := re.fullmatch(r"cp(\d)(\d+)", name))}
    return tuple(f"{major}.{minor}" for major, minor in sorted(found))


def glibc_floor(files: Iterable[IndexFile]) -> str:
    """The lowest glibc that any of the wheels declares, like "2.28"; "" where they declare none."""
    found = []
    for item in files:
        for tag in _tags(item):
            modern = re.match(r"manylinux_2_(\d+)_", tag.platform)
            old = next((minor for name, minor in _OLD_MANYLINUX.items() if tag.platform.startswith(name)), 0)
            found += [int(modern[1])] if modern else [old] if old else []
    return f"2.{min(found)}" if found else ""


def published(files: Iterable[IndexFile]) -> str:
    """The day of the first upload; "" where the index does not say."""
    return min((item.uploaded for item in files if item.uploaded), default="")


def _tags(item: IndexFile) -> frozenset[Tag]:
    try:
        return parse_wheel_filename(item.file)[3]
    except ValueError:  # InvalidWheelFilename, or a number of thousands of digits
        return frozenset()


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


def proposals(file: str, old: Row | None, new: Row, source: str) -> Iterator[Proposal]:
    """A new row where there is no old one, else what changed."""
    if old is None:
        yield new_row(file, new)
    else:
        yield from changed_keys(file, old, new, source)


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
            parse_toml("".join(lines[first:behind]), is_ours=True)
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


def _flat(images: Iterable[ReleaseImage]) -> Iterator[ReleaseImage]:
    """Images one hardware and operating system at a time, to compare them however they are grouped."""
    for image in images:
        for hardware, os in itertools.product(image.hardware, image.os):
            yield replace(image, hardware=(hardware,), os=(os,), one_off=())


def _is_same(key: str, before: object, after: object) -> bool:
    if key == "image" and isinstance(before, tuple) and isinstance(after, tuple):
        return {*_flat(before)} == {*_flat(after)}
    if key.startswith("requires_") and isinstance(before, str) and isinstance(after, str):
        first, second = before.removeprefix("torch"), after.removeprefix("torch")
        return specifier(first) == specifier(second)
    return before == after
