"""Checks whether the versions and hashes of a lock are still available on the indexes.

uv runs once per index for all packages that come from it; only if it fails, it runs again without the package it names.
Only metadata is downloaded.
"""

from __future__ import annotations

import enum
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.facts.pip import local_folder
from npuenv.host.base import PathState
from npuenv.lock.uv import deciding_line, is_out_of_reach, list_exact
from npuenv.resolve.types import Platform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.facts.pip import PipSettings
    from npuenv.host.base import Ran
    from npuenv.lock.file import Lock, LockedPackage
    from npuenv.lock.uv import Resolver


class Availability(enum.Enum):
    """Whether a locked package is still available."""

    AVAILABLE = "there"
    CHANGED = "changed"  # the version is available, a recorded hash is not among its files
    YANKED = "yanked"  # still available by exact version, withdrawn by its authors
    GONE = "gone"
    OUT_OF_REACH = "out-of-reach"  # its index did not answer, or uv gave no answer
    NO_HASH = "no-hash"  # the lock has no hash for it, so there is nothing to compare


LOST = (Availability.CHANGED, Availability.YANKED, Availability.GONE)


@dataclass(frozen=True, slots=True)
class VerifiedPackage:
    """One package of a lock and what its index offers. `detail`: the missing hashes, or uv's message."""

    name: str
    version: str
    offer: Availability
    index: str | None = None
    detail: tuple[str, ...] = ()


def verify_lock(lock: Lock, resolver: Resolver) -> tuple[VerifiedPackage, ...]:
    """Every package of a lock with its offer, in the lock's order."""
    with_hash = [package for package in lock.packages if package.sha256]
    found = {
        p.name: VerifiedPackage(p.name, p.version, Availability.NO_HASH, p.index) for p in lock.packages if not p.sha256
    }
    for label in sorted({package.index or "" for package in with_hash}):
        group = [package for package in with_hash if (package.index or "") == label]
        found |= _verify_group(group, label, lock.platform, resolver)
    return tuple(found[package.name] for package in lock.packages)


def _verify_group(
    group: Sequence[LockedPackage], label: str, platform: str, resolver: Resolver
) -> dict[str, VerifiedPackage]:
    """The packages of one index; the label "" is the default index together with the indexes of pip's settings."""
    left = list(group)
    found: dict[str, VerifiedPackage] = {}
    while left:
        if not _is_reachable(label, resolver):
            return found | _in_links(left, platform, resolver, "")
        ran, offered = _query(left, label, platform, resolver)
        if ran.code == 0:
            rows = {p.name: _compare(p, offered, ran.err) for p in left}
            changed = [] if label else [p for p in left if rows[p.name].offer is Availability.CHANGED]
            elsewhere = _query_locations(changed, platform, resolver)
            return found | rows | {p.name: _compare(p, elsewhere, ran.err) for p in changed}
        error = deciding_line(ran.err)
        # The only remaining package is the one that is missing, even if the message does not name it.
        named = _named(error, left) or (left[0] if len(left) == 1 else None)
        if is_out_of_reach(ran) or "No solution found" not in ran.err or named is None:
            return found | _in_links(left, platform, resolver, error)
        found[named.name] = _row(named, Availability.GONE, error)
        left.remove(named)
    return found


def _is_reachable(label: str, resolver: Resolver) -> bool:
    """False for a label without a known address, or whose local folder does not exist.

    uv treats an index in a missing folder as one without packages.
    """
    if not label:
        return True
    folder = local_folder(resolver.indexes.get(label, ""))
    return label in resolver.indexes and (
        folder is None or resolver.host.look(folder).state not in (PathState.ABSENT, PathState.UNREADABLE)
    )


def _in_links(
    group: Sequence[LockedPackage], platform: str, resolver: Resolver, error: str
) -> dict[str, VerifiedPackage]:
    """Packages whose index does not answer: available if the find-links folders have them, else out of reach."""
    links = replace(resolver.settings, extra_index_urls=(), is_no_index=True)
    found = {}
    for package in group:
        found[package.name] = _row(package, Availability.OUT_OF_REACH, *filter(None, (error,)))
        if links.find_links:
            ran, offered = _query([package], "", platform, replace(resolver, settings=links))
            if _compare(package, offered, ran.err).offer is Availability.AVAILABLE:
                found[package.name] = _row(package, Availability.AVAILABLE)
    return found


def _query_locations(group: Sequence[LockedPackage], platform: str, resolver: Resolver) -> Mapping[str, frozenset[str]]:
    """The hashes that all configured locations offer together.

    uv takes a version's files from one location; pip, and a machine with other settings, may take them from any.
    """
    found: dict[str, frozenset[str]] = {}
    for package in group:
        for location in _locations(resolver.settings):
            _, offered = _query([package], "", platform, replace(resolver, settings=location))
            found[package.name] = found.get(package.name, frozenset()) | offered.get(package.name, frozenset())
    return found


def _locations(settings: PipSettings) -> list[PipSettings]:
    """The settings split by location: the default index, each extra one, the find-links folders."""
    bare = replace(settings, extra_index_urls=(), find_links=())
    extras = [replace(bare, index_url=item, is_no_index=False) for item in settings.extra_index_urls]
    links = [replace(bare, find_links=settings.find_links, is_no_index=True)] if settings.find_links else []
    return [bare, *extras, *links]


def _query(
    group: Sequence[LockedPackage], label: str, platform: str, resolver: Resolver
) -> tuple[Ran, Mapping[str, frozenset[str]]]:
    """The run of uv, and the hashes of every file it found for each package."""
    env = {} if resolver.settings.retries else {"UV_HTTP_RETRIES": "1"}
    lines = [f"{package.name}=={package.version}" for package in group]
    with tempfile.TemporaryDirectory(prefix="npuenv-verify-") as folder:
        ran, rows = list_exact(lines, _platform(platform), resolver, Path(folder), label=label, env=env)
    return ran, {
        canonicalize_name(row["name"]): frozenset(
            file["hashes"]["sha256"]
            for file in (*row.get("wheels", ()), *(row[kind] for kind in ("sdist", "archive") if kind in row))
        )
        for row in rows
    }


def _platform(tag: str) -> Platform:
    """The platform of a tag like `aarch64-cp311-glibc2.28`."""
    arch, python, glibc = tag.split("-")
    return Platform(arch, f"{python[2]}.{python[3:]}", glibc=glibc.removeprefix("glibc"))


def _compare(package: LockedPackage, offered: Mapping[str, frozenset[str]], messages: str) -> VerifiedPackage:
    """The offer of one package. A real warning of uv on success (0.13.8): warning: `old==1.0` is yanked (reason:
    "bad").
    """
    lacking = tuple(digest for digest in package.sha256 if digest not in offered.get(package.name, ()))
    if lacking:
        return _row(package, Availability.CHANGED, *lacking)
    if f"`{package.name}=={package.version}` is yanked" in messages:
        return _row(package, Availability.YANKED)
    return _row(package, Availability.AVAILABLE)


def _named(error: str, group: Sequence[LockedPackage]) -> LockedPackage | None:
    """The first package of the group that uv's error names.

    A real one (uv 0.13.8): "Because there is no version of upper==2.0 and you require upper==2.0, we can conclude ...".
    """
    by_name = {package.name: package for package in group}
    names = (canonicalize_name(name) for name in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*(?===|\b)", error))
    return next((by_name[name] for name in names if name in by_name), None)


def _row(package: LockedPackage, offer: Availability, *detail: str) -> VerifiedPackage:
    return VerifiedPackage(package.name, package.version, offer, package.index, detail)
