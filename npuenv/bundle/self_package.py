"""npuenv itself for the target: its wheel, made from the running files, and its requirements.

`own_wheel` returns the wheel's name and bytes, the same for the same files; `find_tools` the distributions beside it,
for every Python that the target may have; `requirements_text` the hashed requirements file that pip installs them from.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
import io
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import npuenv
from npuenv.bundle.fetch import THREADS, ReleaseFile, best_file, list_files
from npuenv.bundle.zipapp import add_member
from npuenv.core.documents import load_toml
from npuenv.core.errors import NothingFits, StepFailed
from npuenv.core.messages import Message
from npuenv.lock.store import shipped_folder
from npuenv.render.files import fill

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npuenv.lock.uv import Resolver
    from npuenv.resolve.types import Platform

MINORS = range(10, 15)  # Pythons 3.X that npuenv runs on
PACKAGES = ("npuenv", "trainer")
BOOTSTRAP = "pip"  # the target's Python may have no pip; a wheel of pip can be run without installation
_LEFT_OUT = ("__pycache__", ".pyc", ".pyo")
_ENTRY_POINTS = "[console_scripts]\nnpuenv = npuenv.cli:main\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: npuenv\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True, slots=True)
class ToolPackage:
    """One distribution for npuenv's own environment on the target."""

    name: str
    version: str
    offer: ReleaseFile
    minors: tuple[int, ...]  # Pythons that use this file


def own_requirements() -> tuple[str, ...]:
    """The run-time requirements of npuenv, without extras."""
    project = _project_file()
    lines = (
        load_toml(project, is_ours=True)["project"]["dependencies"]
        if project
        else importlib.metadata.requires("npuenv") or ()
    )
    return tuple(line for line in lines if "extra ==" not in line)


@functools.cache
def own_wheel() -> tuple[str, bytes]:
    """The wheel of the running npuenv: its file name and content. Raises: StepFailed if files are missing."""
    stem, buffer = f"npuenv-{npuenv.__version__}", io.BytesIO()
    rows = []
    with zipfile.ZipFile(buffer, "w", compression=zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(_members(stem)):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}")
            add_member(archive, name, data)
        record = f"{stem}.dist-info/RECORD"
        add_member(archive, record, ("\n".join([*rows, f"{record},,"]) + "\n").encode())
    return f"{stem}-py3-none-any.whl", buffer.getvalue()


def find_tools(platform: Platform, resolver: Resolver) -> tuple[ToolPackage, ...]:
    """npuenv's requirements and pip, for each Python from MINORS that has all of them as wheels on the platform.

    The versions of this environment are preferred: they are known to work together. Raises: CannotTell if the index is
    unreachable, NothingFits if no Python has all wheels.
    """
    here = _versions_here()

    def ask(minor: int) -> list[ToolPackage] | NothingFits:
        try:
            return _tools_for(replace(platform, python=f"3.{minor}"), resolver, here)
        except NothingFits as error:
            return error

    with ThreadPoolExecutor(THREADS) as pool:
        answers = dict(zip(MINORS, pool.map(ask, MINORS), strict=True))
    refusals = [answer for answer in answers.values() if isinstance(answer, NothingFits)]
    if len(refusals) == len(answers):
        raise refusals[-1]
    merged: dict[str, ToolPackage] = {}
    for minor, tools in answers.items():
        for tool in () if isinstance(tools, NothingFits) else tools:
            before = merged.get(tool.offer.file)
            merged[tool.offer.file] = replace(tool, minors=(*(before.minors if before else ()), minor))
    return tuple(merged[file] for file in sorted(merged))


def pythons_of(tools: Sequence[ToolPackage]) -> tuple[str, ...]:
    """The Pythons that the bundled npuenv runs on, like "3.11"."""
    return tuple(f"3.{minor}" for minor in sorted({minor for tool in tools for minor in tool.minors}))


