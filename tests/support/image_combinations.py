"""Everything an image can be rendered for: stack, hardware and operating system with a published base image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.matrix.release_stacks import all_recipes
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe

# A stack of torch_npu alone is made when somebody asks; nobody publishes an image of one.
_NO_IMAGE = ("cpu", "torch-npu")


def combinations(matrix: Matrix) -> Iterator[Request]:
    """One request per combination, in the order of the recipes; the architecture is left open.

    A stack that lacks a part, and hardware that a release was not built for, still resolve to a conflict.
    """
    for recipe in all_recipes(matrix):
        if recipe.framework not in _NO_IMAGE:
            for hardware, system in _places(recipe, matrix):
                yield Request(stack=recipe.id, hardware=hardware, os=system)


def _places(recipe: Recipe, matrix: Matrix) -> list[tuple[str, str]]:
    """Hardware and operating systems of the base images with the recipe's CANN and one of its Pythons."""
    fitting = [
        row
        for row in matrix.images
        if recipe.cann and versions.cann(row.cann) == versions.cann(recipe.cann) and row.python in recipe.python
    ]
    found = {(hardware, system) for row in fitting for hardware in row.hardware for system in row.os}
    return sorted(place for place in found if place[0] in recipe.hardware)
