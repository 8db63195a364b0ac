"""Finds the preferred candidate that fits: sorts the recipes, and evaluates the candidates that can change the answer.

A recipe leaves several choices: architecture, hardware, OS, CANN, Python, and for each of the user's pins whether it is
used or dropped. Terms:

- location: one value for each choice, as indexes into `choices`. Index 0 is what was requested, else what is published.
- move: from one location to another that differs in one choice. The search moves only along choices that can remove a
  conflict with the matrix (`relaxable_by`).
- relaxed fields: the fields of the request that a location does not meet.
- key of a clash: identifies the rule behind it; equal keys mean the same rule. Some clashes also belong to a broader
  one, about all stacks of the framework.

Example: with `--os ubuntu20.04 --pin numpy==2.0.0` and a recipe published for openEuler 24.03, the choices are
os (ubuntu20.04, openeuler24.03) and pin.numpy (2.0.0, dropped). The search starts at (0, 0). A conflict about glibc can
be removed by another OS only, so the search moves to (1, 0), which relaxes {os}. If the matrix accepts that location,
(1, 1), which relaxes {os, pin.numpy}, is skipped: it relaxes more than is needed.

A skipped location has all the conflicts of one that was evaluated, so neither an answer nor a smaller reason is missed.
"""

from __future__ import annotations

import bisect
import functools
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.messages import Message
from npuenv.matrix.release_stacks import all_recipes, recipe_named
from npuenv.resolve.rules import matrix_conflicts, relaxable_by, unmet_requests
from npuenv.resolve.types import Candidate, Clash, same

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.types import Request


Evaluated = tuple[Candidate, list[Clash]]  # a candidate with all its clashes: unmet requests, then matrix conflicts
_Location = tuple[int, ...]  # for each choice the index of its value


def fitting(request: Request, matrix: Matrix) -> Candidate | None:
    """The preferred candidate without a clash, or None. The other stacks are not built if the request names one."""
    if request.stack is None:
        return first_fit(by_preference(request, matrix)[0], request, matrix)
    named = recipe_named(request.stack, matrix)
    return first_fit([named], request, matrix) if named and is_asked_for(named, request) else None


def by_preference(request: Request, matrix: Matrix) -> tuple[list[Recipe], list[Recipe]]:
    """The recipes that match the request, preferred ones first, and all the others, nearest first."""
    recipes = all_recipes(matrix)
    wanted = recipe_named(request.stack, matrix) if request.stack else None
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


def is_asked_for(recipe: Recipe, request: Request) -> bool:
    """Whether a recipe matches the stack, framework, release and date of a request."""
    wanted = {"stack": recipe.id, "framework": recipe.framework, "release": recipe.release}
    is_named = all(getattr(request, name) in (None, value) for name, value in wanted.items())
    return is_named and (request.as_of is None or recipe.date <= request.as_of)


def _distance(recipe: Recipe, request: Request, wanted: Recipe | None) -> tuple[object, ...]:
    """How far a recipe is from the request, as a sort key: the number of differing fields, then whether framework and
    release differ from those of the named stack, then how late it was published.
    """
    named = {"framework": recipe.framework, "release": recipe.release}
    misses = sum(getattr(request, name) not in (None, value) for name, value in named.items())
    is_other = (wanted.framework != recipe.framework, wanted.release != recipe.release) if wanted else ()
    late = recipe.date if request.as_of is not None and recipe.date > request.as_of else ""
    return misses, is_other, late


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
    return not recipe.hardware, apart, recipe.is_release_candidate


def first_fit(recipes: Iterable[Recipe], request: Request, matrix: Matrix) -> Candidate | None:
    """The first candidate without a clash, or None. Every field of the request keeps its value."""
    for recipe in recipes:
        search = _RecipeSearch(recipe, request, matrix)
        for location in search.queue:
            if search.relaxed_fields(location):
                continue
            candidate, _, conflicts = search.evaluate(location)
            if not conflicts:
                return candidate
            search.expand(location, conflicts)
    return None


def evaluate(
    recipes: Iterable[Recipe], request: Request, matrix: Matrix, sufficient: Iterable[frozenset[str]] = ()
) -> Iterator[Evaluated]:
    """Candidates of the recipes with all their clashes, the nearest to the request first.

    `sufficient`: sets of request fields that are known to be enough to relax, so that no larger set is tried.
    """
    enough = list(sufficient)
    for recipe in recipes:
        search = _RecipeSearch(recipe, request, matrix)
        for location in search.queue:  # grows during the loop: breadth first
            relaxed = search.relaxed_fields(location)
            if any(each <= relaxed for each in enough):
                continue
            candidate, unmet, conflicts = search.evaluate(location)
            yield candidate, [*unmet, *conflicts]
            if not conflicts:
                enough.append(relaxed)
            search.expand(location, conflicts)


