"""Why a stack has this release of its framework and not the newest one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from npuenv.core.messages import Message
from npuenv.matrix.release_stacks import all_recipes, recipe_named
from npuenv.resolve import resolve
from npuenv.resolve.types import Conflict

if TYPE_CHECKING:
    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.types import Request, Stack


def newer_release(stack: Stack, request: Request, matrix: Matrix) -> Message | None:
    """The clash with the newest release, or a message that it fits too; None if this is the newest, or a commit.

    Raises: BadInput for an unknown name in the request.
    """
    own = recipe_named(stack.name, matrix)
    release = _release(own) if own else None
    if own is None or release is None:
        return None
    others = [each for each in all_recipes(matrix) if each.framework == own.framework and not each.lacks]
    newer = [(found, each) for each in others if (found := _release(each)) is not None and found > release]
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


def _release(recipe: Recipe) -> Version | None:
    """The version of a release; None for a commit, a branch or a release candidate."""
    try:
        version = Version(recipe.release)
    except InvalidVersion:
        return None
    return None if version.is_prerelease else version
