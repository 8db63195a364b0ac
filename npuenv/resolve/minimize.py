"""Conflicts of requests with many pins, such as a whole `pip freeze`.

With each pin taken or left there are more ways than can be looked at. So the pins are first cut down to a few that
clash by themselves, and those are explained. The way out leaves out pins that stand in the way, none of which can be
put back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.resolve.search import fitting, pins_in_the_way

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.types import Request

MOST = 6  # up to so many pins every way is looked at


def with_pins(request: Request, names: Iterable[str]) -> Request:
    """The request with these of its pins alone."""
    kept = set(names)
    return replace(request, pins={name: version for name, version in request.pins.items() if name in kept})


def few_that_clash(recipes: Sequence[Recipe], request: Request, matrix: Matrix) -> Request:
    """The request with a set of pins that clashes, and from which none can be left out. (QuickXplain, Junker 2004.)"""

    def fits(names: Sequence[str]) -> bool:
        return fitting(recipes, with_pins(request, names), matrix) is not None

    def shrink(kept: list[str], is_new: bool, rest: list[str]) -> list[str]:
        if is_new and not fits(kept):
            return []
        if len(rest) == 1:
            return rest
        half = len(rest) // 2
        first, second = rest[:half], rest[half:]
        of_second = shrink([*kept, *first], bool(first), second)
        return [*shrink([*kept, *of_second], bool(of_second), first), *of_second]

    names = sorted(request.pins)
    return with_pins(request, [] if not fits([]) else shrink([], False, names))


def most_that_fit(recipes: Sequence[Recipe], request: Request, matrix: Matrix) -> Request | None:
    """The request without pins that stand in the way, none of which can be put back; None where that is not enough."""
    dropped: list[str] = []
    kept = set(request.pins)
    while fitting(recipes, with_pins(request, kept), matrix) is None:
        found = pins_in_the_way(recipes, with_pins(request, kept), matrix) & kept
        if not found:
            return None
        dropped += sorted(found)
        kept -= found
    for name in dropped:
        if fitting(recipes, with_pins(request, {*kept, name}), matrix) is not None:
            kept.add(name)
    return with_pins(request, kept)
