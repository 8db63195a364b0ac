"""Wheel files: which fit a platform, which are in a folder, and empty stand-ins for unreachable ones."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from typing import TYPE_CHECKING

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.facts.pip import local_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from npuenv.facts.pip import PipSettings
    from npuenv.host.base import Host
    from npuenv.resolve.types import Platform

# The C libraries of uv's platforms (uv 0.13.8, `--python-platform`).
_UV_GLIBC = (17, 28, *range(31, 41))
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # by the Y of glibc 2.Y


def glibc_minor(platform: Platform) -> int:
    """The Y of the platform's glibc 2.Y. Raises: BadInput for an invalid version, or one older than any wheel's."""
    major, _, minor = platform.glibc.partition(".")
    if major != "2" or not minor.isdecimal() or int(minor) < _UV_GLIBC[0]:
        raise BadInput(Message("locking.no-glibc", {"glibc": platform.glibc, "least": f"2.{_UV_GLIBC[0]}"}))
    return int(minor)


def uv_platform(platform: Platform) -> str:
    """uv's name of a platform: with the newest C library that uv knows and that is not above the platform's own.

    Example: aarch64, glibc 2.30 -> "aarch64-manylinux_2_28"
    """
    minor = max(known for known in _UV_GLIBC if known <= glibc_minor(platform))
    return f"{platform.arch}-manylinux_2_{minor}"


def platform_tags(platform: Platform) -> dict[Tag, int]:
    """Every wheel tag that a lock's platform accepts, CPython X.Y with at most the platform's glibc, and its rank.

    The order is pip's: 0 is the best.
    """
    major, minor = (int(part) for part in platform.python.split("."))
    names = []
    for glibc in range(glibc_minor(platform), 4, -1):
        names.append(f"manylinux_2_{glibc}_{platform.arch}")
        names += [f"{_OLD_NAMES[glibc]}_{platform.arch}"] if glibc in _OLD_NAMES else []
    names.append(f"linux_{platform.arch}")
    own = cpython_tags((major, minor), [f"cp{major}{minor}"], names)
    tags = dict.fromkeys((*own, *compatible_tags((major, minor), f"cp{major}{minor}", names)))
    return {tag: rank for rank, tag in enumerate(tags)}


def rank_of(file_name: str, tags: Mapping[Tag, int]) -> int | None:
    """The rank of a wheel by its file name, the lower the better; None if it fits no tag, or is no wheel."""
    try:
        return min((tags[tag] for tag in parse_wheel_filename(file_name)[3] if tag in tags), default=None)
    except ValueError:  # InvalidWheelFilename, InvalidVersion, or a number of thousands of digits
        return None


def fits(file_name: str, tags: Mapping[Tag, int]) -> bool:
    """Whether a wheel's file name carries one of the tags; False for other names."""
    return rank_of(file_name, tags) is not None


def wheels_in_links(
    host: Host, settings: PipSettings, names: Iterable[tuple[str, str]], platform: Platform
) -> dict[str, str]:
    """Name -> folder, for each (name, version) that has a fitting wheel in one of the local find-links folders.

    Locations on the network are ignored. The version must be equal with its local part: 2.13.0 is not 2.13.0+cpu.
    """
    wanted = {(canonicalize_name(name), Version(version)) for name, version in names}
    tags, found = platform_tags(platform), {}
    for item in reversed(settings.find_links):  # the first folder wins
        folder = local_folder(item.value)
        for file_name in host.look(folder).names if folder else ():
            if fits(file_name, tags):
                name, version = parse_wheel_filename(file_name)[:2]
                if (name, version) in wanted:
                    found[str(name)] = str(folder)
    return found


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    files: dict[str, str] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """Writes a small valid wheel. Without files it is the stand-in for an unreachable package during a resolution."""
    stem = f"{canonicalize_name(name).replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    content = dict(files or {})
    content[f"{info}/METADATA"] = "\n".join(metadata) + "\n"
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: npuenv\nRoot-Is-Purelib: true\nTag: {tag}\n"
    rows = [f"{path},{_record_hash(text)},{len(text.encode())}" for path, text in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in content.items():
            archive.writestr(zipfile.ZipInfo(inside), text)
    return path


def _record_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