def find_without(keys: frozenset[str], recipes: Iterable[Recipe], request: Request, matrix: Matrix) -> Evaluated | None:
    """The first candidate that has none of the clashes with the given keys, or None."""
    for recipe in recipes:
        search = _RecipeSearch(recipe, request, matrix)
        for location in search.queue:
            candidate, unmet, conflicts = search.evaluate(location)
            if any(clash_key(each) in keys for each in unmet):
                continue  # a move only relaxes more fields
            blocking = [each for each in conflicts if not keys.isdisjoint(clash_keys(each, candidate, request))]
            if not blocking:
                return candidate, [*unmet, *conflicts]
            search.expand(location, blocking)
    return None


def blocking_pins(recipes: Iterable[Recipe], request: Request, matrix: Matrix) -> frozenset[str]:
    """The user's pins that could remove a conflict of the first recipe at its first location; empty for none."""
    for recipe in recipes:
        search = _RecipeSearch(recipe, request, matrix)
        _, _, conflicts = search.evaluate(search.queue[0])
        names = (name for clash in conflicts for name in relaxable_by(clash, search.names))
        return frozenset(name.removeprefix("pin.") for name in names if name.startswith("pin."))
    return frozenset()


class _RecipeSearch:
    """The locations of one recipe reached so far. Only `expand` adds to `queue`."""

    def __init__(self, recipe: Recipe, request: Request, matrix: Matrix) -> None:
        self.recipe, self.request, self.matrix = recipe, request, matrix
        self.choices = choices(recipe, request)
        self.names = tuple(self.choices)
        start = (0,) * len(self.names)
        self.queue, self._seen = [start], {start}
        self._always_unmet: frozenset[str] | None = None

    def relaxed_fields(self, location: _Location) -> frozenset[str]:
        """The fields of the request that the location does not meet; computed without evaluating the location."""
        if self._always_unmet is None:
            first, _ = self._judged(self.queue[0])
            clashes = unmet_requests(first, self.request)
            self._always_unmet = frozenset(str(clash.says.args["field"]) for clash in clashes)
        moved = [name for name, at in zip(self.names, location, strict=True) if at]
        requested = (name for name in moved if name.startswith("pin.") or getattr(self.request, name) is not None)
        return self._always_unmet.union(requested)

    def evaluate(self, location: _Location) -> tuple[Candidate, list[Clash], list[Clash]]:
        """The candidate at the location, its unmet requests, and its conflicts with the matrix."""
        candidate, conflicts = self._judged(location)
        return candidate, list(unmet_requests(candidate, self.request)), list(conflicts)

    def _judged(self, location: _Location) -> tuple[Candidate, tuple[Clash, ...]]:
        chosen = tuple((name, self.choices[name][at]) for name, at in zip(self.names, location, strict=True))
        return judged(self.recipe.id, chosen, self.matrix)

    def expand(self, location: _Location, blocking: list[Clash]) -> None:
        """Queues the neighbours of a location that could remove one of the blocking clashes."""
        movable = {name for clash in blocking for name in relaxable_by(clash, self.names)}
        if blocking and any(pin.arch for pin in self.recipe.pin):
            movable.add("arch")
        for index in reversed(range(len(self.names))):
            if self.names[index] in movable and location[index] == 0:
                count = len(self.choices[self.names[index]])
                others = [(*location[:index], at, *location[index + 1 :]) for at in range(1, count)]
                self.queue += [other for other in others if other not in self._seen]
                self._seen.update(others)


@functools.lru_cache(maxsize=8192)  # why a request fails is found by many requests for the same candidates
def judged(
    stack: str, chosen: tuple[tuple[str, str | None], ...], matrix: Matrix
) -> tuple[Candidate, tuple[Clash, ...]]:
    """The candidate of a stack with the chosen values, and its conflicts with the matrix."""
    recipe = recipe_named(stack, matrix)
    assert recipe is not None
    candidate = candidate_of(recipe, dict(chosen), matrix)
    return candidate, tuple(matrix_conflicts(candidate, matrix))


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
        f"pin.{name}": (version, None)
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


