"""Candidates of a request: a recipe on a platform with the versions it would install.

A candidate without clashes (`npuenv.resolve.rules`) is an answer. If there is none, the clashes are the reason.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.matrix.release_stacks import all_recipes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.types import Request


_PIN = "pin."


@dataclass(frozen=True, slots=True)
class Candidate:
    """One recipe on one platform. `versions` holds what is pinned, by distribution name."""

    recipe: Recipe
    arch: str
    python: str
    hardware: str | None
    os: str | None
    cann: str | None
    driver: str | None  # None: the driver is not checked
    versions: Mapping[str, str]

    def with_version(self, name: str, version: str) -> Candidate:
        """The same candidate with another version of a package, CANN or Python."""
        platform = {"python": self.python, "cann": self.cann}
        pinned = dict(self.versions)
        if name in platform:
            platform[name] = version
        else:
            pinned[name] = version
        python = platform["python"] or self.python
        return Candidate(self.recipe, self.arch, python, self.hardware, self.os, platform["cann"], self.driver, pinned)


def by_preference(request: Request, matrix: Matrix) -> tuple[list[Recipe], list[Recipe]]:
    """The recipes that match the request, preferred ones first, and all the others, nearest first."""
    recipes = all_recipes(matrix)
    wanted = next((each for each in recipes if each.id == request.stack), None)
    requested: list[Recipe] = []
    others: list[Recipe] = []
    for recipe in recipes:
        if not recipe.lacks or _is_relevant(recipe, request, recipes):
            (requested if is_asked_for(recipe, request) else others).append(recipe)
    order = [versions.cann(row.version) for row in matrix.cann]
    requested.sort(key=lambda each: _preference(each, request, order))
    others.sort(key=lambda each: (_distance(each, request, wanted), _preference(each, request, order)))
    return requested, others


def _is_relevant(recipe: Recipe, request: Request, recipes: tuple[Recipe, ...]) -> bool:
    """Whether an incomplete recipe needs an answer: it was named, or its framework has no complete recipe, for the
    hardware if one was requested.
    """
    if recipe.id == request.stack or (request.release is not None and recipe.release == request.release):
        return True
    complete = [each for each in recipes if each.framework == recipe.framework and not each.lacks]
    if request.hardware is None:
        return request.framework == recipe.framework and not complete
    return request.hardware in recipe.hardware and not any(request.hardware in each.hardware for each in complete)


def _distance(recipe: Recipe, request: Request, wanted: Recipe | None) -> tuple[object, ...]:
    """How far a recipe is from the request, as a sort key: the number of differing fields, then whether framework and
    release differ from those of the named stack, then how late it was published.
    """
    named = {"framework": recipe.framework, "release": recipe.release}
    misses = sum(getattr(request, name) not in (None, value) for name, value in named.items())
    is_other = (wanted.framework != recipe.framework, wanted.release != recipe.release) if wanted else ()
    late = recipe.date if request.as_of is not None and recipe.date > request.as_of else ""
    return misses, is_other, late


def is_asked_for(recipe: Recipe, request: Request) -> bool:
    """Whether a recipe matches the stack, framework, release and date of a request."""
    wanted = {"stack": recipe.id, "framework": recipe.framework, "release": recipe.release}
    is_named = all(getattr(request, name) in (None, value) for name, value in wanted.items())
    return is_named and (request.as_of is None or recipe.date <= request.as_of)


def _preference(recipe: Recipe, request: Request, order: list[versions.Version]) -> tuple[object, ...]:
    """A sort key: NPU stacks before CPU ones, then the CANN nearest to the requested one. With `--newest` the newest
    next, else releases before candidates, in the order of the tables. `order` holds all CANN versions, sorted.
    """
    apart = 0
    if request.cann and recipe.cann:
        one, other = (bisect.bisect_left(order, versions.cann(text)) for text in (request.cann, recipe.cann))
        apart = abs(one - other)
    if request.is_newest:
        age = tuple(-number for number in versions.cann(recipe.cann).key) if recipe.cann else ()
        return not recipe.hardware, apart > 0, age, -int(recipe.date.replace("-", ""))
    return not recipe.hardware, apart, is_candidate_release(recipe)


def is_candidate_release(recipe: Recipe) -> bool:
    """Whether a recipe is of a vllm-ascend release candidate."""
    return recipe.framework == "vllm-ascend" and versions.python_version(recipe.release).is_prerelease


def choices(recipe: Recipe, request: Request) -> dict[str, tuple[str | None, ...]]:
    """The values to choose from for a recipe, by name: the requested one first, then the published ones.

    A pin of the user's is `pin.NAME`: its version, or None to drop it. For the driver None means that it is not
    checked.
    """
    hardware: tuple[str | None, ...] = (None,)
    os: tuple[str | None, ...] = (request.os,)
    if recipe.hardware:
        hardware, os = _values(recipe.hardware, request.hardware), _values(recipe.os[:1], request.os) or (None,)
    published = {pin.name: pin.version for pin in recipe.pin}
    pins = {
        f"{_PIN}{name}": (version, None)
        for name, version in sorted(request.pins.items())
        if not (name in published and versions.accepts(f"=={version}", published[name]))
    }
    return {
        "arch": _values(recipe.arch, request.arch),
        "hardware": hardware,
        "os": os,
        "cann": _values((recipe.cann,), request.cann) if recipe.cann else (None,),
        "driver": (request.driver, None) if request.driver and recipe.hardware else (None,),
        "python": _values(recipe.python, request.python),
        **pins,
    }


def candidate_of(recipe: Recipe, chosen: Mapping[str, str | None], matrix: Matrix) -> Candidate:
    """The candidate with one value chosen for each of the `choices`."""
    arch, python = chosen["arch"], chosen["python"]
    assert arch is not None and python is not None
    of_arch = {pin.name: pin.version for pin in recipe.pin if pin.arch in ("", arch)}
    pinned = {name[len(_PIN) :]: value for name, value in chosen.items() if name.startswith(_PIN) and value}
    platform = (chosen["hardware"], chosen["os"], chosen["cann"], chosen["driver"])
    pins = {**of_arch, **_torch_companions(of_arch, pinned, matrix), **pinned}
    return Candidate(recipe, arch, python, *platform, pins)


def _values(published: tuple[str, ...], requested: str | None) -> tuple[str | None, ...]:
    """The requested value first, then the published ones."""
    if requested is None:
        return published
    return (requested, *(value for value in published if not same(value, requested)))


def _torch_companions(of_arch: Mapping[str, str], pinned: Mapping[str, str], matrix: Matrix) -> dict[str, str]:
    """The torchvision and torchaudio that belong to a pinned torch."""
    row = matrix.companion_row(pinned["torch"]) if "torch" in pinned else None
    if row is None:
        return {}
    return {name: getattr(row, name) for name in ("torchvision", "torchaudio") if name in of_arch}


def same(one: str | None, other: str | None) -> bool:
    """Whether two names or CANN versions are equal."""
    if one is None or other is None:
        return one is other
    if one.casefold() == other.casefold():
        return True
    return versions.is_cann(one) and versions.is_cann(other) and versions.cann(one) == versions.cann(other)


def packages(recipe: Recipe) -> set[str]:
    """The distribution names in a recipe: pinned, required, or built."""
    names = {pin.name for pin in recipe.pin} | {git.name for git in recipe.git}
    return names | {versions.requirement_name(text) for text in recipe.requirements}
