"""What setup.py, setup.cfg and pyproject.toml ask for. setup.py is only parsed, never run."""

from __future__ import annotations

import ast
import configparser
import itertools
import posixpath
import warnings
from typing import TYPE_CHECKING, Any, Literal

from npuenv.core.finding import Location
from npuenv.core.toml_input import loads
from npuenv.maintain.lint.requirement_files import parse_requirement, read_requirements
from npuenv.maintain.lint.values import Requirement, RequirementFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


Strings = list[tuple[str, int]]


def read_setup_py(path: str, text: str, read: Callable[[str], str | None]) -> tuple[RequirementFile, ...]:
    """install_requires and extras_require, also from names of the module.

    Where install_requires is the result of a call and the file names `requirements.txt`: the requirements of that file.
    Raises: SyntaxError, ValueError, RecursionError, MemoryError where Python cannot parse it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an odd escape in a stranger's file is not the user's concern
        tree = ast.parse(text)
    names = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
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
    document = loads(text)
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


def _is_setup(func: ast.expr) -> bool:
    return (isinstance(func, ast.Name) and func.id == "setup") or (
        isinstance(func, ast.Attribute) and func.attr == "setup"
    )


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
