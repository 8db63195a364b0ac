"""Finds the build requirements of sdists, which have no index on the target."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from npuenv.bundle.offline.contents import Item, hashes_of
from npuenv.bundle.offline.fetch import Download, fetch_all
from npuenv.bundle.offline.listing import best, list_files
from npuenv.core.errors import NothingFits
from npuenv.core.toml_input import TomlError, loads
from npuenv.index.archive import sdist_texts
from npuenv.index.metadata import Unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.lock.file import Lock
    from npuenv.lock.uv import Resolver
    from npuenv.resolve.types import Platform

# The default of an sdist without a build table. Source: PEP 518. wheel: setuptools below 70.1 requires it.
_DEFAULT = ("setuptools>=40.8.0", "wheel")


def find_backends(items: Sequence[Item], lock: Lock, platform: Platform, resolver: Resolver) -> list[Item]:
    """The wheels for building the sdists among `items`, to be placed beside the lock's files.

    Where possible they are as old as the lock and have its versions, so that the same lock gives the same wheels.
    Raises: CannotTell and NothingFits as `list_files` does, StepFailed for an sdist that cannot be fetched.
    """
    wanted = _wanted([item.wanted for item in items if item.kind == "sdist"], resolver)
    if not wanted:
        return []
    locked = {package.name: package.version for package in lock.packages}
    names = [canonicalize_name(Requirement(line).name) for line in wanted]
    pins = sorted({f"{name}=={locked[name]}" for name in names if name in locked})
    age = ("--exclude-newer", f"{lock.newest}T23:59:59Z") if lock.newest else ()
    tries = (([*wanted, *pins], age), (wanted, age), (wanted, ()))
    for number, (lines, bound) in enumerate(tries, 1):
        try:
            listed = list_files(lines, platform, resolver, options=("--only-binary", ":all:", *bound))
            break
        except NothingFits:  # builds are isolated, so the lock's versions are only preferred
            if number == len(tries):
                raise
    known = {item.wanted.path for item in items}
    found = [(row, offer) for row in listed if (offer := best(row.offers, platform)) is not None]
    made = [
        Item("build", row.name, row.version, Download(f"wheels/{offer.file}", offer.url, hashes_of(offer), offer.size))
        for row, offer in found
    ]
    return [item for item in made if item.wanted.path not in known]


def _wanted(sdists: Sequence[Download], resolver: Resolver) -> list[str]:
    """The build requirements of all sdists together. The sdists are fetched, because only they state them."""
    with tempfile.TemporaryDirectory(prefix="npuenv-sdists-") as name:
        fetch_all(sdists, Path(name), resolver.settings, tell=lambda report: None)
        return sorted({line for item in sdists for line in build_requirements(Path(name) / item.path)})


def build_requirements(path: Path) -> tuple[str, ...]:
    """The requirements in an sdist's build table; the default if it has no readable one."""
    try:
        with path.open("rb") as stream:
            text = sdist_texts(stream, ["pyproject.toml"]).get("pyproject.toml", "")
        lines = tuple(loads(text).get("build-system", {}).get("requires", ())) or _DEFAULT
        return tuple(line for line in lines if Requirement(line))
    except (Unreadable, TomlError, InvalidRequirement, AttributeError, TypeError):
        return _DEFAULT
