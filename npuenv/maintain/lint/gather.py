"""What a checkout holds that matters here: the files by their names, read once, with what could not be read."""

from __future__ import annotations

import configparser
import functools
import os
import posixpath
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.finding import Location
from npuenv.core.messages import Message
from npuenv.maintain.lint.dockerfile import read_dockerfile, read_shell_script
from npuenv.maintain.lint.project_files import read_pyproject, read_setup_cfg, read_setup_py
from npuenv.maintain.lint.requirement_files import read_requirements
from npuenv.maintain.lint.values import LintedScript, LintedTree, RequirementFile, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.core.finding import Finding

_SKIPPED = frozenset(
    (".git", ".hg", ".svn", ".tox", ".venv", "venv", "node_modules", "__pycache__", "build", "dist", "site-packages")
)
_REQUIREMENTS = re.compile(r"requirements.*\.(?:txt|in)$")
_DOCKERFILE = re.compile(r"Dockerfile|.*\.Dockerfile$|Dockerfile[._-].*", re.IGNORECASE)
_NOT_DOCKERFILE = (".md", ".rst", ".py", ".yaml", ".yml", ".dockerignore")
_PROJECT = ("setup.py", "setup.cfg", "pyproject.toml")
_MAX_BYTES = 1_000_000


def gather(path: Path) -> LintedTree:
    """Everything of interest at a path: one file, or a checkout. Names in it are relative to the path.

    Raises: BadInput where there is nothing, or nothing that may be looked at.
    """
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        raise BadInput(Message("lint.no-path", {"path": str(path)}), Message("lint.no-path-hint")) from None
    reading = _FileReading(path if is_folder else path.parent)
    for each in reading.interesting() if is_folder else (path,):
        reading.take(each, named=each == path)
    return LintedTree(str(path), tuple(reading.files), tuple(reading.scripts), tuple(reading.findings))


def _kind(name: str) -> str:
    if _REQUIREMENTS.match(name):
        return "requirements"
    if name in _PROJECT:
        return name
    if name.endswith(".sh"):
        return "script"
    is_dockerfile = _DOCKERFILE.fullmatch(name) and not name.lower().endswith(_NOT_DOCKERFILE)
    return "dockerfile" if is_dockerfile else ""


class _FileReading:
    """The files of one checkout while they are read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[RequirementFile] = []
        self.scripts: list[LintedScript] = []
        self.findings: list[Finding] = []

    def interesting(self) -> Iterator[Path]:
        """The files below the root whose names matter. A folder that cannot be entered is noted."""
        for folder, folders, names in os.walk(self.root, onerror=self._closed):
            folders[:] = sorted(each for each in folders if each not in _SKIPPED)
            for name in sorted(names):
                if _kind(name):
                    yield Path(folder, name)

    def _closed(self, error: OSError) -> None:
        name = os.path.relpath(error.filename, self.root)
        self._left_out(name, Message("lint.os-error", {"what": error.strerror or type(error).__name__}))

    def take(self, path: Path, *, named: bool) -> None:
        """Reads one file. `named`: the user named it, so that it is read whatever it is called."""
        kind = _kind(path.name) or ("requirements" if path.suffix == ".txt" else "dockerfile" if named else "")
        name = path.relative_to(self.root).as_posix()
        text = self._text(name)
        if text is None:
            return
        try:
            self._parse(kind, name, text)
        except (SyntaxError, ValueError, configparser.Error, RecursionError, MemoryError) as error:
            # what Python's own parsers raise for text that is not theirs; the file is a stranger's
            self._left_out(name, str(error).splitlines()[0] if str(error) else type(error).__name__)

    def _parse(self, kind: str, name: str, text: str) -> None:
        if kind == "requirements":
            self.files.append(read_requirements(name, self._included))
        elif kind == "setup.py":
            self.files += read_setup_py(name, text, functools.partial(self._included, quiet=True))
        elif kind == "setup.cfg":
            self.files += read_setup_cfg(name, text)
        elif kind == "pyproject.toml":
            self.files += read_pyproject(name, text)
        elif kind == "script" and ("pip" in text or "git clone" in text):
            self.scripts.append(read_shell_script(name, text))
        elif kind == "dockerfile":
            self.scripts += read_dockerfile(name, text)

    def _included(self, name: str, *, quiet: bool = False) -> str | None:
        """The text of a file that another names; None where it is not inside the checkout or cannot be read.

        `quiet`: that it is named is a guess, so that nothing is said where there is none.
        """
        if name.startswith(("/", "..")) or "://" in name:
            problem = Message("lint.outside")
        elif not (self.root / name).is_file():
            problem = Message("lint.no-file")
        else:
            return self._text(name, quiet=quiet)
        if not quiet:
            self._left_out(name, problem)
        return None

    def _text(self, name: str, *, quiet: bool = False) -> str | None:
        """A file's text, without a byte order mark. Bytes that are not UTF-8 become a replacement character."""
        path = self.root / posixpath.normpath(name)
        raw, problem = b"", None
        try:
            if path.stat().st_size > _MAX_BYTES:
                problem = Message("lint.too-large")
            elif path.is_file():  # not a pipe or a device, which would never end
                raw = path.read_bytes()
        except OSError as error:
            problem = Message("lint.os-error", {"what": error.strerror or type(error).__name__})
        if problem is None and b"\0" in raw:
            problem = Message("lint.binary")
        if problem is None:
            return raw.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
        if not quiet:
            self._left_out(name, problem)
        return None

    def _left_out(self, name: str, what: str | Message) -> None:
        self.findings.append(finding(Location(name, 1), "unreadable", {"file": name, "what": what}, (), "warning"))
