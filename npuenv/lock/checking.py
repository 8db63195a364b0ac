"""Checks a lock: that it can be installed here, that its indexes still have it, that a folder holds what it names.

`verify_lock` runs uv once per index for all packages that come from it; only if it fails, it runs again without the
package it names. Only metadata is downloaded.
`find_inconsistencies` reads metadata only, with the markers of the lock's platform, so that a set for another
architecture can be checked too. An inconsistency that the stack causes on purpose carries the reason; one without is a
defect.
"""

from __future__ import annotations

import enum
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from npuenv.core import versions
from npuenv.core.errors import NothingFits
from npuenv.core.messages import Message
from npuenv.facts.pip import local_folder, without_secrets
from npuenv.host import PathState
from npuenv.lock.export import fill_command
from npuenv.lock.file import IMPOSSIBLE, Lock, Missing, Proof, platform_parts
from npuenv.lock.uv import Resolver, deciding_line, is_out_of_reach, list_exact, probe, wheels_in_links
from npuenv.resolve.types import Platform

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from importlib.metadata import Distribution

    from npuenv.facts.pip import PipSettings
    from npuenv.host import Ran
    from npuenv.lock.file import LockedPackage
    from npuenv.resolve.types import Request, Stack


def require_complete(lock: Lock, resolver: Resolver, request: Request | None = None) -> None:
    """Raises NothingFits for an incomplete lock: the missing hashes and where they were searched for, or the clash.

    `request`: the request that the lock's stack was resolved from, for the command that completes the lock.
    """
    if lock.status == IMPOSSIBLE:
        why = why_impossible(lock.proof, lock.missing[0].detail)
        args = {"stack": lock.stack, "platform": lock.platform, "why": why}
        raise NothingFits(Message("lock.impossible", args), Message("lock.impossible-hint"))
    if lock.missing:
        why = tuple(why_missing(each, resolver) for each in lock.missing)
        raise NothingFits(
            Message("lock.partial", {"stack": lock.stack, "platform": lock.platform, "why": why}),
            Message("lock.fill-it", {"command": fill_command(lock, request)}),
        )


def why_impossible(proof: Sequence[Proof], detail: str) -> tuple[Message, ...]:
    """Each clashing requirement with its source; without a proof, the resolver's own message."""
    if not proof:
        return (Message("lock.lacks-does-not-resolve", {"detail": detail}),)
    return tuple(Message("lock.proof-row", {"requirement": p.requirement, "source": p.source}) for p in proof)


def require_sources(
    stack: Stack, lock: Lock, resolver: Resolver, *, only: Collection[str] | None = None
) -> dict[str, str]:
    """Name -> find-links folder, for packages with an index of their own that are in one.

    The others are looked up on their index; raises NothingFits if it is unreachable or does not have the version. The
    default index is no replacement: it has a torch of the same version that requires CUDA packages. `only`: the names
    of the packages to look up; None: all.
    """
    labelled = [package for package in lock.packages if package.index and (only is None or package.name in only)]
    found = wheels_in_links(resolver, labelled, stack.platform)
    for package in labelled:
        if package.name in found:
            continue
        assert package.index is not None
        ran = probe(package.name, package.version, package.index, stack, resolver)
        if ran.code != 0:
            reason = "index-out-of-reach" if is_out_of_reach(ran) else "not-on-index"
            missing = Missing(package.name, package.version, reason, package.index)
            raise NothingFits(why_missing(missing, resolver), Message("lock.provide-wheel", {"name": package.name}))
    return found


def why_missing(missing: Missing, resolver: Resolver) -> Message:
    """The message for one row of `missing`, with the index's label and address and the find-links folders."""
    links = tuple(without_secrets(item.value) for item in resolver.settings.find_links) or (Message("lock.no-links"),)
    args = {
        "name": missing.name,
        "version": missing.version,
        "index": missing.index or "",
        "url": without_secrets(resolver.indexes.get(missing.index or "", "")),
        "links": links,
        "detail": missing.detail,
    }
    return Message(f"lock.reason-{missing.reason}", args)


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
    found = {p.name: _verified(p, Availability.NO_HASH) for p in lock.packages if not p.sha256}
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
        named = _package_named(error, left) or (left[0] if len(left) == 1 else None)
        if is_out_of_reach(ran) or "No solution found" not in ran.err or named is None:
            return found | _in_links(left, platform, resolver, error)
        found[named.name] = _verified(named, Availability.GONE, error)
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
        found[package.name] = _verified(package, Availability.OUT_OF_REACH, *filter(None, (error,)))
        if links.find_links:
            ran, offered = _query([package], "", platform, replace(resolver, settings=links))
            if _compare(package, offered, ran.err).offer is Availability.AVAILABLE:
                found[package.name] = _verified(package, Availability.AVAILABLE)
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
        ran, rows = list_exact(lines, _platform_of(platform), resolver, Path(folder), label=label, env=env)
    return ran, {
        canonicalize_name(row["name"]): frozenset(
            file["hashes"]["sha256"]
            for file in (*row.get("wheels", ()), *(row[kind] for kind in ("sdist", "archive") if kind in row))
        )
        for row in rows
    }


def _platform_of(tag: str) -> Platform:
    """The platform of a tag like `aarch64-cp311-glibc2.28`."""
    arch, python, glibc = platform_parts(tag)
    return Platform(arch, python, glibc=glibc)


