"""Request and matrix to a Stack, or a Conflict; with why, and why not newer, for each pin.

It looks at the matrix alone: no network, no machine. The Python packages that follow from a stack are the lock's
business (`npuenv.lock`).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.resolve.candidate import by_preference, is_asked_for
from npuenv.resolve.names import checked, stack_names
from npuenv.resolve.release_stacks import all_recipes, recipe_named
from npuenv.resolve.search import fitting, judged
from npuenv.resolve.stack import build
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.candidate import Candidate
    from npuenv.resolve.types import Conflict, Stack

__all__ = ["published", "published_requests", "resolve", "stack_names"]


def resolve(request: Request, matrix: Matrix) -> Stack | Conflict:
    """The preferred stack that meets a request, or why there is none.

    Preferred: the CANN that was asked for, else the newest; NPU stacks before CPU ones; then the published platform.
    Raises: BadInput for a name that does not exist, and for a request that says nothing to go by.
    """
    wanted = checked(request, matrix)
    candidate = _of_named(wanted, matrix)
    if candidate is not None:
        return build(candidate, wanted, matrix)
    asked, others = by_preference(wanted, matrix)
    candidate = fitting(asked, wanted, matrix)
    if candidate is not None:
        stack = build(candidate, wanted, matrix)
        moved = _moved_by_pins(candidate, asked, wanted, matrix) if wanted.pins else None
        return stack if moved is None else replace(stack, notes=(moved, *stack.notes))
    return _why_not(wanted, asked, others, matrix)


def _of_named(wanted: Request, matrix: Matrix) -> Candidate | None:
    """The fitting candidate of the stack that a request names: the other stacks need not be put together then."""
    recipe = recipe_named(wanted.stack, matrix) if wanted.stack else None
    return fitting((recipe,), wanted, matrix) if recipe and is_asked_for(recipe, wanted) else None


def _moved_by_pins(candidate: Candidate, asked: list[Recipe], wanted: Request, matrix: Matrix) -> Message | None:
    """Says that another stack would have been taken without the user's pins, and what speaks against it with them."""
    usual = fitting(asked, replace(wanted, pins={}), matrix)
    if usual is None or usual.recipe.id == candidate.recipe.id:
        return None
    _, clashes = next(judged([usual.recipe], wanted, matrix))
    if not clashes:
        return None
    pins = tuple(f"{name}=={version}" for name, version in wanted.pins.items())
    args = {"stack": candidate.recipe.id, "usual": usual.recipe.id, "pins": pins, "why": clashes[0].says}
    return Message("resolve.note-moved", args)


def _why_not(wanted: Request, asked: list[Recipe], others: list[Recipe], matrix: Matrix) -> Conflict:
    """Why nothing that was asked for fits."""
    from npuenv.resolve.conflict import explain
    from npuenv.resolve.minimize import MOST, few_that_clash, most_that_fit
    from npuenv.resolve.suggestions import without_pins

    few = few_that_clash(asked, wanted, matrix) if len(wanted.pins) > MOST else wanted
    conflict = explain(list(judged(asked, few, matrix)), others, few, matrix, resolve)
    if few is wanted:
        return conflict
    enough = most_that_fit(asked, wanted, matrix)
    return replace(
        conflict, request=wanted, ways_out=() if enough is None else without_pins(wanted, enough, matrix, resolve)
    )


def published(matrix: Matrix) -> Iterator[tuple[Request, Stack | Conflict]]:
    """Every published stack, with the request that names it."""
    for request in published_requests(matrix):
        yield request, resolve(request, matrix)


def published_requests(matrix: Matrix) -> Iterator[Request]:
    """What names every published stack on every hardware and architecture: an NPU stack on its published Python, a CPU
    stack on all of its Pythons.

    A vllm-ascend release is asked for on A2 and A3 whether or not it was built for both: where it was not, the conflict
    says so. Stacks of torch_npu alone are left out; they are made when somebody asks.
    """
    for recipe in all_recipes(matrix):
        if recipe.framework == "torch-npu":
            continue
        wanted = recipe.hardware if recipe.id.endswith("-310p") else dict.fromkeys((*_TRAINING, *recipe.hardware))
        places = wanted if recipe.framework == "vllm-ascend" else recipe.hardware or (None,)
        pythons = recipe.python[:1] if recipe.hardware else recipe.python
        for arch, hardware, python in itertools.product(recipe.arch, places, pythons):
            yield Request(stack=recipe.id, arch=arch, hardware=hardware, python=python)


_TRAINING = ("a2", "a3")
