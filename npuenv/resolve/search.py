"""Every candidate that matters, judged.

A recipe can be had in many ways: each architecture, each Python, with and without each of the user's pins. Most of them
need no look: another choice can only help where a rule objects that hangs on it, and it costs a wish of the user's.
So the search begins with what was asked for and moves only along the choices that an objection hangs on, and not at all
where it would give up all that a way needs which is known already. Any way that is left out has all the objections of
one that was judged, so neither an answer nor a smaller reason is missed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.resolve.candidate import Candidate, candidate_of, choices
from npuenv.resolve.clash_identity import clash_key, keys_of
from npuenv.resolve.rules import against_rows, hangs_on, unmet
from npuenv.resolve.types import Clash

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.types import Request

Judged = tuple[Candidate, list[Clash]]  # a candidate with everything that speaks against it
_Place = tuple[int, ...]  # for each of the choices, which value is taken


def judged(
    recipes: Iterable[Recipe], request: Request, matrix: Matrix, known: Iterable[frozenset[str]] = ()
) -> Iterator[Judged]:
    """Candidates of the recipes with everything that speaks against them, the nearest to the wish first.

    `known` are sets of wishes of which it is known that giving them up is enough: then nothing in the matrix objects.
    """
    enough = list(known)
    for recipe in recipes:
        walk = _Walk(recipe, request, matrix)
        for place in walk.queue:  # grows while it is walked: breadth first
            given_up = walk.given_up(place)
            if any(each <= given_up for each in enough):
                continue
            candidate, wishes, rows = walk.look(place)
            yield candidate, [*wishes, *rows]
            if not rows:
                enough.append(given_up)
            walk.move(place, rows)


def fitting(recipes: Iterable[Recipe], request: Request, matrix: Matrix) -> Candidate | None:
    """The first candidate that nothing speaks against; None where there is none. Only what was not asked for moves."""
    for recipe in recipes:
        walk = _Walk(recipe, request, matrix)
        for place in walk.queue:
            if walk.given_up(place):
                continue
            candidate, _, rows = walk.look(place)
            if not rows:
                return candidate
            walk.move(place, rows)
    return None


def pins_in_the_way(recipes: Iterable[Recipe], request: Request, matrix: Matrix) -> frozenset[str]:
    """The user's pins that objections to the first recipe weigh, as what was asked for stands; empty for none."""
    for recipe in recipes:
        walk = _Walk(recipe, request, matrix)
        _, _, rows = walk.look(walk.queue[0])
        names = (name for clash in rows for name in hangs_on(clash, walk.names))
        return frozenset(name.removeprefix("pin.") for name in names if name.startswith("pin."))
    return frozenset()


def avoiding(hit: frozenset[str], recipes: Iterable[Recipe], request: Request, matrix: Matrix) -> Judged | None:
    """A candidate with none of the given clashes (by their keys) against it; None where there is none."""
    for recipe in recipes:
        walk = _Walk(recipe, request, matrix)
        for place in walk.queue:
            candidate, wishes, rows = walk.look(place)
            if any(clash_key(each) in hit for each in wishes):
                continue  # moving on gives up only more
            in_the_way = [each for each in rows if not hit.isdisjoint(keys_of(each, candidate, request))]
            if not in_the_way:
                return candidate, [*wishes, *rows]
            walk.move(place, in_the_way)
    return None


class _Walk:
    """The places of one recipe that were reached so far. `queue` grows by `move`; nobody else changes it."""

    def __init__(self, recipe: Recipe, request: Request, matrix: Matrix) -> None:
        self.recipe, self.request, self.matrix = recipe, request, matrix
        self.open_to = choices(recipe, request)
        self.names = tuple(self.open_to)
        start = (0,) * len(self.names)
        self.queue, self._seen = [start], {start}
        self._missed: frozenset[str] | None = None

    def given_up(self, place: _Place) -> frozenset[str]:
        """The wishes that are not met there, as names of the request's fields; found without judging the place."""
        if self._missed is None:
            first = self._candidate(self.queue[0])
            self._missed = frozenset(str(clash.says.args["field"]) for clash in unmet(first, self.request))
        moved = [name for name, at in zip(self.names, place, strict=True) if at]
        asked = (name for name in moved if name.startswith("pin.") or getattr(self.request, name) is not None)
        return self._missed.union(asked)

    def look(self, place: _Place) -> tuple[Candidate, list[Clash], list[Clash]]:
        """The candidate there, the wishes it does not meet, and what the matrix has against it."""
        candidate = self._candidate(place)
        return candidate, list(unmet(candidate, self.request)), list(against_rows(candidate, self.matrix))

    def _candidate(self, place: _Place) -> Candidate:
        chosen = {name: self.open_to[name][at] for name, at in zip(self.names, place, strict=True)}
        return candidate_of(self.recipe, chosen, self.matrix)

    def move(self, place: _Place, lifting: list[Clash]) -> None:
        """Puts the neighbours into the queue that could lift one of the given clashes."""
        movable = {name for clash in lifting for name in hangs_on(clash, self.names)}
        if lifting and any(pin.arch for pin in self.recipe.pin):
            movable.add("arch")
        for index in reversed(range(len(self.names))):
            if self.names[index] in movable and place[index] == 0:
                count = len(self.open_to[self.names[index]])
                others = [(*place[:index], at, *place[index + 1 :]) for at in range(1, count)]
                self.queue += [other for other in others if other not in self._seen]
                self._seen.update(others)
