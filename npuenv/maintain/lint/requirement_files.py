"""Requirement lines: one requirement, one file with its includes."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as PackagingRequirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import parse_sdist_filename, parse_wheel_filename

from npuenv.core import versions
from npuenv.core.finding import Location
from npuenv.core.shellscript import ARCHES
from npuenv.maintain.lint.values import Requirement, RequirementFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        known = re.match(r"([A-Za-z0-9_.]+)-", file)
        return (
            Requirement(versions.normalised(known[1]), None, text, place) if known and file.endswith(".whl") else None
        )
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
        return marker.evaluate(versions.marker_environment(arch, python, 9))
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
