"""The doctor as one file that any Python from 3.9 on runs, on a host where nothing is installed. Start from `build`.

It holds the doctor's own modules, their tables, and four libraries that are pure Python. What it cannot do there is
said by `npuenv.portable`. The same sources give the same bytes.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import importlib.util
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.errors import BadInput
from npuenv.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDEST = (3, 9)  # the Python of openEuler 22.03
# Files and folders of the package, without what installs, locks and renders. `resolve` knows the published stacks.
PARTS = (
    "__init__.py",
    "_data.py",
    "_toml.py",
    "checks",
    "diagnose",
    "errors.py",
    "facts",
    "front",
    "host",
    "matrix",
    "messages",
    "portable.py",
    "report",
    "resolve",
    "versions.py",
)
_REPORTS = {
    f"report/{name}.py" for name in ("advice", "fix", "matrix", "plan", "plots", "resolution", "shelf", "smoke")
}
LEFT_OUT = frozenset({"facts/environment.py", "facts/pip.py", "host/running.py", "host/sourced.py", *_REPORTS})
# Distribution -> its package.
LIBRARIES = {"packaging": "packaging", "pyelftools": "elftools", "rich": "rich", "tomli": "tomli"}
_SUFFIXES = (".py", ".toml")
_LICENSES = ("LICENSE", "LICENCE", "COPYING", "NOTICE")  # how their names begin
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that the format knows; a clock would change the bytes
_SHEBANG = b"#!/usr/bin/env python3\n"
# In the grammar of Python 2 as well, which reads a file whole before it runs a line of it.
_MAIN = '''"""The doctor in one file: python3 npuenv-doctor.pyz --help"""
import sys

if sys.version_info < (3, 9):
    sys.exit("npuenv-doctor.pyz needs Python 3.9 or newer; this is " + sys.version.split()[0])
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
    """Writes the file and gives its size in bytes. Raises BadInput where it cannot be written."""
    data = content()
    try:
        path.write_bytes(data)
        path.chmod(0o755)
    except OSError as error:
        args = {"path": str(path), "reason": error.strerror or str(error)}
        raise BadInput(Message("cli.cannot-save", args), Message("cli.cannot-save-hint")) from error
    return len(data)


def content() -> bytes:
    """The bytes of the file."""
    buffer = io.BytesIO(_SHEBANG)
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a", compression=zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in sorted(members()):
            info = zipfile.ZipInfo(name, _TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, text)
    return buffer.getvalue()


def members() -> Iterator[tuple[str, bytes]]:
    """(name in the file, content) of everything; all code is checked for the grammar of the oldest Python."""
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


def _files(root: Path, place: Path, left_out: frozenset[str] = frozenset()) -> Iterator[tuple[str, bytes]]:
    """The code and tables of a package, or of one part of it, below the package's name."""
    for file in [place] if place.is_file() else sorted(place.rglob("*")):
        name = file.relative_to(root).as_posix()
        if file.suffix in _SUFFIXES and name not in left_out:
            text = file.read_bytes()
            if file.suffix == ".py":
                _require_grammar(text, f"{root.name}/{name}")
            yield f"{root.name}/{name}", text


def _require_grammar(text: bytes, name: str) -> None:
    """Raises BadInput for code that the oldest Python cannot read: a library may have moved on."""
    try:
        ast.parse(text, name, feature_version=OLDEST)
    except SyntaxError as error:
        args = {"name": name, "oldest": ".".join(map(str, OLDEST)), "why": error.msg}
        raise BadInput(Message("doctor.too-new", args), Message("doctor.too-new-hint", args)) from error


def _licenses(distribution: str, *others: Path) -> Iterator[tuple[str, bytes]]:
    """The license texts of a distribution; `others` are where one may lie that is not installed."""
    found = {file.name: file for file in others if file.is_file()}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(distribution) or ():
            if file.parts[0].endswith(".dist-info") and file.name.startswith(_LICENSES):
                found.setdefault(file.name, Path(str(file.locate())))
    for name, path in sorted(found.items()):
        yield f"licenses/{distribution}/{name}", path.read_bytes()
