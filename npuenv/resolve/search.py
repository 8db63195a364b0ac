"""Every candidate that matters, judged. Start from `judged`.

A recipe can be had in many ways: each architecture, each Python, with and without each of the user's pins. Most of them
need no look: another choice can only help where a rule objects that hangs on it, and it costs a wish of the user's.
So the search begins with what was asked for and moves only along the choices that an objection hangs on, and not at all
where it would give up all that a way needs which is known already. Any way that is left out has all the objections of
one that was judged, so neither an answer nor a smaller reason is missed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.resolve.candidate import by_preference, candidate_of, choices
from npuenv.resolve.rules import against_rows, hangs_on, unmet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.candidate import Candidate
    from npuenv.resolve.types import Clash, Request


def judged(request: Request, matrix: Matrix) -> Iterator[tuple[Candidate, list[Clash]]]:
    """Candidates with everything that speaks against them, preferred recipes first, the nearest to the wish first."""
    enough: list[frozenset[str]] = []  # sets of wishes that are enough to give up: nothing in the matrix objects then
    for recipe in by_preference(request, matrix):
        yield from _ways(recipe, request, matrix, enough)


def _ways(
    recipe: Recipe, request: Request, matrix: Matrix, enough: list[frozenset[str]]
) -> Iterator[tuple[Candidate, list[Clash]]]:
    open_to = choices(recipe, request)
    names = tuple(open_to)
    start = candidate_of(recipe, {name: values[0] for name, values in open_to.items()}, matrix)
    missed = frozenset(str(clash.says.args["field"]) for clash in unmet(start, request))
    seen, queue = {(0,) * len(names)}, [(0,) * len(names)]
    for place in queue:  # grows while it is walked: breadth first
        moved = {name for name, at in zip(names, place, strict=True) if at}
        given_up = missed | {name for name in moved if name.startswith("pin.") or getattr(request, name) is not None}
        if any(known <= given_up for known in enough):
            continue
        candidate = candidate_of(
            recipe, {name: open_to[name][at] for name, at in zip(names, place, strict=True)}, matrix
        )
        rows = list(against_rows(candidate, matrix))
        yield candidate, [*unmet(candidate, request), *rows]
        if not rows:
            enough.append(given_up)
        movable = {name for clash in rows for name in hangs_on(clash, names)}
        if rows and any(pin.arch for pin in recipe.pin):
            movable.add("arch")
        for index in reversed(range(len(names))):
            if names[index] in movable and place[index] == 0:
                others = [(*place[:index], at, *place[index + 1 :]) for at in range(1, len(open_to[names[index]]))]
                queue += [other for other in others if other not in seen]
                seen.update(others)
