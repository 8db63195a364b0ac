"""Reads what a package requires, and single files out of sdists and wheels without unpacking them. Reads no index.

What it requires is in core metadata, or in the requirement files that its `setup.py` reads.
Requirements are normalised as by `packaging` (no blanks, specifiers in order, markers kept), in the order of their
source. Archives are untrusted: only regular files with a requested name are read, into memory, within the limits below.
Links are never followed and nothing is written; a member that points outside invalidates the archive.
"""

from __future__ import annotations

import gzip
import io
import itertools
import posixpath
import re
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


# The branch of vllm's get_requirements for a build with VLLM_TARGET_DEVICE=empty.
_EMPTY_BRANCH = re.compile(r"if _no_device\(\):\s+requirements = _read_requirements\(\s*[\"']([^\"']+)[\"']")
_COMMENT = re.compile(r"(^|\s)#.*$")
_MAX_NESTING = 8
MAX_FILE = 2 * 1024**2  # bytes of one file that is read; the largest one upstream has 60 KB
_MAX_MEMBER = 256 * 1024**2  # bytes that any member may claim to have
_MAX_UNPACKED = 1024**3  # bytes of a complete sdist; vllm 0.30.0 has 150 MB
_MAX_MEMBERS = 100_000


class Unreadable(ValueError):
    """Invalid content. `str` of it gives location and reason."""


@dataclass(frozen=True, slots=True)
class Requires:
    """The requirements of a package, and the file that states them."""

    requires: tuple[str, ...]
    file: str  # "METADATA", "PKG-INFO", "requirements.txt", ...
    python: str = ""  # Requires-Python; "": not stated


def metadata_requires(text: str, file: str) -> Requires | None:
    """Requires-Dist and Requires-Python of core metadata; None if it leaves the requirements to the build.

    A wheel's METADATA without Requires-Dist requires nothing. A PKG-INFO without it is inconclusive, unless its version
    is 2.2 or newer and it does not declare the field dynamic. Raises: Unreadable.
    """
    raw, _ = parse_email(text)
    if "name" not in raw or "version" not in raw:
        raise Unreadable(f"{file}: Name, Version")
    requires = tuple(_normal(line, file) for line in raw.get("requires_dist", ()))
    dynamic = {field.lower() for field in raw.get("dynamic", ())}
    is_settled = raw.get("metadata_version", "") >= "2.2" and "requires-dist" not in dynamic
    if file == "PKG-INFO" and not requires and not is_settled:
        return None
    return Requires(requires, file, raw.get("requires_python", ""))


def sdist_requires(texts: Mapping[str, str]) -> Requires:
    """The requirements of an sdist: from its PKG-INFO, else from the requirements.txt beside it, which its setup.py
    reads.

    `texts`: path inside the sdist -> content. Raises: Unreadable.
    """
    if "PKG-INFO" not in texts:
        raise Unreadable("PKG-INFO")
    stated = metadata_requires(texts["PKG-INFO"], "PKG-INFO")
    if stated is not None and (stated.requires or "requirements.txt" not in texts):
        return stated
    python = parse_email(texts["PKG-INFO"])[0].get("requires_python", "")
    return Requires(requirement_lines(texts, "requirements.txt"), "requirements.txt", python)


def empty_build_requires(texts: Mapping[str, str]) -> Requires:
    """The requirements of vllm built with the empty target: those of the file that its setup.py reads then.

    Source: vllm setup.py, get_requirements: `if _no_device(): requirements = _read_requirements("common.txt")`; the
    files are in `requirements/` since 0.8, beside setup.py before. Raises: Unreadable.
    """
    found = _EMPTY_BRANCH.search(texts.get("setup.py", ""))
    if found is None:
        raise Unreadable("setup.py: _no_device()")
    name = found[1] if found[1] in texts else posixpath.join("requirements", found[1])
    python = parse_email(texts.get("PKG-INFO", ""))[0].get("requires_python", "")
    return Requires(requirement_lines(texts, name), name, python)


def requirement_lines(texts: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The requirements of a requirements file and of those it includes, without options and comments.

    Raises: Unreadable for a missing file, a line that is not a requirement, or files that include each other.
    """
    return tuple(_lines(texts, name, 0))


def _lines(texts: Mapping[str, str], name: str, depth: int) -> Iterator[str]:
    if name not in texts or depth > _MAX_NESTING:
        raise Unreadable(name)
    for raw in texts[name].splitlines():
        line = _COMMENT.sub("", raw).strip()
        included = re.match(r"(?:-r|--requirement)[ =]\s*(\S+)", line)
        if included:
            yield from _lines(
                texts, posixpath.normpath(posixpath.join(posixpath.dirname(name), included[1])), depth + 1
            )
        elif line and not line.startswith("-"):
            yield _normal(line, name)


def _normal(line: str, file: str) -> str:
    try:
        return str(Requirement(line))
    except InvalidRequirement:
        raise Unreadable(f"{file}: {line[:200]}") from None


def first_block(requires: Sequence[str], stops: frozenset[str]) -> tuple[str, ...]:
    """The requirements before the first one whose name is in `stops`."""
    return tuple(itertools.takewhile(lambda line: distribution(line) not in stops, requires))


def distribution(requirement: str) -> str:
    """The normalised distribution name of a requirement."""
    return canonicalize_name(Requirement(requirement).name)


def specifier_of(requires: Sequence[str], name: str) -> str:
    """The specifier for a package outside of extras, like `==2.8.0`; "" if it is not required or unbounded."""
    for line in requires:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) == name and "extra ==" not in str(requirement.marker or ""):
            return str(requirement.specifier)
    return ""


def sdist_texts(stream: IO[bytes], wanted: Iterable[str], *, max_unpacked: int = _MAX_UNPACKED) -> dict[str, str]:
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
                if number > _MAX_MEMBERS or member.size > _MAX_MEMBER:
                    raise Unreadable(f"{member.name[:200]}: {member.size} bytes")
                depth = path.count("/")
                if any(depth == pattern.count("/") and fnmatchcase(path, pattern) for pattern in patterns):
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
