"""The files of a bundle that come from indexes: the lock's packages, build requirements, npuenv's own tools."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from npuenv.bundle.fetch import Download, fetch_all
from npuenv.bundle.listing import best, list_files
from npuenv.core.errors import NothingFits
from npuenv.core.messages import Message
from npuenv.core.toml_input import TomlError, loads
from npuenv.index.archive import sdist_texts
from npuenv.index.metadata import Unreadable
from npuenv.lock.wheels import wheels_in_links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.bundle.listing import ReleaseFile
    from npuenv.bundle.self_package import ToolPackage
    from npuenv.bundle.sources import SourceOrigin
    from npuenv.lock.file import Lock, LockedPackage
    from npuenv.lock.uv import Resolver
    from npuenv.resolve.types import Platform


@dataclass(frozen=True, slots=True)
class Item:
    """One file from an index, and its purpose."""

    kind: str  # as in manifest.FileRow
    name: str
    version: str
    download: Download


def lock_items(lock: Lock, platform: Platform, resolver: Resolver) -> tuple[Item, ...]:
    """One file for each package of a lock: the wheel that fits its platform best, else the source.

    The lock knows the hash of each. Raises: CannotTell if an index is unreachable, NothingFits for a package without
    such a file on any index.
    """
    labelled = [(package.name, package.version) for package in lock.packages if package.index]
    in_links = wheels_in_links(resolver.host, resolver.settings, labelled, platform)
    groups: dict[tuple[str | None, bool], list[LockedPackage]] = {}
    for package in lock.packages:
        groups.setdefault((package.index, package.index is not None and package.name in in_links), []).append(package)
    items: list[Item] = []
    for (label, is_in_links), packages in groups.items():
        pins = [f"{package.name}=={package.version}" for package in packages]
        listed = list_files(pins, platform, resolver, label=label, is_in_links=is_in_links)
        offers = {row.name: row.offers for row in listed}
        for package in packages:
            chosen = best(offers.get(package.name, ()), platform, package.sha256)
            if chosen is None:
                args = {"name": package.name, "version": package.version, "hashes": package.sha256}
                raise NothingFits(Message("bundle.no-such-hash", args), Message("bundle.not-offered-hint"))
            download = Download(f"wheels/{chosen.file}", chosen.url, package.sha256, chosen.size)
            items.append(Item("wheel" if chosen.is_wheel else "sdist", package.name, package.version, download))
    return tuple(items)


def tool_items(tools: Sequence[ToolPackage]) -> tuple[Item, ...]:
    """The files for npuenv's own environment."""
    return tuple(_item("tool", tool.name, tool.version, f"tools/{tool.offer.file}", tool.offer) for tool in tools)


def source_item(found: SourceOrigin) -> tuple[Item, ...]:
    """The sdist that replaces a repository; empty for a source from elsewhere."""
    version = found.source.ref.removeprefix("v")
    return (_item("source", found.row.name, version, found.path, found.offer),) if found.offer else ()


def _item(kind: str, name: str, version: str, path: str, offer: ReleaseFile) -> Item:
    hashes = (offer.sha256,) if offer.sha256 else ()
    return Item(kind, name, version, Download(path, offer.url, hashes, offer.size))


# Build requirements of an sdist without a build table. Source: PEP 518. wheel: setuptools below 70.1 requires it.
_DEFAULT = ("setuptools>=40.8.0", "wheel")


def find_backends(items: Sequence[Item], lock: Lock, platform: Platform, resolver: Resolver) -> list[Item]:
    """The wheels for building the sdists among `items`, to be placed beside the lock's files.

    Where possible they are as old as the lock and have its versions, so that the same lock gives the same wheels.
    Raises: CannotTell and NothingFits as `list_files` does, StepFailed for an sdist that cannot be fetched.
    """
    requirements = _build_requirements([item.download for item in items if item.kind == "sdist"], resolver)
    if not requirements:
        return []
    locked = {package.name: package.version for package in lock.packages}
    names = [canonicalize_name(Requirement(line).name) for line in requirements]
    pins = sorted({f"{name}=={locked[name]}" for name in names if name in locked})
    age = ("--exclude-newer", f"{lock.newest}T23:59:59Z") if lock.newest else ()
    tries = (([*requirements, *pins], age), (requirements, age), (requirements, ()))
    for number, (lines, bound) in enumerate(tries, 1):
        try:
            listed = list_files(lines, platform, resolver, options=("--only-binary", ":all:", *bound))
            break
        except NothingFits:  # builds are isolated, so the lock's versions are only preferred
            if number == len(tries):
                raise
    known = {item.download.path for item in items}
    found = [(row, offer) for row in listed if (offer := best(row.offers, platform)) is not None]
    made = [_item("build", row.name, row.version, f"wheels/{offer.file}", offer) for row, offer in found]
    return [item for item in made if item.download.path not in known]


def _build_requirements(sdists: Sequence[Download], resolver: Resolver) -> list[str]:
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
