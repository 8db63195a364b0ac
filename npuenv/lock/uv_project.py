"""A lock as a uv project: a `pyproject.toml` whose extra `npu` is the locked set, and its `uv.lock`.

`uv sync --frozen --extra npu` then installs the set. uv takes every package without its requirements, because the lock
has resolved them, and some stacks leave a requirement of a package out on purpose.
Source: uv 0.13, "Projects" and "Settings" (`dependency-metadata`, `environments`, `index`, `package`).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.messages import Message
from npuenv.core.toml_input import loads
from npuenv.host.writing import sha256_of
from npuenv.lock.export import marker, require_hashes
from npuenv.lock.store import put_text
from npuenv.lock.uv import deciding_line, environ, index_tables, require_reached
from npuenv.lock.wheels import wheels_in_links

if TYPE_CHECKING:
    from npuenv.lock.file import Lock
    from npuenv.lock.uv import Resolver
    from npuenv.resolve.types import Platform

EXTRA = "npu"
PROJECT_FILES = ("pyproject.toml", "uv.lock")
_HASH = re.compile(r'hash = "sha256:([0-9a-f]{64})"')  # uv writes each file on a line of its own
_ANY_PYTHON = 'requires-python = ">=3.9"'
_MARK = "# Written by `npuenv lock"


def write_uv_project(lock: Lock, platform: Platform, resolver: Resolver, out: Path) -> Path:
    """Writes both files into a folder, and returns the project file.

    They name only files whose hashes are in the lock. Raises: BadInput for a partial lock, a folder that holds another
    project, or an index that now has other files; CannotTell if uv cannot reach the indexes.
    """
    require_hashes(lock)
    project = out / PROJECT_FILES[0]
    if any((out / name).exists() for name in PROJECT_FILES) and not _is_own(project):
        raise BadInput(Message("lock.other-project", {"path": str(out)}), Message("lock.other-folder"))
    text = _project(lock, platform, resolver) + _metadata(lock, "tool.uv.")
    main_alone = replace(resolver, settings=replace(resolver.settings, extra_index_urls=()))
    try:
        # uv takes a version's files from the first index that has it, and an extra one may have those for one machine.
        locked = _locked(lock, platform, text, main_alone)
    except (BadInput, CannotTell):
        if not resolver.settings.extra_index_urls:
            raise
        locked = _locked(lock, platform, text, resolver)
    put_text(locked, out / PROJECT_FILES[1])
    return put_text(text, project)


def _locked(lock: Lock, platform: Platform, text: str, resolver: Resolver) -> str:
    """The `uv.lock` of a project file's text. Raises: BadInput, CannotTell."""
    with tempfile.TemporaryDirectory(prefix="npuenv-uv-") as name:
        folder = Path(name)
        python = f'requires-python = "=={platform.python}.*"'
        # uv wants a Python that the project takes, though it starts none; `environments` says which one is meant.
        (folder / PROJECT_FILES[0]).write_text(text.replace(python, _ANY_PYTHON, 1), encoding="utf-8")
        (folder / "uv.toml").write_text(_metadata(lock), encoding="utf-8")  # no other settings are read here
        (folder / "links").mkdir()
        argv = ("lock", "--project", name, "--python", sys.executable, "--config-file", str(folder / "uv.toml"))
        ran = resolver.run(argv, env=environ(resolver, folder))
        if ran.code != 0:
            require_reached(ran)
            said = {"stack": lock.stack, "why": deciding_line(ran.err)}
            raise CannotTell(Message("locking.uv-stopped", said), Message("locking.run-again"))
        locked = (folder / PROJECT_FILES[1]).read_text(encoding="utf-8").replace(_ANY_PYTHON, python, 1)
    return _only_files_of(lock, _with_hashes(locked))


def _is_own(project: Path) -> bool:
    return project.is_file() and project.read_text(encoding="utf-8", errors="replace").startswith(_MARK)


def _project(lock: Lock, platform: Platform, resolver: Resolver) -> str:
    labelled = [(package.name, package.version) for package in lock.packages if package.index]
    in_links = wheels_in_links(resolver.host, resolver.settings, labelled, platform)
    on_index = {p.name: p.index for p in lock.packages if p.index and p.name not in in_links}
    lines = [
        f"{_MARK} {lock.stack} --format uv`; install with `uv sync --frozen --extra {EXTRA}`",
        *(f"# built from source, not in here: {each.name} @ git+{each.repo}@{each.ref}" for each in lock.sources),
        "[project]",
        f"name = {json.dumps(canonicalize_name(lock.stack))}",
        'version = "0"',
        f'requires-python = "=={platform.python}.*"',
        "dependencies = []",
        "",
        "[project.optional-dependencies]",
        f"{EXTRA} = [",
        *(f"    {json.dumps(f'{package.name}=={package.version}')}," for package in lock.packages),
        "]",
        "",
        "[tool.uv]",
        "package = false",
        f"environments = [{json.dumps(marker(platform.arch, platform.python))}]",
        "",
        "[tool.uv.sources]",
        *index_tables(on_index, resolver),
    ]
    return "\n".join(lines) + "\n"


def _metadata(lock: Lock, table: str = "") -> str:
    """That no package requires anything."""
    return "".join(
        f'\n[[{table}dependency-metadata]]\nname = "{each.name}"\nversion = "{each.version}"\nrequires-dist = []\n'
        for each in lock.packages
    )


def _with_hashes(text: str) -> str:
    """uv's lock with the hashes that it leaves out: those of files in a local find-links folder."""

    def hashed(match: re.Match[str]) -> str:
        return f'{{ path = "{match[1]}", hash = "sha256:{sha256_of(Path(match[1]))}" }}'

    return re.sub(r'\{ path = "([^"]+)" \}', hashed, text)


def _only_files_of(lock: Lock, text: str) -> str:
    """uv's lock without files that are not in the lock. Raises BadInput for a package that then has none."""
    known = {digest for package in lock.packages for digest in package.sha256}
    lines = [line for line in text.splitlines() if not (found := _HASH.search(line)) or found[1] in known]
    text = "\n".join(lines) + "\n"
    present = {row["name"] for row in loads(text)["package"] if row.get("wheels") or row.get("sdist")}
    if other := [f"{each.name} {each.version}" for each in lock.packages if each.name not in present]:
        raise BadInput(Message("lock.other-files", {"what": tuple(other)}), Message("lock.verify-it"))
    return text
