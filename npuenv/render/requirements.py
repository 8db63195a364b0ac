"""A lock's packages as the lists that `pip install --requirement` reads, one for each step, index and kind of hash.

pip checks hashes for a whole list or not at all, and takes one list from one set of indexes; hence the split. Every
package of the lock stands in exactly one list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.lock.export import requirement_lines
from npuenv.render.words import one_word

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.lock.file import Lock, LockedPackage
    from npuenv.resolve.types import BuildStep, Stack

REST = "rest"
_INSTALLS = ("pip", "requirements")


@dataclass(frozen=True, slots=True)
class PackageList:
    """The packages that one `pip install` takes, sorted by name."""

    step: str
    arch: str
    index: str | None  # label; None: the default index
    is_hashed: bool
    is_rest: bool  # True for what no step names
    packages: tuple[LockedPackage, ...]

    @property
    def file(self) -> str:
        """`requirements.<arch>.txt` for the rest; the step, the index and `unhashed` are said where they apply."""
        parts = [] if self.is_rest else [self.step]
        parts += [self.index] if self.index else []
        parts += [] if self.is_hashed else ["unhashed"]
        return ".".join(("requirements", self.arch, *parts, "txt"))

    def text(self) -> str:
        """One requirement per package, exact, with all hashes of the platform's files."""
        return "".join(f"{line}\n" for package in self.packages for line in _lines(package))


def package_lists(stack: Stack, lock: Lock) -> tuple[PackageList, ...]:
    """The lists of a lock in the order of the stack's steps; within a step the default index comes first.

    Raises BadInput when a package of the lock has no step: neither one that names it, nor one that takes the rest.
    """
    places = _places(stack)
    found: dict[tuple[int, str, bool], list[LockedPackage]] = {}
    for package in lock.packages:
        name = versions.normalised(package.name)
        place = places.get(name, places.get(REST))
        if place is None:
            raise BadInput(
                Message("render.no-place", {"package": package.name, "stack": stack.name}),
                Message("render.no-place-hint", {"stack": stack.name, "arch": stack.platform.arch}),
            )
        if place >= 0:
            found.setdefault((place, package.index or "", not package.sha256), []).append(package)
    return tuple(
        _package_list(stack, stack.order[place], label, is_bare, packages)
        for (place, label, is_bare), packages in sorted(found.items(), key=lambda item: item[0])
    )


def _package_list(
    stack: Stack, step: BuildStep, label: str, is_bare: bool, packages: list[LockedPackage]
) -> PackageList:
    return PackageList(
        step=step.id,
        arch=stack.platform.arch,
        index=label or None,
        is_hashed=not is_bare,
        is_rest=step.does == REST,
        packages=tuple(sorted(packages, key=lambda package: package.name)),
    )


def _places(stack: Stack) -> Mapping[str, int]:
    """Package name -> number of the step that installs it; -1 for one that is only ever removed. `rest`: the others.

    The first step that names a package installs it, so that what is built later finds it; but one that a step removes
    has to come after that step (triton-ascend owns files that triton owns too).
    """
    removed = {
        versions.normalised(name): number
        for number, step in enumerate(stack.order)
        if step.does == "uninstall"
        for name in step.what
    }
    places: dict[str, int] = dict.fromkeys(removed, -1)
    for number, step in enumerate(stack.order):
        for name in map(versions.normalised, step.what) if step.does in _INSTALLS else ():
            is_late_enough = number > removed.get(name, -1)
            if is_late_enough and places.get(name, -1) < 0:
                places[name] = number
        if step.does == REST:
            places[REST] = number
    return places


def _lines(package: LockedPackage) -> list[str]:
    for word in (f"{package.name}=={package.version}", *package.sha256):
        one_word(word, package.name)
    return requirement_lines(package)
