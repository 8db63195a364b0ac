"""Resolves a request against the matrix to a Stack or a Conflict; each pin says why, and why not newer.

Reads the matrix only: no network, no machine. `npuenv.lock` resolves the Python packages of a stack.
`newer_release` says what speaks against the newest release of a stack's framework.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from npuenv.core.messages import Message
from npuenv.matrix.release_stacks import all_recipes, recipe_named
from npuenv.resolve.request import checked
from npuenv.resolve.search import evaluate, fitting
from npuenv.resolve.stack import build
from npuenv.resolve.types import Conflict, Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.types import Candidate, Stack

__all__ = ["newer_release", "published", "published_requests", "resolve"]


def resolve(request: Request, matrix: Matrix) -> Stack | Conflict:
    """The preferred stack that meets a request, or the conflict that prevents it.

    Preferred: the requested CANN, else the newest; NPU stacks before CPU ones; then the published platform.
    Raises: BadInput for an unknown name, and for a request too empty to choose by.
    """
    request = checked(request, matrix)
    candidate = fitting(request, matrix)
    if candidate is None:
        from npuenv.resolve.conflict import why_not  # few requests need it

        return why_not(request, matrix)
    stack = build(candidate, request, matrix)
    moved = _moved_by_pins(candidate, request, matrix) if request.pins else None
    return stack if moved is None else replace(stack, notes=(moved, *stack.notes))


def _moved_by_pins(candidate: Candidate, request: Request, matrix: Matrix) -> Message | None:
    """A note that another stack would be chosen without the user's pins, with its first clash; None otherwise."""
    usual = fitting(replace(request, pins={}), matrix)
    if usual is None or usual.recipe.id == candidate.recipe.id:
        return None
    _, clashes = next(evaluate([usual.recipe], request, matrix))
    if not clashes:
        return None
    pins = tuple(f"{name}=={version}" for name, version in request.pins.items())
    args = {"stack": candidate.recipe.id, "usual": usual.recipe.id, "pins": pins, "why": clashes[0].says}
    return Message("resolve.note-moved", args)


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
        generations = recipe.hardware if recipe.id.endswith("-310p") else dict.fromkeys(("a2", "a3", *recipe.hardware))
        choices = generations if recipe.framework == "vllm-ascend" else recipe.hardware or (None,)
        pythons = recipe.python[:1] if recipe.hardware else recipe.python
        for arch, hardware, python in itertools.product(recipe.arch, choices, pythons):
            yield Request(stack=recipe.id, arch=arch, hardware=hardware, python=python)


def newer_release(stack: Stack, request: Request, matrix: Matrix) -> Message | None:
    """The clash with the newest release, or a message that it fits too; None if this is the newest, or a commit.

    Raises: BadInput for an unknown name in the request.
    """
    own = recipe_named(stack.name, matrix)
    release = _release_version(own) if own else None
    if own is None or release is None:
        return None
    others = [each for each in all_recipes(matrix) if each.framework == own.framework and not each.lacks]
    newer = [(found, each) for each in others if (found := _release_version(each)) is not None and found > release]
    if not newer:
        return None
    newest = max(found for found, _ in newer)
    recipe = next(each for found, each in newer if found == newest)
    args: dict[str, object] = {"framework": own.framework, "release": own.release, "newer": recipe.release}
    result = resolve(replace(request, stack=recipe.id, framework=None, release=None), matrix)
    if isinstance(result, Conflict):
        rules = tuple(each.says for each in result.clashes if each.rule != "request")
        return Message("resolve.newer-release-clashes", {**args, "why": rules or (result.clashes[0].says,)})
    return Message("resolve.newer-release-fits", {**args, "stack": recipe.id})


def _release_version(recipe: Recipe) -> Version | None:
    """The version of a release; None for a commit, a branch or a release candidate."""
    try:
        version = Version(recipe.release)
    except InvalidVersion:
        return None
    return None if version.is_prerelease else version
