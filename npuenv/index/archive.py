"""Reads single files out of sdists and wheels without unpacking them.

Archives are untrusted: only regular files with a requested name are read, into memory, within the limits below. Links
are never followed and nothing is written; a member that points outside invalidates the archive.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING

from npuenv.index.metadata import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_FILE = 2 * 1024**2  # bytes of one file that is read; the largest one upstream has 60 KB
MAX_MEMBER = 256 * 1024**2  # bytes that any member may claim to have
MAX_UNPACKED = 1024**3  # bytes of a complete sdist; vllm 0.30.0 has 150 MB
MAX_MEMBERS = 100_000


class _Bounded(io.RawIOBase):
    """A stream that fails after `limit` bytes: no source archive unpacks to more."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self._stream, self._limit, self._left = stream, limit, limit

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise Unreadable(f"> {self._limit} bytes unpacked")
        return data


def sdist_texts(stream: IO[bytes], wanted: Iterable[str], *, max_unpacked: int = MAX_UNPACKED) -> dict[str, str]:
    """Path inside the sdist (without its top folder) -> text, for each file that matches one of the patterns.

    `wanted`: patterns as in `fnmatch`, like "Dockerfile*"; a `*` does not cross a `/`. `max_unpacked`: bytes of the
    complete archive. Raises: Unreadable.
    """
    patterns = tuple(wanted)
    texts: dict[str, str] = {}
    try:
        with (
            gzip.GzipFile(fileobj=stream, mode="rb") as plain,
            tarfile.open(fileobj=_Bounded(plain, max_unpacked), mode="r|") as archive,
        ):
            for number, member in enumerate(archive):
                path = _inside(member.name)
                if number > MAX_MEMBERS or member.size > MAX_MEMBER:
                    raise Unreadable(f"{member.name[:200]}: {member.size} bytes")
                if any(_matches(path, pattern) for pattern in patterns):
                    texts[path] = _text(archive, member)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise Unreadable(str(error)[:200] or type(error).__name__) from error
    return texts


def wheel_metadata(stream: IO[bytes]) -> str:
    """The METADATA of a wheel, from a seekable file object. Raises: Unreadable."""
    try:
        with zipfile.ZipFile(stream) as archive:
            found = [
                item
                for item in archive.infolist()
                if item.filename.endswith(".dist-info/METADATA") and item.filename.count("/") == 1
            ]
            if len(found) != 1 or found[0].file_size > MAX_FILE:
                raise Unreadable("METADATA")
            with archive.open(found[0]) as member:
                return _decoded(member.read(MAX_FILE + 1), found[0].filename)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise Unreadable(str(error)[:200] or type(error).__name__) from error


def _inside(name: str) -> str:
    """A member's path without the top folder. Raises: Unreadable for a path outside of the archive."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise Unreadable(name[:200])
    return str(PurePosixPath(*path.parts[1:]))


def _matches(path: str, pattern: str) -> bool:
    return path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    if not member.isreg() or member.size > MAX_FILE:
        raise Unreadable(f"{member.name[:200]}: {member.size} bytes, type {member.type!r}")
    content = archive.extractfile(member)
    assert content is not None  # a regular file has content
    return _decoded(content.read(MAX_FILE + 1), member.name)


def _decoded(data: bytes, name: str) -> str:
    if len(data) > MAX_FILE:
        raise Unreadable(f"{name[:200]}: > {MAX_FILE} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{name[:200]}: {error.reason}") from error
