"""What requirement files, setup.py, setup.cfg and pyproject.toml ask for. setup.py is only parsed, never run."""

from __future__ import annotations

import ast
import configparser
import itertools
import posixpath
import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as PackagingRequirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import parse_sdist_filename, parse_wheel_filename

from npuenv.core import versions
from npuenv.core.documents import parse_toml
from npuenv.core.finding import Location
from npuenv.core.shellwords import ARCHES
from npuenv.maintain.lint.values import Requirement, RequirementFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
_OPTION = re.compile(r"(-r|--requirement|-i|--index-url|--extra-index-url|-f|--find-links)[\s=]*(\S+)")
_WHEEL_OPTIONS = re.compile(r"\s+--(?:hash|config-settings|global-option).*$")
_MAX_INCLUDES = 50


def parse_requirement(text: str, place: Location) -> Requirement | None:
    """A requirement, or None where the text is none, is for no platform of ours, or hangs on the Python version.

    Example: "torch_npu==2.8.0 ; platform_machine == 'aarch64'" gives torch-npu, only on aarch64.
    """
    text = text.strip()
    try:
        parsed = PackagingRequirement(text)
    except (InvalidRequirement, InvalidSpecifier):
        return _archive(text, place)
    arch = _arch_of(parsed.marker)
    if arch is None:
        return None
    if parsed.url:
        archive = _archive(parsed.url, place)
        spec = archive.spec if archive else None
    else:
        spec = parsed.specifier
    return Requirement(versions.normalised(parsed.name), spec, text, place, arch)


def _archive(text: str, place: Location) -> Requirement | None:
    """A wheel or sdist named by its address. The version counts only where the whole name is readable."""
    file = unquote(urlsplit(text.split("#")[0]).path if "://" in text else text).rpartition("/")[2]
    try:
        if file.endswith(".whl"):
            name, version, *_ = parse_wheel_filename(file)
        elif file.endswith((".tar.gz", ".zip")):
            name, version = parse_sdist_filename(file)
        else:
            return None
    except ValueError:  # InvalidWheelFilename, InvalidSdistFilename, or a number of thousands of digits
        known = re.match(r"([A-Za-z0-9_.]+)-", file) if file.endswith(".whl") else None
        return Requirement(versions.normalised(known[1]), None, text, place) if known else None
    return Requirement(str(name), SpecifierSet(f"=={version}"), text, place)


def _arch_of(marker: Marker | None) -> str | None:
    """ "" on both architectures, one of them, or None where it holds on neither or on some Pythons only."""
    if marker is None:
        return ""
    found = []
    for arch in ARCHES:
        holds = {_holds(marker, arch, python) for python in _PYTHONS}
        if len(holds) > 1:
            return None
        if holds == {True}:
            found.append(arch)
    return "" if len(found) == len(ARCHES) else (found[0] if found else None)


def _holds(marker: Marker, arch: str, python: str) -> bool:
    try:
        return marker.evaluate(versions.marker_environment(arch, python, f"{python}.9"))
    except (UndefinedComparison, UndefinedEnvironmentName, InvalidSpecifier):
        return False


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a requirements file with their numbers: continuations joined, comments off."""
    start, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        start = start if parts else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            parts.append(line[:-1])
            continue
        parts.append(line)
        whole = re.sub(r"(^|\s+)#.*$", "", " ".join(parts)).strip()
        parts = []
        if whole:
            yield start, whole


def read_requirements(path: str, read: Callable[[str], str | None]) -> RequirementFile:
    """The requirements of a requirements file and of those it includes, with the index lines that hold for all of them.

    `read` gives the text of a path, None where there is none. A file that includes itself is read once.
    """
    requirements: list[Requirement] = []
    indexes: list[str] = []
    waiting, seen = [path], set[str]()
    while waiting and len(seen) < _MAX_INCLUDES:
        current = waiting.pop(0)
        if current in seen:
            continue
        seen.add(current)
        for number, line in logical_lines(read(current) or ""):
            option = _OPTION.match(line)
            if option and option[1] in ("-r", "--requirement"):
                waiting.append(_beside(current, option[2]))
            elif option:
                indexes.append(option[2])
            elif not line.startswith("-"):
                found = parse_requirement(_WHEEL_OPTIONS.sub("", line), Location(current, number))
                requirements += [found] if found else []
    whole = tuple(replace(each, indexes=tuple(indexes)) for each in requirements)
    return RequirementFile(path, "requirements", whole)


def _beside(path: str, name: str) -> str:
    """A path written relative to a file, without `.` and `..`. An address stays as it is."""
    return name if "://" in name else posixpath.normpath(posixpath.join(posixpath.dirname(path), name))


Strings = list[tuple[str, int]]


def read_setup_py(path: str, text: str, read: Callable[[str], str | None]) -> tuple[RequirementFile, ...]:
    """install_requires and extras_require, also from names of the module.

    Where install_requires is the result of a call and the file names `requirements.txt`: the requirements of that file.
    Raises: SyntaxError, ValueError, RecursionError, MemoryError where Python cannot parse it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an odd escape in a stranger's file is not the user's concern
        tree = ast.parse(text)
    names = assigned_names(tree)
    call = next((node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_setup(node.func)), None)
    if call is None:
        return ()
    keywords = {each.arg: _look_up(each.value, names) for each in call.keywords if each.arg}
    name = keywords.get("name")
    label = str(name.value) if isinstance(name, ast.Constant) else ""
    found = [_file_of(path, "project", _strings(keywords.get("install_requires"), names), label)]
    if isinstance(keywords.get("install_requires"), ast.Call) and "requirements.txt" in text:
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), "requirements.txt"))
        found = [RequirementFile(path, "project", read_requirements(beside, read).requirements, label)]
    extras = keywords.get("extras_require")
    if isinstance(extras, ast.Dict):
        for key, value in zip(extras.keys, extras.values, strict=True):
            extra = str(key.value) if isinstance(key, ast.Constant) else ""
            found.append(_file_of(path, "extra", _strings(value, names), extra))
    return tuple(each for each in found if each.requirements)


