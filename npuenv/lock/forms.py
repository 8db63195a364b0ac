"""A lock as a uv project and as a CycloneDX bill of materials. The lighter forms are in `npuenv.lock.export`.

The uv project is a `pyproject.toml` whose extra `npu` is the locked set, and its `uv.lock`:
`uv sync --frozen --extra npu` installs the set. uv takes every package without its requirements, because the lock has
resolved them, and some stacks leave a requirement of a package out on purpose.
Source: uv 0.13, "Projects" and "Settings" (`dependency-metadata`, `environments`, `index`, `package`).

Neither holds a clock: the same lock gives the same document.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import uuid
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

from npuenv import __version__
from npuenv.core.documents import parse_toml
from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.messages import Message
from npuenv.host.writing import sha256_of
from npuenv.lock.export import marker, require_hashes
from npuenv.lock.store import put_text
from npuenv.lock.uv import deciding_line, environ, index_tables, require_reached, wheels_in_links

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.lock.file import Lock, LockedPackage, LockedSource
    from npuenv.lock.uv import Resolver
    from npuenv.resolve.types import Platform


UV_EXTRA = "npu"
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
    text = _project(lock, platform, resolver) + _no_requirements(lock, "tool.uv.")
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
        (folder / "uv.toml").write_text(_no_requirements(lock), encoding="utf-8")  # no other settings are read here
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
    in_links = wheels_in_links(resolver, (package for package in lock.packages if package.index), platform)
    on_index = {p.name: p.index for p in lock.packages if p.index and p.name not in in_links}
    lines = [
        f"{_MARK} {lock.stack} --format uv`; install with `uv sync --frozen --extra {UV_EXTRA}`",
        *(f"# built from source, not in here: {each.name} @ git+{each.repo}@{each.ref}" for each in lock.sources),
        "[project]",
        f"name = {json.dumps(canonicalize_name(lock.stack))}",
        'version = "0"',
        f'requires-python = "=={platform.python}.*"',
        "dependencies = []",
        "",
        "[project.optional-dependencies]",
        f"{UV_EXTRA} = [",
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


def _no_requirements(lock: Lock, table: str = "") -> str:
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
    present = {row["name"] for row in parse_toml(text)["package"] if row.get("wheels") or row.get("sdist")}
    if other := [f"{each.name} {each.version}" for each in lock.packages if each.name not in present]:
        raise BadInput(Message("lock.other-files", {"what": tuple(other)}), Message("lock.verify-it"))
    return text


_CYCLONEDX = "1.6"
_NAMESPACE = uuid.UUID("8b8f1f5e-6a52-5d0c-9d3c-0d4c6a1f2b7e")  # of serial numbers; chosen once
_LONGEST_LICENCE = 120  # letters; older wheels give the whole text in this header
_OSI = "License :: OSI Approved :: "


def cyclonedx(lock: Lock, licences: Mapping[str, list[dict[str, Any]]]) -> str:
    """The packages and sources of a lock with their hashes and dependencies, as CycloneDX JSON.

    `licences`: normalised name -> its `licenses`, as `installed_licences` gives them; a lock itself knows none.
    """
    top = {"type": "platform", "bom-ref": lock.stack, "name": lock.stack, "version": lock.platform}
    refs = {package.name: _purl(package) for package in lock.packages}
    dependencies: dict[str, set[str]] = {ref: set() for ref in (lock.stack, *refs.values())}
    for package in lock.packages:
        for dependent in package.why:
            dependencies[refs.get(dependent, lock.stack)].add(refs[package.name])
    components = [_of_package(package, licences.get(package.name, [])) for package in lock.packages]
    components += [_of_source(source, licences.get(canonicalize_name(source.name), [])) for source in lock.sources]
    dependencies[lock.stack] |= {_source_purl(source) for source in lock.sources}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": _CYCLONEDX,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, lock.hash)}",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "npuenv", "version": __version__}]},
            "component": top,
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(dependencies.items())],
        "compositions": [{"aggregate": "incomplete" if lock.missing else "complete", "assemblies": [lock.stack]}],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def installed_licences(packages: Path) -> dict[str, list[dict[str, Any]]]:
    """Normalised name -> the `licenses` of a CycloneDX component, from the METADATA of what is installed in a folder.

    An SPDX expression where the distribution gives one, else the names that its classifiers or its `License` give.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for each in metadata.distributions(path=[str(packages)]):
        if (name := _header(each.metadata, "Name")) and (licences := _licences(each.metadata)):
            found[canonicalize_name(name)] = licences
    return found


def _licences(headers: metadata.PackageMetadata) -> list[dict[str, Any]]:
    written = _header(headers, "License-Expression") or _header(headers, "License")
    try:
        return [{"expression": str(canonicalize_license_expression(written))}] if written else _classified(headers)
    except InvalidLicenseExpression:
        pass  # a name in words, or the whole text of a licence
    if not (named := _classified(headers)) and len(written) <= _LONGEST_LICENCE and "\n" not in written:
        named = [{"license": {"name": written}}]
    return named


def _header(headers: metadata.PackageMetadata, name: str) -> str:
    return str((headers.get_all(name) or [""])[0]).strip()


def _classified(headers: metadata.PackageMetadata) -> list[dict[str, Any]]:
    names = [each.removeprefix(_OSI) for each in headers.get_all("Classifier") or () if each.startswith(_OSI)]
    return [{"license": {"name": name}} for name in dict.fromkeys(names)]


def _of_package(package: LockedPackage, licences: list[dict[str, Any]]) -> dict[str, Any]:
    purl = _purl(package)
    row: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": package.name, "version": package.version}
    row["purl"] = purl
    if package.sha256:
        row["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in package.sha256]
    if licences:
        row["licenses"] = licences
    if package.index:
        row["properties"] = [{"name": "npuenv:index", "value": package.index}]
    return row


def _of_source(source: LockedSource, licences: list[dict[str, Any]]) -> dict[str, Any]:
    purl = _source_purl(source)
    row: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": source.name, "version": source.ref, "purl": purl}
    if licences:
        row["licenses"] = licences
    return {**row, "externalReferences": [{"type": "vcs", "url": source.repo}]}


def _purl(package: LockedPackage) -> str:
    """Source: the purl specification, type pypi."""
    return f"pkg:pypi/{package.name}@{quote(package.version, safe='')}"


def _source_purl(source: LockedSource) -> str:
    url = quote(f"git+{source.repo}", safe=":/")
    return f"pkg:generic/{quote(source.name)}@{quote(source.ref, safe='')}?vcs_url={url}"
