"""Compares a folder of installed distributions with a lock, and checks that they are consistent.

The check reads metadata only, with the markers of the lock's platform, so that a set for another architecture can be
checked too. An inconsistency that the stack causes on purpose carries the reason; one without is a defect.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution, distributions
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from npuenv.core import versions
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from npuenv.lock.file import Lock
    from npuenv.resolve.types import Platform, Stack


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """A departure from the lock, or from what a distribution requires."""

    who: str  # the distribution that has the requirement, or that differs from the lock
    says: Message
    because: Message | None  # the stack's reason for it; None: unexplained


def find_inconsistencies(folder: Path, stack: Stack, lock: Lock) -> tuple[Inconsistency, ...]:
    """The differences between a folder of installed distributions and the lock, and all unmet requirements."""
    named = [each for each in distributions(path=[str(folder)]) if _has_name(each)]
    installed = {versions.normalised(each.metadata["Name"]): each for each in named}
    found = {name: each.version for name, each in installed.items()}
    return (*_nameless(folder), *_against_lock(found, lock), *_against_metadata(installed, found, stack, lock))


def _has_name(distribution: Distribution) -> bool:
    """False if the distribution's METADATA is missing or truncated."""
    texts = (distribution.read_text(name) for name in ("METADATA", "PKG-INFO", ""))
    return any(texts) and all(key in distribution.metadata for key in ("Name", "Version"))


def _nameless(folder: Path) -> Iterator[Inconsistency]:
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
