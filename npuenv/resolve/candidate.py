"""Every way a request could be met, good or not: a recipe on a platform with the versions it would install.

The resolver asks the rules what they object to about each candidate. One that nothing objects to is an answer; where
there is none, the objections say why.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv import versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.types import Request


@dataclass(frozen=True, slots=True)
class Candidate:
    """One recipe on one platform. `versions` holds what is pinned, by distribution name."""

    recipe: Recipe
    arch: str
    python: str
    hardware: str | None
    os: str | None
    cann: str | None
    driver: str | None  # None: the driver is not looked at
    versions: Mapping[str, str]

    def with_version(self, name: str, version: str) -> Candidate:
        """The same candidate with another version of a package, CANN or Python."""
        place = {"python": self.python, "cann": self.cann}
        pinned = dict(self.versions)
        if name in place:
            place[name] = version
        else:
            pinned[name] = version
        python = place["python"] or self.python
        return Candidate(self.recipe, self.arch, python, self.hardware, self.os, place["cann"], self.driver, pinned)


def candidates(request: Request, matrix: Matrix) -> Iterator[Candidate]:
    """All candidates, preferred ones first: the CANN that was asked for, the newest one, the published platform."""
    for recipe in sorted(matrix.recipes, key=lambda each: _preference(each, request)):
        yield from _of_recipe(recipe, request, matrix)


def _preference(recipe: Recipe, request: Request) -> tuple[bool, bool]:
    """NPU stacks before CPU ones, the CANN that was asked for before others; else the table's order."""
    exact = bool(request.cann and recipe.cann) and versions.cann(request.cann or "") == versions.cann(recipe.cann)
    return not recipe.hardware, not exact


def _of_recipe(recipe: Recipe, request: Request, matrix: Matrix) -> Iterator[Candidate]:
    axes = itertools.product(
        _values(recipe.arch, request.arch),
        _values(recipe.hardware, request.hardware) if recipe.hardware else (None,),
        _values(recipe.os[:1], request.os) if recipe.hardware else (request.os,),
        _values((recipe.cann,), request.cann) if recipe.cann else (None,),
        (request.driver, None) if request.driver and recipe.hardware else (None,),
        _values(recipe.python, request.python),
        _pinned(recipe, request),
    )
    for arch, hardware, os, cann, driver, python, pinned in axes:
        assert arch is not None and python is not None
        of_arch = {pin.name: pin.version for pin in recipe.pin if pin.arch in ("", arch)}
        chosen = {**of_arch, **_moved_along(of_arch, pinned, matrix), **pinned}
        yield Candidate(recipe, arch, python, hardware, os, cann, driver, chosen)


def _values(published: tuple[str, ...], asked: str | None) -> tuple[str | None, ...]:
    """What was asked for first, then what is published."""
    if asked is None:
        return published
    return (asked, *(value for value in published if not same(value, asked)))


def _pinned(recipe: Recipe, request: Request) -> list[dict[str, str]]:
    """For each user pin: taken, or left aside."""
    published = {pin.name: pin.version for pin in recipe.pin}
    choices: list[list[tuple[str, str] | None]] = []
    for name, version in sorted(request.pins.items()):
        if name in published and versions.accepts(f"=={version}", published[name]):
            continue
        choices.append([(name, version), None])
    return [dict(filter(None, choice)) for choice in itertools.product(*choices)]


def _moved_along(of_arch: Mapping[str, str], pinned: Mapping[str, str], matrix: Matrix) -> dict[str, str]:
    """The torchvision and torchaudio that a pinned torch brings with it."""
    row = matrix.companion_row(pinned["torch"]) if "torch" in pinned else None
    if row is None:
        return {}
    return {name: getattr(row, name) for name in ("torchvision", "torchaudio") if name in of_arch}


def same(one: str | None, other: str | None) -> bool:
    """Whether two names or CANN versions mean the same."""
    if one is None or other is None:
        return one is other
    if one.casefold() == other.casefold():
        return True
    return versions.is_cann(one) and versions.is_cann(other) and versions.cann(one) == versions.cann(other)


def packages(recipe: Recipe) -> set[str]:
    """The distribution names a recipe speaks of: pinned, required, or built."""
    names = {pin.name for pin in recipe.pin} | {git.name for git in recipe.git}
    return names | {versions.requirement_name(text) for text in recipe.requirements}