def _values(published: tuple[str, ...], requested: str | None) -> tuple[str | None, ...]:
    """The requested value first, then the published ones."""
    if requested is None:
        return published
    return (requested, *(value for value in published if not same(value, requested)))


def candidate_of(recipe: Recipe, chosen: Mapping[str, str | None], matrix: Matrix) -> Candidate:
    """The candidate with one value chosen for each of the `choices`."""
    arch, python = chosen["arch"], chosen["python"]
    assert arch is not None and python is not None
    of_arch = {pin.name: pin.version for pin in recipe.pin if pin.arch in ("", arch)}
    pinned = {name[4:]: value for name, value in chosen.items() if name.startswith("pin.") and value}
    platform = (chosen["hardware"], chosen["os"], chosen["cann"], chosen["driver"])
    pins = {**of_arch, **_torch_companions(of_arch, pinned, matrix), **pinned}
    return Candidate(recipe, arch, python, *platform, pins)


def _torch_companions(of_arch: Mapping[str, str], pinned: Mapping[str, str], matrix: Matrix) -> dict[str, str]:
    """The torchvision and torchaudio that belong to a pinned torch."""
    row = matrix.companion_row(pinned["torch"]) if "torch" in pinned else None
    if row is None:
        return {}
    return {name: getattr(row, name) for name in ("torchvision", "torchaudio") if name in of_arch}


# Clashes of single stacks that together are one statement about their framework, and the arguments that identify it.
OF_ALL_STACKS = {
    "resolve.stack-hardware": ("hardware",),
    "resolve.stack-arch": ("arch",),
    "resolve.stack-cann": ("cann",),
    "resolve.stack-no-python": ("python",),
    "resolve.stack-no-version": ("package", "version"),
    "resolve.stack-package": ("package",),
}
# Clashes with a Python or with a package version that each stack has by a rule of its own.
_ABOUT_PYTHON = ("resolve.wheel-python", "resolve.vllm-ascend-python", "resolve.package-python", "resolve.stack-python")
_ABOUT_VERSION = ("resolve.requires", "resolve.torch-npu-torch")


def clash_key(clash: Clash) -> str:
    """The key of the rule behind a clash: the row and what it demands, without the value that was found.

    "No stack of this framework is published for this hardware" is one rule, not one per stack.
    """
    key, args = clash.says.key, clash.says.args
    kind = _clash_kind(key)
    if kind in OF_ALL_STACKS:
        about = (str(args[name]) for name in OF_ALL_STACKS[kind])
        return "|".join((kind, str(args["framework"]), *about))
    # One expression: the search computes these keys some hundred thousand times.
    needs, field, package = args.get("needs", ""), args.get("field", ""), args.get("package", "")
    return f"{clash.rule}|{kind}|{clash.source}|{needs}|{field}|{package}"


@functools.cache
def _clash_kind(key: str) -> str:
    """The message key without its variants: `.some-` and `.stacks-` become `.stack-`, `asked-day` becomes `asked`."""
    return key.removesuffix("-day").replace(".stacks-", ".stack-").replace(".some-", ".stack-")


def clash_keys(clash: Clash, candidate: Candidate, request: Request) -> list[str]:
    """The key of a clash, and that of the broader clash that it is part of."""
    return [clash_key(each) for each in with_broader(clash, candidate, request)]


def with_broader(clash: Clash, candidate: Candidate, request: Request) -> list[Clash]:
    """A clash, and the broader one that it is part of, if any."""
    return [clash, *filter(None, [broader_clash(clash, candidate, request)])]


def broader_clash(clash: Clash, candidate: Candidate, request: Request) -> Clash | None:
    """The clash with all stacks of the framework that includes a clash; None if there is none or a stack was requested.

    Each stack rejects Python 3.13 or torch 2.13.0 by a rule of its own. "No stack accepts it" is the single reason.
    """
    if request.stack is not None:
        return None
    recipe = candidate.recipe
    args: dict[str, object] = {"stack": recipe.id, "framework": recipe.framework}
    if clash.says.key in _ABOUT_PYTHON:
        says = Message("resolve.stack-no-python", {**args, "python": candidate.python})
        return Clash(recipe.id, says, clash.source)
    if clash.says.key not in _ABOUT_VERSION:
        return None
    name = versions.requirement_name(str(clash.says.args.get("needs", "torch")))
    if name not in request.pins or candidate.versions.get(name) != request.pins[name]:
        return None
    says = Message("resolve.stack-no-version", {**args, "package": name, "version": request.pins[name]})
    return Clash(recipe.id, says, clash.source)
