"""The contradictions between the rows of the matrix, and who has decided each.

A difference counts as decided where a row of `contradictions.toml` names its rows and speaks about its subject and
believes a side, or where a recipe that it concerns has a dispute or an override about that subject. Only recipes that
stand in the tables count: what follows from a rule alone, nobody has looked at.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.maintain.compare import recipe_differences, release_differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.maintain.compare import RowConflict, Standing
    from npuenv.matrix.rows import Contradiction, Recipe
    from npuenv.matrix.tables import Matrix


def find_contradictions(matrix: Matrix) -> tuple[RowConflict, ...]:
    """Every contradiction between the rows, releases first, with its standing."""
    found = [*release_differences(matrix), *recipe_differences(matrix)]
    return tuple(_judge(each, matrix) for each in found)


def _judge(found: RowConflict, matrix: Matrix) -> RowConflict:
    written = [each for each in matrix.contradictions if _speaks_about(each, found)]
    deciding = [each for each in matrix.recipes if _concerns(each, found, matrix) and _decides(each, found)]
    by = tuple(each.id for each in (*written, *deciding))
    return replace(found, standing=_standing(found, written, deciding), by=by)


def _standing(found: RowConflict, written: Sequence[Contradiction], deciding: Sequence[Recipe]) -> Standing:
    """What is written down about the rows themselves outweighs what one recipe does about it."""
    if written:
        return "open" if any(each.believe == "open" for each in written) else "settled"
    if not deciding:
        return "unsettled"
    disputes = [each for recipe in deciding for each in recipe.dispute if _names(each.about, found)]
    return "open" if disputes and all(each.believe == "open" for each in disputes) else "settled"


def _speaks_about(row: Contradiction, found: RowConflict) -> bool:
    return set(found.rows) <= set(row.rows) and _names(row.about, found)


def _names(about: str, found: RowConflict) -> bool:
    """Whether a heading like "torch_npu of vllm-ascend 0.11.0" names what a difference is about."""
    words = re.findall(r"[a-z0-9][a-z0-9.+-]*", about.lower().replace("_", "-"))
    return any(subject in words for subject in found.subjects)


def _concerns(recipe: Recipe, found: RowConflict, matrix: Matrix) -> bool:
    """Whether a recipe rests on the rows that a difference lies between: on one of each table that it names."""
    pins = {pin.name: pin.version for pin in recipe.pin}
    rests_on = (
        matrix.vllm_ascend_row(pins.get("vllm-ascend", "")),
        matrix.torch_npu_row(pins.get("torch-npu", "")),
        matrix.triton_ascend_row(pins.get("triton-ascend", "")),
        matrix.cann_row(recipe.cann) if recipe.cann else None,
    )
    ids = {recipe.id, *(row.id for row in rests_on if row)}
    if found.rows[0] not in ids:
        return False
    tables = {row.partition(".")[0]: False for row in found.rows}
    tables.update({row.partition(".")[0]: True for row in found.rows if row in ids})
    return found.rows[0] == recipe.id or all(tables.values())


def _decides(recipe: Recipe, found: RowConflict) -> bool:
    overruled = {versions.requirement_name(each.requirement) for each in recipe.override}
    return any(_names(each.about, found) for each in recipe.dispute) or not overruled.isdisjoint(found.subjects)