def read_setup_cfg(path: str, text: str) -> tuple[RequirementFile, ...]:
    """install_requires and the extras of setup.cfg. Raises: configparser.Error."""
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(text)
    found = []
    if parser.has_option("options", "install_requires"):
        found.append(_file_of(path, "project", _located(parser.get("options", "install_requires").splitlines(), text)))
    if parser.has_section("options.extras_require"):
        for label, lines in parser.items("options.extras_require"):
            found.append(_file_of(path, "extra", _located(lines.splitlines(), text), label))
    return tuple(each for each in found if each.requirements)


def read_pyproject(path: str, text: str) -> tuple[RequirementFile, ...]:
    """project.dependencies, project.optional-dependencies and build-system.requires. Raises: ValueError."""
    document = parse_toml(text)
    project = _table(document.get("project"))
    found = [
        _file_of(path, "project", _located(_list(project.get("dependencies")), text), str(project.get("name", ""))),
        _file_of(path, "build", _located(_list(_table(document.get("build-system")).get("requires")), text)),
    ]
    for label, lines in _table(project.get("optional-dependencies")).items():
        found.append(_file_of(path, "extra", _located(_list(lines), text), label))
    return tuple(each for each in found if each.requirements)


def _file_of(
    path: str, kind: Literal["project", "build", "extra"], lines: Iterable[tuple[str, int]], label: str = ""
) -> RequirementFile:
    requirements: list[Requirement] = []
    for text, number in lines:
        found = parse_requirement(text, Location(path, number))
        requirements += [found] if found else []
    return RequirementFile(path, kind, tuple(requirements), label)


def assigned_names(tree: ast.Module) -> dict[str, ast.expr]:
    """The names of a module to what they are set to, the last one of equal names."""
    assigned = ((target, node.value) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
    return {target.id: value for target, value in assigned if isinstance(target, ast.Name)}


def _is_setup(func: ast.expr) -> bool:
    return "setup" in (getattr(func, "id", ""), getattr(func, "attr", ""))


def _look_up(node: ast.expr, names: dict[str, ast.expr]) -> ast.expr:
    return names.get(node.id, node) if isinstance(node, ast.Name) else node


def _strings(node: ast.expr | None, names: dict[str, ast.expr]) -> Strings:
    """The string literals of a list, of lists that are added or unpacked, of names that hold such lists."""
    found: Strings = []
    waiting, steps = [node], itertools.count()
    while waiting and next(steps) < 10_000:
        current = waiting.pop(0)
        if isinstance(current, ast.Constant) and isinstance(current.value, str):
            found.append((current.value, current.lineno))
        elif isinstance(current, (ast.List, ast.Tuple, ast.Set)):
            waiting = [*current.elts, *waiting]
        elif isinstance(current, ast.BinOp) and isinstance(current.op, ast.Add):
            waiting = [current.left, current.right, *waiting]
        elif isinstance(current, ast.Starred):
            waiting = [current.value, *waiting]
        elif isinstance(current, ast.Name):
            waiting = [names.get(current.id), *waiting]
    return found


def _located(entries: Iterable[object], text: str) -> Strings:
    """Each entry with the line it stands on: the next line, from the last one found, that holds it."""
    lines, at, found = text.splitlines(), 0, []
    for entry in entries:
        if not isinstance(entry, str) or not entry.strip():
            continue
        entry_text = entry.strip()
        hits = itertools.chain(range(at, len(lines)), range(at))
        line = next((number for number in hits if entry_text in lines[number]), at)
        at = line
        found.append((entry_text, line + 1))
    return found


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[object]:
    return value if isinstance(value, list) else []
