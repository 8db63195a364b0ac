"""Imports point downwards: the floors of both packages, read from the source, not from running it."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent

# From the ground up. A name is a module or package directly below `npuenv` or `trainer`.
FLOORS = {
    "npuenv": (
        {"core"},
        {"host"},
        {"facts", "matrix"},
        {"resolve", "diagnose", "index"},
        {"lock", "preflight"},
        {"checks", "install", "maintain"},
        {"render"},
        {"bundle"},
        {"cluster"},
        {"report", "smoke"},
        {"app"},
        {"terminal"},
        {"cli", "portable"},
        {"__main__"},
    ),
    "trainer": (
        {"types", "device", "launch", "registry"},
        {"sections"},
        {"distributed"},
        {"algorithms", "overrides", "weights"},
        {"config"},
        {"models", "tasks", "noise"},
        {"engines", "learner"},
        {"rollouts"},
        {"metrics"},
        {"saving"},
        {"faults", "off_policy"},
        {"generator"},
        {"trainer"},
        {"run_state"},
        {"stages", "supervised"},
        {"loop"},
        {"placement"},
        {"__main__"},
    ),
}
# Programs for the interpreter that is looked at: sent to it as text, and imported by nobody here.
SENT_TO_TARGETS = ("npuenv.facts.target.", "npuenv.install.env_verifier.")
FORBIDDEN = {
    "npuenv": {"torch", "torch_npu", "ray", "vllm", "vllm_ascend", "transformers", "trainer", "setuptools"},
    "trainer": {"npuenv"},
}


@functools.cache
def modules(package: str) -> dict[str, Path]:
    """Dotted name to file, for every module of a package."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports(name: str, path: Path) -> frozenset[str]:
    return frozenset(read_imports(name, path))


def read_imports(name: str, path: Path) -> Iterator[str]:
    """Every module that a file names in an import, at any depth of the file, type-checking blocks included.

    `from package import submodule` names the submodule; the package itself only where something of its own is taken.
    """
    home = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*home.split(".")[: len(home.split(".")) - node.level + 1]]) if node.level else ""
            source = ".".join(part for part in (base, node.module or "") if part)
            for alias in node.names:
                below = f"{source}.{alias.name}"
                yield below if any(below in modules(each) for each in FLOORS) else source


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node, without their expressions, in which nothing is imported."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()):
            yield child
            yield from statements(child)


def arrows(package: str) -> list[tuple[str, str]]:
    """Pairs (importer, imported) inside one package, both as dotted names of existing modules."""
    known = modules(package)
    return [(name, other) for name, path in known.items() for other in imports(name, path) if other in known]


def floor_of(package: str, name: str) -> int:
    part = name.split(".")[1]
    for level, names in enumerate(FLOORS[package]):
        if part in names:
            return level
    raise AssertionError(f"{name} stands on no floor: give it a place in FLOORS and in docs/ARCHITECTURE.md")


@pytest.mark.parametrize("package", ["npuenv", "trainer"])
def test_imports_point_downwards_only_in_no_circle_and_at_nothing_forbidden(package: str) -> None:
    """One test: what takes its time is to read the package."""
    imports_point_downwards_only(package)
    no_import_goes_in_a_circle(package)
    forbidden_packages_are_not_imported(package)
    if package == "npuenv":
        programs_for_targets_are_imported_by_nobody()


def imports_point_downwards_only(package: str) -> None:
    upward = []
    for importer, imported in arrows(package):
        if imported == package or importer == package:
            continue
        same_part = importer.split(".")[1] == imported.split(".")[1]
        if not same_part and floor_of(package, imported) >= floor_of(package, importer):
            upward.append(f"{importer} -> {imported}")
    assert upward == []


def no_import_goes_in_a_circle(package: str) -> None:
    """A package's own `__init__` counts with what it imports; importing a submodule does not make a cycle by itself."""
    graph: dict[str, set[str]] = {}
    for importer, imported in arrows(package):
        is_own_child_or_parent = imported.startswith(importer + ".") and importer == package
        if importer != imported and not is_own_child_or_parent and imported != package:
            graph.setdefault(importer, set()).add(imported)
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"cycle: {' -> '.join((*path[path.index(name) :], name))}"
        if name in done:
            return
        for other in sorted(graph.get(name, ())):
            visit(other, (*path, name))
        done.add(name)

    for name in sorted(graph):
        visit(name, ())


def forbidden_packages_are_not_imported(package: str) -> None:
    offending = [
        f"{name} imports {other}"
        for name, path in modules(package).items()
        for other in imports(name, path)
        if other.split(".")[0] in FORBIDDEN[package] and not name.startswith(SENT_TO_TARGETS)
    ]
    assert offending == []


def programs_for_targets_are_imported_by_nobody() -> None:
    programs = [name for name in modules("npuenv") if name.startswith(SENT_TO_TARGETS)]
    # Parts of one program name each other; they are sent together.
    arrows_in = [(one, other) for one, other in arrows("npuenv") if other in programs and one not in programs]
    importers = [f"{one} -> {other}" for one, other in arrows_in]
    assert programs and importers == []


# The readers of what others wrote, and programs for targets, which bring nothing of npuenv along.
READS_JSON = {
    "npuenv.core.documents",
    "npuenv.cluster.mesh.remote",
    "npuenv.cluster.remote_agent",
    "npuenv.render.activation_program",
    "npuenv.smoke.backends.target_program",
}
_PARSERS = {"json": {"load", "loads", "JSONDecoder"}, "tomli": {"load", "loads"}, "tomllib": {"load", "loads"}}


_PARSES = re.compile(r"\b(json|tomli|tomllib)\s*(\.\s*(load|JSONDecoder)|\bimport\b)")


def parses_itself(path: Path) -> bool:
    """Whether a file uses a parser of JSON or TOML without the bounds of npuenv's own readers."""
    source = path.read_text(encoding="utf-8")
    if not _PARSES.search(source):
        return False
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in _PARSERS.get(node.value.id, ()):
                return True
        elif isinstance(node, ast.ImportFrom) and _PARSERS.get(node.module or "", set()) & {
            alias.name for alias in node.names
        }:
            return True
    return False


def test_json_and_toml_are_read_in_one_place() -> None:
    found = {name for name, path in modules("npuenv").items() if parses_itself(path)}
    assert {name for name in found if not name.startswith(SENT_TO_TARGETS)} == READS_JSON


def test_only_device_py_names_accelerators_in_code() -> None:
    """`trainer/device.py` alone says npu, cuda, hccl, nccl, gloo as a value; elsewhere they may stand in prose."""
    words = {"npu", "cuda", "hccl", "nccl", "gloo"}
    offending = []
    for name, path in modules("trainer").items():
        source = path.read_text(encoding="utf-8")
        if name == "trainer.device" or not any(word in source.lower() for word in words):
            continue
        tree = ast.parse(source)
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                offending += [f"{name}:{node.lineno} {node.value!r}"] * (node.value.lower() in words)
            elif isinstance(node, ast.Attribute) and node.attr in words:
                offending.append(f"{name}:{node.lineno} .{node.attr}")
    assert offending == []


def test_the_picture_would_notice_an_upward_arrow() -> None:
    assert floor_of("npuenv", "npuenv.core.messages") < floor_of("npuenv", "npuenv.cli")
    path = ROOT / "npuenv" / "core" / "messages" / "__init__.py"
    assert "npuenv.core.documents" in imports("npuenv.core.messages", path)
