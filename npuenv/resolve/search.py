"""Evaluates the candidates of recipes and skips those that cannot change the answer.

A recipe leaves several choices: architecture, hardware, OS, CANN, Python, and for each of the user's pins whether it is
used or dropped. Terms:

- location: one value for each choice, as indexes into `choices`. Index 0 is what was requested, else what is published.
- move: from one location to another that differs in one choice. The search moves only along choices that can remove a
  conflict with the matrix (`relaxable_by`).
- relaxed fields: the fields of the request that a location does not meet.

Example: with `--os ubuntu20.04 --pin numpy==2.0.0` and a recipe published for openEuler 24.03, the choices are
os (ubuntu20.04, openeuler24.03) and pin.numpy (2.0.0, dropped). The search starts at (0, 0). A conflict about glibc can
be removed by another OS only, so the search moves to (1, 0), which relaxes {os}. If the matrix accepts that location,
(1, 1), which relaxes {os, pin.numpy}, is skipped: it relaxes more than is needed.

A skipped location has all the conflicts of one that was evaluated, so neither an answer nor a smaller reason is missed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from npuenv.matrix.release_stacks import recipe_named
from npuenv.resolve.candidate import Candidate, candidate_of, choices
from npuenv.resolve.clash_identity import clash_key, keys_of
from npuenv.resolve.rules import matrix_conflicts, relaxable_by, unmet_requests
from npuenv.resolve.types import Clash

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.types import Request

Evaluated = tuple[Candidate, list[Clash]]  # a candidate with all its clashes: unmet requests, then matrix conflicts
_Location = tuple[int, ...]  # for each choice the index of its value


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


def blocking_pins(recipes: Iterable[Recipe], request: Request, matrix: Matrix) -> frozenset[str]:
    """The user's pins that could remove a conflict of the first recipe at its first location; empty for none."""
    for recipe in recipes:
        search = _RecipeSearch(recipe, request, matrix)
        _, _, conflicts = search.evaluate(search.queue[0])
        names = (name for clash in conflicts for name in relaxable_by(clash, search.names))
        return frozenset(name.removeprefix("pin.") for name in names if name.startswith("pin."))
    return frozenset()


def find_without(keys: frozenset[str], recipes: Iterable[Recipe], request: Request, matrix: Matrix) -> Evaluated | None:
    """The first candidate that has none of the clashes with the given keys, or None."""
    for recipe in recipes:
        search = _RecipeSearch(recipe, request, matrix)
        for location in search.queue:
            candidate, unmet, conflicts = search.evaluate(location)
            if any(clash_key(each) in keys for each in unmet):
                continue  # a move only relaxes more fields
            blocking = [each for each in conflicts if not keys.isdisjoint(keys_of(each, candidate, request))]
            if not blocking:
                return candidate, [*unmet, *conflicts]
            search.expand(location, blocking)
    return None


@functools.lru_cache(maxsize=8192)  # why a request fails is found by many requests for the same candidates
def judged(
    stack: str, chosen: tuple[tuple[str, str | None], ...], matrix: Matrix
) -> tuple[Candidate, tuple[Clash, ...]]:
    """The candidate of a stack with the chosen values, and its conflicts with the matrix."""
    recipe = recipe_named(stack, matrix)
    assert recipe is not None
    candidate = candidate_of(recipe, dict(chosen), matrix)
    return candidate, tuple(matrix_conflicts(candidate, matrix))


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
