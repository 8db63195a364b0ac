"""One run of a refresh: what it works on, and how it reads a file of an index without failing over it."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from npuenv.core.messages import Message
from npuenv.index.metadata import Requires, Unreadable, metadata_requires

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from packaging.tags import Tag

    from npuenv.index.pages import Indexes, IndexFile
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
    return [
        item
        for item in files
        if item.kind == "wheel" and (not arch or any(tag.platform.endswith((arch, "any")) for tag in _tags(item)))
    ]


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
