"""Builds the doctor as one file that runs on any Python from 3.9 on, on a host without installed packages.

It holds the doctor's own modules, their tables, and four pure Python libraries. `npuenv.portable` reports what it
cannot do. The same sources give the same bytes.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.host.writing import cannot_save
from npuenv.install.locations import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OLDEST = (3, 9)  # the Python of openEuler 22.03
# Files and folders of the package, without those that install, lock and render. `resolve` knows the published stacks.
PARTS = (
    "__init__.py",
    "app/__init__.py",
    "app/examine.py",
    "checks",
    "core",
    "diagnose",
    "facts",
    "host",
    "matrix",
    "portable.py",
    "report",
    "resolve",
    "terminal",
)
_REPORTS = {
    f"report/{name}.py"
    for name in (
        *("advice", "cluster", "cluster_forms", "fix", "matrix", "mesh", "plan", "ray_cluster"),
        *("lines", "plots", "preflight", "resolution", "shelf", "smoke"),
    )
}
LEFT_OUT = frozenset({"facts/pip.py", "host/background.py", "host/sourced_env.py", *_REPORTS})
# Distribution -> its package.
LIBRARIES = {"packaging": "packaging", "pyelftools": "elftools", "rich": "rich", "tomli": "tomli"}
_SUFFIXES = (".py", ".toml")
_LICENSES = ("LICENSE", "LICENCE", "COPYING", "NOTICE")  # prefixes of their names
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest of the format; a clock would change the bytes
_SEAL_BYTES = 32  # the sha256 before the cached bytes
_SHEBANG = b"#!/usr/bin/env python3\n"
# In the grammar of Python 2 as well, which parses a file completely before it runs it.
_MAIN = '''"""The doctor in one file: python3 npuenv-doctor.pyz --help"""
import sys

if sys.version_info < (3, 9):
    sys.stderr.write("npuenv-doctor.pyz needs Python 3.9 or newer; this is " + sys.version.split()[0] + "\\n")
    sys.exit(2)
import npuenv_start

sys.exit(npuenv_start.main())
'''
_START = '''"""Starts the doctor on a Python that is new enough."""
import dataclasses
import functools
import sys

if sys.version_info < (3, 10):
    # `slots` came with 3.10. It saves memory and stops typing mistakes; nothing depends on it.
    _plain = dataclasses.dataclass

    @functools.wraps(_plain)
    def _without_slots(cls=None, *, slots=False, **options):
        return _plain(cls, **options)

    dataclasses.dataclass = _without_slots
from npuenv.portable import main

__all__ = ["main"]
'''


def build(path: Path) -> int:
    """Writes the file and returns its size in bytes. Raises: BadInput if it cannot be written."""
    data = content()
    try:
        path.write_bytes(data)
        path.chmod(0o755)
    except OSError as error:
        raise cannot_save(path, error) from error
    return len(data)


def content() -> bytes:
    """The bytes of the file.

    Checking and packing takes a second, so the result is cached in the user's cache folder, by its inputs.
    """
    found = sorted(members())
    location = Path(cache_folder(os.environ), "doctor", f"{_digest(found)}.pyz")
    cached = _cached(location)
    if cached is not None:
        return cached
    data = _packed(found)
    _cache(location, data)
    return data


def _digest(found: Iterable[tuple[str, bytes]]) -> str:
    """The digest of all inputs: the content, and the code that packs it."""
    digest = hashlib.sha256(f"1 {zlib.ZLIB_RUNTIME_VERSION}\n".encode())
    for name, text in found:
        digest.update(f"{len(name)} {len(text)} {name}\n".encode() + text)
    return digest.hexdigest()


def _cached(location: Path) -> bytes | None:
    """The cached bytes; None if there are none, they are damaged, or another user could have written them."""
    try:
        with location.open("rb") as file:
            about = os.fstat(file.fileno())
            seal, data = file.read(_SEAL_BYTES), file.read()
    except OSError:
        return None
    is_ours = about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return data if is_ours and seal == hashlib.sha256(data).digest() else None


def _cache(location: Path, data: bytes) -> None:
    """Writes the bytes to the cache atomically and removes those of other sources. Errors are ignored."""
    with contextlib.suppress(OSError):
        location.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=location.parent, prefix=".", delete=False) as file:
            part = Path(file.name)
            try:
                file.write(hashlib.sha256(data).digest() + data)
                file.flush()
                part.replace(location)
            finally:
                part.unlink(missing_ok=True)
        for other in location.parent.glob("*.pyz"):
            if other != location:
                other.unlink(missing_ok=True)


def _packed(found: Iterable[tuple[str, bytes]]) -> bytes:
    """The members as one file. Raises: BadInput for code that the oldest Python cannot parse."""
    buffer = io.BytesIO(_SHEBANG)
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a", compression=zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in found:
            if name.endswith(".py"):
                _require_grammar(text, name)
            add_member(archive, name, text)
    return buffer.getvalue()


def add_member(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Adds a file without anything of this machine."""
    info = zipfile.ZipInfo(name, _TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, data)


def members() -> Iterator[tuple[str, bytes]]:
    """(name in the file, content) of everything."""
    yield "__main__.py", _MAIN.encode()
    yield "npuenv_start.py", _START.encode()
    root = Path(__file__).parent.parent
    for part in PARTS:
        yield from _files(root, root / part, LEFT_OUT)
    yield from _licenses("npuenv", root.parent / "LICENSE")
    for distribution, package in LIBRARIES.items():
        found = importlib.util.find_spec(package)
        assert found is not None and found.origin is not None, package  # a dependency of ours
        folder = Path(found.origin).parent
        yield from _files(folder, folder)
        yield from _licenses(distribution)


def _files(root: Path, location: Path, left_out: frozenset[str] = frozenset()) -> Iterator[tuple[str, bytes]]:
    """The code and tables of a package, or of one part of it, below the package's name."""
    for file in [location] if location.is_file() else sorted(location.rglob("*")):
        name = file.relative_to(root).as_posix()
        if file.suffix in _SUFFIXES and name not in left_out:
            yield f"{root.name}/{name}", file.read_bytes()


def _require_grammar(text: bytes, name: str) -> None:
    """Raises BadInput for code that the oldest Python cannot parse: a library may have dropped it."""
    try:
        ast.parse(text, name, feature_version=OLDEST)
    except SyntaxError as error:
        args = {"name": name, "oldest": ".".join(map(str, OLDEST)), "why": error.msg}
        raise BadInput(Message("doctor.too-new", args), Message("doctor.too-new-hint", args)) from error


def _licenses(distribution: str, *others: Path) -> Iterator[tuple[str, bytes]]:
    """The license texts of a distribution; `others` are further folders for one that is not installed."""
    found = {file.name: file for file in others if file.is_file()}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(distribution) or ():
            if file.parts[0].endswith(".dist-info") and file.name.startswith(_LICENSES):
                found.setdefault(file.name, Path(str(file.locate())))
    for name, path in sorted(found.items()):
        yield f"licenses/{distribution}/{name}", path.read_bytes()
