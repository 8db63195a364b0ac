"""Builds the doctor as one file that runs on any Python from 3.9 on, on a host without installed packages.

It holds the doctor's own modules, their tables, and four pure Python libraries. `npuenv.portable` reports what it
cannot do. The same sources give the same bytes.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.core.versions import accepts
from npuenv.host.writing import cannot_save

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OLDEST = (3, 9)  # the Python of openEuler 22.03
# Files and folders of the package, without those that resolve, install, lock and render.
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
    "terminal",
)
_REPORTS = {
    f"report/{name}.py"
    for name in (
        *("cluster", "fix", "launch", "matrix", "mesh", "plan", "plots"),
        *("ray_cluster", "resolution", "shelf", "smoke"),
    )
}
LEFT_OUT = frozenset({"facts/pip.py", "host/background.py", *_REPORTS})
# Distribution -> its package.
LIBRARIES = {"packaging": "packaging", "pyelftools": "elftools", "rich": "rich", "tomli": "tomli"}
_SUFFIXES = (".py", ".toml")
_LICENSES = ("LICENSE", "LICENCE", "COPYING", "NOTICE")  # prefixes of their names
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest of the format; a clock would change the bytes
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


@functools.cache
def content() -> bytes:
    """The bytes of the file. Raises: BadInput for a library that the oldest Python cannot parse."""
    buffer = io.BytesIO(_SHEBANG)
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a", compression=zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in sorted(members()):
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
        files = list(_files(folder, folder))
        if not _is_for_oldest(distribution):
            require_grammar(files)
        yield from files
        yield from _licenses(distribution)


def _files(root: Path, location: Path, left_out: frozenset[str] = frozenset()) -> Iterator[tuple[str, bytes]]:
    """The code and tables of a package, or of one part of it, below the package's name."""
    for file in [location] if location.is_file() else sorted(location.rglob("*")):
        name = file.relative_to(root).as_posix()
        if file.suffix in _SUFFIXES and name not in left_out:
            yield f"{root.name}/{name}", file.read_bytes()


def _is_for_oldest(distribution: str) -> bool:
    """Whether a library says that it runs on the oldest Python: parsing all of them takes seconds."""
    try:
        stated = importlib.metadata.metadata(distribution).get_all("Requires-Python")
    except importlib.metadata.PackageNotFoundError:
        return False
    return any(accepts(each, ".".join(map(str, OLDEST))) for each in stated or ())


def require_grammar(files: Iterable[tuple[str, bytes]]) -> None:
    """Raises BadInput for code that the oldest Python cannot parse: a library may have dropped it."""
    name = ""
    try:
        for name, text in files:
            if name.endswith(".py"):
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
