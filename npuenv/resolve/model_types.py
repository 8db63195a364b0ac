"""Whether the transformers version of a stack can load a model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import ModelType, Recipe


def missing_type(name: str, transformers: str | None, framework: str, matrix: Matrix) -> Message | None:
    """A message that a release of transformers is older than the models in a stack's or a model's name.

    It names the framework's stacks that can load them, those with that name first. None if it is not older, if no row
    matches the name, or if no release is pinned.
    """
    row = _type_of(name, matrix)
    if row is None or transformers is None or _has(transformers, row):
        return None
    able = [each for each in matrix.recipes if each.framework == framework and _has(_pinned(each), row)]
    named = [each for each in able if _type_of(each.id, matrix) is row]
    stacks = tuple(each.id for each in named or able)
    elsewhere = Message("resolve.model-elsewhere", {"stacks": stacks}) if stacks else Message("resolve.model-nowhere")
    args = {"has": transformers, "model": row.family, "since": row.since, "elsewhere": elsewhere}
    return Message("resolve.note-model-type", args)


def _type_of(name: str, matrix: Matrix) -> ModelType | None:
    plain = name.casefold().replace("_", "-")
    return next((row for row in matrix.model_types if re.search(row.pattern, plain)), None)


def _has(transformers: str | None, row: ModelType) -> bool:
    return transformers is not None and versions.accepts(f">={row.since}", transformers)


def _pinned(recipe: Recipe) -> str | None:
    return next((pin.version for pin in recipe.pin if pin.name == "transformers"), None)
