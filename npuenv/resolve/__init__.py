"""Resolves a request against the matrix to a Stack or a Conflict; each pin says why, and why not newer.

Reads the matrix only: no network, no machine. `npuenv.lock` resolves the Python packages of a stack.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.resolve.candidate import by_preference, is_asked_for
from npuenv.resolve.names import checked, stack_names
from npuenv.resolve.release_stacks import all_recipes, recipe_named
from npuenv.resolve.search import evaluate, first_fit
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
    """The preferred stack that meets a request, or the conflict that prevents it.

    Preferred: the requested CANN, else the newest; NPU stacks before CPU ones; then the published platform.
    Raises: BadInput for an unknown name, and for a request too empty to choose by.
    """
    wanted = checked(request, matrix)
    candidate = _of_named(wanted, matrix)
    if candidate is not None:
        return build(candidate, wanted, matrix)
    asked, others = by_preference(wanted, matrix)
    candidate = first_fit(asked, wanted, matrix)
    if candidate is not None:
        stack = build(candidate, wanted, matrix)
        moved = _moved_by_pins(candidate, asked, wanted, matrix) if wanted.pins else None
        return stack if moved is None else replace(stack, notes=(moved, *stack.notes))
    return _why_not(wanted, asked, others, matrix)


def _of_named(wanted: Request, matrix: Matrix) -> Candidate | None:
    """The candidate of the stack that a request names, without building the other stacks."""
    recipe = recipe_named(wanted.stack, matrix) if wanted.stack else None
    return first_fit((recipe,), wanted, matrix) if recipe and is_asked_for(recipe, wanted) else None


def _moved_by_pins(candidate: Candidate, asked: list[Recipe], wanted: Request, matrix: Matrix) -> Message | None:
    """A note that another stack would be chosen without the user's pins, with its first clash; None otherwise."""
    usual = first_fit(asked, replace(wanted, pins={}), matrix)
    if usual is None or usual.recipe.id == candidate.recipe.id:
        return None
    _, clashes = next(evaluate([usual.recipe], wanted, matrix))
    if not clashes:
        return None
    pins = tuple(f"{name}=={version}" for name, version in wanted.pins.items())
    args = {"stack": candidate.recipe.id, "usual": usual.recipe.id, "pins": pins, "why": clashes[0].says}
    return Message("resolve.note-moved", args)


def _why_not(wanted: Request, asked: list[Recipe], others: list[Recipe], matrix: Matrix) -> Conflict:
    """The conflict of a request that no candidate meets."""
    from npuenv.resolve.conflict import explain
    from npuenv.resolve.minimize import MAX_PINS, clashing_pins, fitting_pins
    from npuenv.resolve.suggestions import without_pins

    few = clashing_pins(asked, wanted, matrix) if len(wanted.pins) > MAX_PINS else wanted
    conflict = explain(list(evaluate(asked, few, matrix)), others, few, matrix, resolve)
    if few is wanted:
        return conflict
    enough = fitting_pins(asked, wanted, matrix)
    return replace(
        conflict, request=wanted, ways_out=() if enough is None else without_pins(wanted, enough, matrix, resolve)
    )


def published(matrix: Matrix) -> Iterator[tuple[Request, Stack | Conflict]]:
    """Every published stack, with the request that names it."""
    for request in published_requests(matrix):
        yield request, resolve(request, matrix)


def published_requests(matrix: Matrix) -> Iterator[Request]:
    """A request for every published stack on every hardware and architecture: an NPU stack on its published Python, a
    CPU stack on each of its Pythons.

    A vllm-ascend release is requested on both A2 and A3; where it was not built for one, the conflict says so. Stacks
    of torch_npu alone are left out.
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