def _compare(package: LockedPackage, offered: Mapping[str, frozenset[str]], messages: str) -> VerifiedPackage:
    """The offer of one package. A real warning of uv on success (0.13.8): warning: `old==1.0` is yanked (reason:
    "bad").
    """
    lacking = tuple(digest for digest in package.sha256 if digest not in offered.get(package.name, ()))
    if lacking:
        return _verified(package, Availability.CHANGED, *lacking)
    if f"`{package.name}=={package.version}` is yanked" in messages:
        return _verified(package, Availability.YANKED)
    return _verified(package, Availability.AVAILABLE)


def _package_named(error: str, group: Sequence[LockedPackage]) -> LockedPackage | None:
    """The first package of the group that uv's error names.

    A real one (uv 0.13.8): "Because there is no version of upper==2.0 and you require upper==2.0, we can conclude ...".
    """
    by_name = {package.name: package for package in group}
    names = (canonicalize_name(name) for name in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*(?===|\b)", error))
    return next((by_name[name] for name in names if name in by_name), None)


def _verified(package: LockedPackage, offer: Availability, *detail: str) -> VerifiedPackage:
    return VerifiedPackage(package.name, package.version, offer, package.index, detail)


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """A departure from the lock, or from what a distribution requires."""

    who: str  # the distribution that has the requirement, or that differs from the lock
    says: Message
    because: Message | None  # the stack's reason for it; None: unexplained


def find_inconsistencies(folder: Path, stack: Stack, lock: Lock) -> tuple[Inconsistency, ...]:
    """The differences between a folder of installed distributions and the lock, and all unmet requirements."""
    from importlib.metadata import distributions  # 15 ms, and an installation does not need it

    named = [each for each in distributions(path=[str(folder)]) if _has_name(each)]
    installed = {versions.normalised(each.metadata["Name"]): each for each in named}
    found = {name: each.version for name, each in installed.items()}
    return (*_nameless(folder), *_against_lock(found, lock), *_against_metadata(installed, found, stack, lock))


def _has_name(distribution: Distribution) -> bool:
    """False if the distribution's METADATA is missing or truncated."""
    texts = (distribution.read_text(name) for name in ("METADATA", "PKG-INFO", ""))
    return any(texts) and all(key in distribution.metadata for key in ("Name", "Version"))


def _nameless(folder: Path) -> Iterator[Inconsistency]:
    from importlib.metadata import PathDistribution

    for path in sorted(folder.glob("*.dist-info")):
        if not _has_name(PathDistribution(path)):
            yield Inconsistency(path.name, Message("consistent.no-metadata", {"folder": path.name}), None)


def _against_lock(found: Mapping[str, str], lock: Lock) -> Iterator[Inconsistency]:
    gaps = {missing.name for missing in lock.missing}
    for package in lock.packages:
        has = found.get(package.name)
        if has is None or not versions.accepts(f"=={package.version}", has):
            args = {"name": package.name, "version": package.version, "has": has or Message("consistent.nothing")}
            because = Message("consistent.no-hash", {"name": package.name}) if package.name in gaps else None
            yield Inconsistency(package.name, Message("consistent.not-as-locked", args), because)
    locked = {package.name for package in lock.packages} | {canonicalize_name(each.name) for each in lock.sources}
    for name in sorted(found.keys() - locked):
        yield Inconsistency(name, Message("consistent.not-in-lock", {"name": name, "version": found[name]}), None)


def _against_metadata(
    installed: Mapping[str, Distribution], found: Mapping[str, str], stack: Stack, lock: Lock
) -> Iterator[Inconsistency]:
    reasons = _reasons(stack, lock)
    for name, distribution in sorted(installed.items()):
        for text in distribution.requires or ():
            says = _unmet(name, text, found, stack.platform)
            if says is not None:
                package = lock.package(name)
                is_ignored = package is not None and bool(package.ignores)
                because = Message("consistent.ignored", {"name": name}) if is_ignored else None
                yield Inconsistency(name, says, because or reasons.get(versions.requirement_name(text)))


def _unmet(name: str, text: str, found: Mapping[str, str], platform: Platform) -> Message | None:
    """The message for a requirement that is not met; None if it is met or does not apply to the platform."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return Message("consistent.unreadable", {"who": name, "needs": text})
    environment = versions.marker_environment(platform.arch, platform.python)
    if requirement.marker and not requirement.marker.evaluate(environment):
        return None
    has = found.get(canonicalize_name(requirement.name))
    if has is not None and requirement.specifier.contains(has, prereleases=True):
        return None
    args = {"who": name, "needs": text.partition(";")[0].strip(), "has": has or Message("consistent.nothing")}
    return Message("consistent.unmet", args)


def _reasons(stack: Stack, lock: Lock) -> dict[str, Message]:
    """Distribution name -> why a requirement on it is not met on purpose. Later, more specific entries win."""
    reasons = {pin.name: pin.because.says for pin in stack.pins if pin.is_python}
    for source in stack.git_sources:
        reasons[canonicalize_name(source.name)] = Message("consistent.built-later", {"name": source.name})
    for override in stack.overrides:
        reasons[versions.requirement_name(override.requirement)] = override.because.says
    for missing in lock.missing:
        reasons[missing.name] = Message("consistent.no-hash", {"name": missing.name})
    return reasons
