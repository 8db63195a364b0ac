"""Finds what conflicts or will fail in an upstream checkout: requirements, metadata, Dockerfiles, scripts.

`gather` reads the files by their names, each once, and notes what could not be read; `lint_paths` checks them against
all rules. It complains only of what the text decides: an unset variable, a branch that depends on the machine, or a
release that the matrix does not know gives no finding. Nothing of the checkout is run.
"""

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
from npuenv.maintain.lint import rules_files, rules_versions
from npuenv.maintain.lint.dockerfile import read_dockerfile, read_shell_script
from npuenv.maintain.lint.history import follow
from npuenv.maintain.lint.requirement_files import read_pyproject, read_requirements, read_setup_cfg, read_setup_py
from npuenv.maintain.lint.values import LintedScript, LintedTree, RequirementFile, finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.core.finding import Finding
    from npuenv.matrix import Matrix


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


_OF_CHECKOUT = (
    rules_files.undeclared_limits,
    rules_files.pins_that_pair,
    rules_versions.index_of_files,
)
_OF_SCRIPT = (
    rules_versions.pairs,
    rules_versions.pairs_of_commands,
    rules_versions.torch_npu_on_cann,
    rules_versions.triton_on_cann,
    rules_versions.wheels,
    rules_versions.index_of_script,
    rules_versions.cpu_index,
    rules_versions.vllm_pair,
    rules_files.soc_version,
    rules_files.refs,
    rules_files.file_name,
)
_OF_TEXT = (
    rules_versions.metadata_clash,
    rules_versions.broken_pins,
    rules_versions.triton_order,
    rules_files.source_under_sh,
    rules_files.tls,
    rules_files.vllm_target,
    rules_files.one_architecture,
    rules_files.unknown_instruction,
)


def lint_paths(paths: Sequence[Path], matrix: Matrix) -> tuple[Finding, ...]:
    """Every finding about some files and checkouts, by path and line. Each is said once.

    Raises: BadInput where a path does not exist.
    """
    found: list[Finding] = []
    for path in paths:
        found += _lint(gather(path), matrix)
    unique = {(each.location, each.check, each.says.key, str(each.says.args)): each for each in reversed(found)}
    return tuple(sorted(unique.values(), key=_position))


def _position(finding: Finding) -> tuple[str, int, str, str]:
    assert finding.location is not None
    return finding.location.path, finding.location.line, finding.check, str(finding.says.args)


def _lint(checkout: LintedTree, matrix: Matrix) -> Iterator[Finding]:
    yield from checkout.findings
    yield from rules_files.disjoint_asks(checkout)
    for rule in _OF_CHECKOUT:
        yield from rule(checkout, matrix)
    histories = [follow(script, checkout, matrix) for script in checkout.scripts]
    yield from rules_files.different_vllm(histories)
    for history in histories:
        for of_script in _OF_SCRIPT:
            yield from of_script(history, matrix)
        for of_text in _OF_TEXT:
            yield from of_text(history)
