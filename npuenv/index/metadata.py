"""Reads what a package requires: from core metadata, or from the requirement files that its `setup.py` reads.

Requirements are normalised as by `packaging` (no blanks, specifiers in order, markers kept), in the order of their
source. Reads no index.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# The branch of vllm's get_requirements for a build with VLLM_TARGET_DEVICE=empty.
_EMPTY_BRANCH = re.compile(r"if _no_device\(\):\s+requirements = _read_requirements\(\s*[\"']([^\"']+)[\"']")
_COMMENT = re.compile(r"(^|\s)#.*$")
_MAX_NESTING = 8


class Unreadable(ValueError):
    """Invalid content. `str` of it gives location and reason."""


@dataclass(frozen=True, slots=True)
class Requires:
    """The requirements of a package, and the file that states them."""

    requires: tuple[str, ...]
    file: str  # "METADATA", "PKG-INFO", "requirements.txt", ...
    python: str = ""  # Requires-Python; "": not stated


def metadata_requires(text: str, file: str) -> Requires | None:
    """Requires-Dist and Requires-Python of core metadata; None if it leaves the requirements to the build.

    A wheel's METADATA without Requires-Dist requires nothing. A PKG-INFO without it is inconclusive, unless its version
    is 2.2 or newer and it does not declare the field dynamic. Raises: Unreadable.
    """
    raw, _ = parse_email(text)
    if "name" not in raw or "version" not in raw:
        raise Unreadable(f"{file}: Name, Version")
    requires = tuple(_normal(line, file) for line in raw.get("requires_dist", ()))
    dynamic = {field.lower() for field in raw.get("dynamic", ())}
    is_settled = raw.get("metadata_version", "") >= "2.2" and "requires-dist" not in dynamic
    if file == "PKG-INFO" and not requires and not is_settled:
        return None
    return Requires(requires, file, raw.get("requires_python", ""))


def sdist_requires(texts: Mapping[str, str]) -> Requires:
    """The requirements of an sdist: from its PKG-INFO, else from the requirements.txt beside it, which its setup.py
    reads.

    `texts`: path inside the sdist -> content. Raises: Unreadable.
    """
    if "PKG-INFO" not in texts:
        raise Unreadable("PKG-INFO")
    stated = metadata_requires(texts["PKG-INFO"], "PKG-INFO")
    if stated is not None and (stated.requires or "requirements.txt" not in texts):
        return stated
    python = parse_email(texts["PKG-INFO"])[0].get("requires_python", "")
    return Requires(requirement_lines(texts, "requirements.txt"), "requirements.txt", python)


def empty_build_requires(texts: Mapping[str, str]) -> Requires:
    """The requirements of vllm built with the empty target: those of the file that its setup.py reads then.

    Source: vllm setup.py, get_requirements: `if _no_device(): requirements = _read_requirements("common.txt")`; the
    files are in `requirements/` since 0.8, beside setup.py before. Raises: Unreadable.
    """
    found = _EMPTY_BRANCH.search(texts.get("setup.py", ""))
    if found is None:
        raise Unreadable("setup.py: _no_device()")
    name = found[1] if found[1] in texts else posixpath.join("requirements", found[1])
    python = parse_email(texts.get("PKG-INFO", ""))[0].get("requires_python", "")
    return Requires(requirement_lines(texts, name), name, python)


def requirement_lines(texts: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The requirements of a requirements file and of those it includes, without options and comments.

    Raises: Unreadable for a missing file, a line that is not a requirement, or files that include each other.
    """
    return tuple(_lines(texts, name, 0))


def first_block(requires: Sequence[str], stops: frozenset[str]) -> tuple[str, ...]:
    """The requirements before the first one whose name is in `stops`."""
    block: list[str] = []
    for line in requires:
        if distribution(line) in stops:
            break
        block.append(line)
    return tuple(block)


def distribution(requirement: str) -> str:
    """The normalised distribution name of a requirement."""
    return canonicalize_name(Requirement(requirement).name)


def specifier_of(requires: Sequence[str], name: str) -> str:
    """The specifier for a package outside of extras, like `==2.8.0`; "" if it is not required or unbounded."""
    for line in requires:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) == name and "extra ==" not in str(requirement.marker or ""):
            return str(requirement.specifier)
    return ""


def _lines(texts: Mapping[str, str], name: str, depth: int) -> Iterator[str]:
    if name not in texts or depth > _MAX_NESTING:
        raise Unreadable(name)
    for raw in texts[name].splitlines():
        line = _COMMENT.sub("", raw).strip()
        included = re.match(r"(?:-r|--requirement)[ =]\s*(\S+)", line)
        if included:
            yield from _lines(
                texts, posixpath.normpath(posixpath.join(posixpath.dirname(name), included[1])), depth + 1
            )
        elif line and not line.startswith("-"):
            yield _normal(line, name)


def _normal(line: str, file: str) -> str:
    try:
        return str(Requirement(line))
    except InvalidRequirement:
        raise Unreadable(f"{file}: {line[:200]}") from None