def requirements_text(wheel: tuple[str, str], tools: Sequence[ToolPackage], digests: Mapping[str, str]) -> str:
    """The requirements file for `pip install --require-hashes`. `wheel`: version and sha256 of npuenv's own; `digests`:
    by file.
    """
    minors = {minor for tool in tools for minor in tool.minors}
    versions: dict[tuple[str, str], list[ToolPackage]] = {}
    for tool in tools:
        versions.setdefault((tool.name, tool.version), []).append(tool)
    lines = [f"npuenv=={wheel[0]} --hash=sha256:{wheel[1]}"]
    for (name, version), group in sorted(versions.items()):
        hashes = " ".join(sorted({f"--hash=sha256:{digests[tool.offer.file]}" for tool in group}))
        taking = {minor for tool in group for minor in tool.minors}
        wanted = " or ".join(f"python_version == '3.{minor}'" for minor in sorted(taking))
        lines.append(f"{name}=={version}{'' if taking == minors else f' ; {wanted}'} {hashes}")
    return "\n".join(lines) + "\n"


def _tools_for(platform: Platform, resolver: Resolver, here: Sequence[str]) -> list[ToolPackage]:
    wanted = [*own_requirements(), BOOTSTRAP]
    try:
        listed = list_files([*wanted, *here], platform, resolver, options=("--only-binary", ":all:"))
    except NothingFits:
        listed = list_files(wanted, platform, resolver, options=("--only-binary", ":all:"))
    tools = []
    for row in listed:
        offer = best_file(row.offers, platform)
        if offer is None or not offer.is_wheel:
            args = {"name": row.name, "version": row.version, "platform": platform.tag}
            raise NothingFits(Message("bundle.no-wheel", args), Message("bundle.not-offered-hint"))
        tools.append(ToolPackage(row.name, row.version, offer, ()))
    return tools


def _versions_here() -> tuple[str, ...]:
    """NAME==VERSION of everything that npuenv uses in this process's environment, without pip.

    An old pip does not run on the newest Python, and the target's Python is unknown.
    """
    found: dict[str, str] = {}
    waiting = [Requirement(line) for line in own_requirements()]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (
            name == BOOTSTRAP
            or name in found
            or (requirement.marker and not requirement.marker.evaluate({"extra": ""}))
        ):
            continue
        try:
            found[name] = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            continue
        waiting += [Requirement(line) for line in importlib.metadata.requires(requirement.name) or ()]
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()))


def _members(stem: str) -> Iterator[tuple[str, bytes]]:
    root = Path(npuenv.__file__).parent.parent
    try:
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*")):
                name = path.relative_to(root).as_posix()
                if path.is_file() and not any(part in name for part in _LEFT_OUT):
                    yield name, path.read_bytes()
        for path in sorted(shipped_folder().glob("*.toml")):
            yield f"{stem}.data/data/share/npuenv/lockfiles/{path.name}", path.read_bytes()
    except OSError as error:
        args = {"path": str(error.filename or root), "why": error.strerror or str(error)}
        raise StepFailed(Message("bundle.own-files", args)) from error
    info = f"{stem}.dist-info"
    yield f"{info}/METADATA", _metadata().encode()
    yield f"{info}/WHEEL", _WHEEL.encode()
    yield f"{info}/entry_points.txt", _ENTRY_POINTS.encode()
    license_file = root / "LICENSE"
    if license_file.is_file():
        yield f"{info}/licenses/LICENSE", license_file.read_bytes()


def _metadata() -> str:
    lines = ["Metadata-Version: 2.1", "Name: npuenv", f"Version: {npuenv.__version__}", "Requires-Python: >=3.10"]
    return "\n".join([*lines, *(f"Requires-Dist: {line}" for line in own_requirements())]) + "\n"


def _project_file() -> Path | None:
    """The project file beside the package in a checkout; None for an installed npuenv."""
    path = Path(npuenv.__file__).parent.parent / "pyproject.toml"
    is_ours = path.is_file() and load_toml(path).get("project", {}).get("name") == "npuenv"
    return path if is_ours else None


def install_script(tools: Sequence[ToolPackage], *, python: str, archive: str) -> str:
    """`install.sh`. `python`: the stack's, like "3.11"; `archive`: the path of one in the bundle, or ""."""
    pythons = pythons_of(tools)
    return fill(
        "install.sh.j2",
        version=npuenv.__version__,
        pip=next(tool.offer.file for tool in tools if tool.name == BOOTSTRAP),
        pythons=", ".join(f"({version.replace('.', ', ')})" for version in pythons),
        pythons_said=", ".join(pythons),
        names=" ".join(f"python{version}" for version in reversed(pythons)),
        python=python,
        archive=archive,
    )
