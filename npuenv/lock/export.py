"""Exports a lock in formats of other installers: requirements.txt and pylock.toml (PEP 751).

Both hold hashed packages only. Components that a stack builds from repositories are named, but no installer of these
formats builds them with the stack's options. Neither holds a clock or a host name.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.host.writing import sha256_of
from npuenv.lock.file import platform_parts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from npuenv.lock.file import Lock, LockedPackage
    from npuenv.resolve.types import Request

PYLOCK = "pylock.toml"  # the file name that installers look for
_SDIST_ENDS = (".tar.gz", ".zip")


def requirement_lines(package: LockedPackage) -> list[str]:
    """One exact requirement with all hashes, as continued lines of a requirements file."""
    pin = f"{package.name}=={package.version}"
    hashes = [f"    --hash=sha256:{digest}" for digest in package.sha256]
    return [f"{line} \\" for line in (pin, *hashes)[:-1]] + [(pin, *hashes)[-1]]


def requirements_txt(lock: Lock, indexes: Mapping[str, str] | None = None) -> str:
    """The lock as a requirements file for `pip install --require-hashes -r`.

    `indexes`: address by label. The indexes of the lock's packages become extra indexes (the hashes keep pip from using
    a file of the same version from elsewhere); a label without address is left to the user's settings.
    Raises: BadInput for a partial lock, because pip checks all hashes or none.
    """
    require_hashes(lock)
    addresses = indexes or {}
    labels = sorted({package.index for package in lock.packages if package.index})
    lines = [f"# {lock.stack}, {lock.platform}", *(f"# {line}" for line in _built(lock))]
    lines += [f"--extra-index-url {addresses[label]}" for label in labels if addresses.get(label)]
    for package in lock.packages:
        lines += [f"# index: {package.index}"] if package.index else []
        lines += requirement_lines(package)
    return "\n".join(lines) + "\n"


def pylock_toml(lock: Lock, files: Mapping[str, str]) -> str:
    """The lock as `pylock.toml` over local files. `files`: sha256 -> path relative to the folder of the pylock, with
    slashes.

    A file of the lock that is not in `files` is left out if its package has another one.
    Raises: BadInput with every package that has none.
    Source: PEP 751, which accepts `path` as a location.
    """
    require_hashes(lock)
    lacking = [f"{p.name} {p.version}" for p in lock.packages if not any(digest in files for digest in p.sha256)]
    if lacking:
        raise BadInput(
            Message("lock.bundle-lacks", {"what": tuple(lacking)}), Message("lock.bundle-hint", {"stack": lock.stack})
        )
    arch, python, _ = platform_parts(lock.platform)
    major, _, minor = python.partition(".")
    lines = [
        'lock-version = "1.0"',
        f"environments = [{_quoted(marker(arch, python))}]",
        f'requires-python = ">={python},<{major}.{int(minor) + 1}"',
        'created-by = "npuenv"',
    ]
    for package in lock.packages:
        lines += ["", *_pylock_package(package, files)]
    lines += ["", "[tool.npuenv]", f"stack = {_quoted(lock.stack)}", f"platform = {_quoted(lock.platform)}"]
    lines += [f"built = [{', '.join(_quoted(line) for line in _built(lock))}]"]
    return "\n".join(lines) + "\n"


def files_by_hash(folder: Path, seen_from: Path | None = None) -> dict[str, str]:
    """sha256 -> path of every wheel and source archive below a folder, relative to `seen_from` (default: the folder).

    Of two equal files the first by path counts. Raises: BadInput if the folder cannot be read.
    """
    found: dict[str, str] = {}
    try:
        next(folder.iterdir(), None)  # rglob is silent about a folder that does not exist
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.name.endswith((".whl", *_SDIST_ENDS)) and path.is_file():
                found[sha256_of(path)] = os.path.relpath(path, seen_from or folder).replace(os.sep, "/")
    except OSError as error:
        args = {"path": str(folder), "why": error.strerror or str(error)}
        raise BadInput(Message("lock.bundle-unreadable", args)) from error
    return found


def require_hashes(lock: Lock) -> None:
    """Raises BadInput for a partial lock."""
    bare = [f"{package.name} {package.version}" for package in lock.packages if not package.sha256]
    bare += [missing.name for missing in lock.missing if lock.package(missing.name) is None]
    if bare:
        raise BadInput(
            Message("lock.export-partial", {"stack": lock.stack, "what": tuple(bare)}),
            Message("lock.fill-it", {"command": fill_command(lock)}),
        )


def fill_command(lock: Lock, request: Request | None = None) -> str:
    """The command that completes a lock.

    It names architecture and Python even if they are this machine's, because the index may be reachable from another
    machine only.
    """
    from npuenv.resolve.types import Request, command_for  # loads the resolver, which no export needs

    arch, python, _ = platform_parts(lock.platform)
    argv = command_for(replace(request or Request(), stack=lock.stack, arch=arch, python=python))
    return shlex.join(("npuenv", "lock", lock.stack, "--fill", *argv[3:]))


def _built(lock: Lock) -> list[str]:
    return [f"{source.name} @ git+{source.repo}@{source.ref}" for source in lock.sources]


def marker(arch: str, python: str) -> str:
    """The environment marker of a platform."""
    return (
        f"implementation_name == 'cpython' and platform_machine == '{arch}' and python_version == '{python}'"
        " and sys_platform == 'linux'"
    )


def _pylock_package(package: LockedPackage, files: Mapping[str, str]) -> list[str]:
    """A package's table. Wheels come before the source archive; a reader that can use a wheel never builds."""
    present = sorted((files[digest], digest) for digest in package.sha256 if digest in files)
    wheels = [_file(path, digest) for path, digest in present if path.endswith(".whl")]
    archives = [_file(path, digest) for path, digest in present if not path.endswith(".whl")]
    lines = ["[[packages]]", f"name = {_quoted(package.name)}", f"version = {_quoted(package.version)}"]
    if archives and not wheels:
        return [*lines, f"sdist = {archives[0]}"]
    return [*lines, "wheels = [", *(f"    {wheel}," for wheel in wheels), "]"]


def _file(path: str, digest: str) -> str:
    name = path.rpartition("/")[2]
    return f"{{ name = {_quoted(name)}, path = {_quoted(path)}, hashes = {{ sha256 = {_quoted(digest)} }} }}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
