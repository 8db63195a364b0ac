"""Reduces requests with many pins, such as a complete `pip freeze`, before they are explained.

Each pin can be used or dropped, which gives more candidates than can be evaluated. `clashing_pins` reduces the pins to
a minimal set that clashes by itself; that set is explained. `fitting_pins` is the suggestion: the request without the
blocking pins, none of which can be added back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.resolve.search import blocking_pins, first_fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.types import Request

MAX_PINS = 6  # with no more pins than this all combinations are evaluated


def with_pins(request: Request, names: Iterable[str]) -> Request:
    """The request with only the named pins."""
    keep = set(names)
    return replace(request, pins={name: version for name, version in request.pins.items() if name in keep})


def clashing_pins(recipes: Sequence[Recipe], request: Request, matrix: Matrix) -> Request:
    """The request with a minimal set of clashing pins: without any one of them it fits. (QuickXplain, Junker 2004.)"""

    def fits(names: Sequence[str]) -> bool:
        return first_fit(recipes, with_pins(request, names), matrix) is not None

    def shrink(fixed: list[str], is_new: bool, rest: list[str]) -> list[str]:
        if is_new and not fits(fixed):
            return []
        if len(rest) == 1:
            return rest
        half = len(rest) // 2
        first, second = rest[:half], rest[half:]
        of_second = shrink([*fixed, *first], bool(first), second)
        return [*shrink([*fixed, *of_second], bool(of_second), first), *of_second]

    names = sorted(request.pins)
    return with_pins(request, [] if not fits([]) else shrink([], False, names))


def fitting_pins(recipes: Sequence[Recipe], request: Request, matrix: Matrix) -> Request | None:
    """The request without its blocking pins, none of which can be added back; None if that is not enough."""
    dropped: list[str] = []
    remaining = set(request.pins)
    while first_fit(recipes, with_pins(request, remaining), matrix) is None:
        found = blocking_pins(recipes, with_pins(request, remaining), matrix) & remaining
        if not found:
            return None
        dropped += sorted(found)
        remaining -= found
    for name in dropped:
        if first_fit(recipes, with_pins(request, {*remaining, name}), matrix) is not None:
            remaining.add(name)
    return with_pins(request, remaining)
