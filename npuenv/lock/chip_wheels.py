"""A lock for one generation of cards: components from wheels that are built for them, instead of from source.

Locks that several generations share build these components from source, which fits all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.lock.file import IMPOSSIBLE, STACK, Lock, LockedPackage
from npuenv.lock.store import as_locked

if TYPE_CHECKING:
    from collections.abc import Collection

    from npuenv.matrix.rows import ChipWheel
    from npuenv.resolve.types import Stack


def for_chip(stack: Stack, lock: Lock, given: Collection[str] = ()) -> tuple[Stack, Lock]:
    """The stack and its lock with each wheel for the stack's cards in the place of a build; unchanged without one.

    `given`: sources that the user supplies; they are built. A wheel for a newer C library raises that of the lock.
    """
    if lock.status == IMPOSSIBLE:
        return stack, lock
    built = {source.name for source in lock.sources} - {canonicalize_name(name) for name in given}
    wheels = [each.wheel for each in stack.git_sources if each.wheel and each.wheel.sha256 and each.name in built]
    if wheels:
        names = {wheel.name for wheel in wheels}
        glibc = max((stack.platform.glibc, *(wheel.glibc for wheel in wheels)), key=_minor)
        lock = replace(
            lock,
            platform=replace(stack.platform, glibc=glibc).tag,
            packages=tuple(sorted((*lock.packages, *map(_locked, wheels)), key=lambda package: package.name)),
            sources=tuple(source for source in lock.sources if source.name not in names),
        )
    is_for_chip = any(lock.package(source.name) for source in stack.git_sources)
    return as_locked(stack, lock) if is_for_chip else stack, lock


def _locked(wheel: ChipWheel) -> LockedPackage:
    index = None if wheel.index == "default" else wheel.index
    return LockedPackage(wheel.name, wheel.version, (wheel.sha256,), index, (STACK,))


def _minor(glibc: str) -> int:
    return int(glibc.partition(".")[2])
