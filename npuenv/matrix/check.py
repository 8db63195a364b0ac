"""References between matrix tables: every name of a row in another table must exist there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv import versions
from npuenv.matrix.load import dangling
from npuenv.matrix.tables import FRAMEWORK_FILES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.matrix.rows import Recipe
    from npuenv.matrix.tables import Matrix

_ROW_PINS = ("torch-npu", "vllm-ascend", "triton-ascend")


def check(matrix: Matrix) -> None:
    """Reads every table and follows every reference. Raises: BadInput naming file and row."""
    _order(matrix)
    for file, row, what, is_there in _all(matrix):
        if not is_there:
            raise dangling(f"{file}.toml", row, what)
    for name in ("settings", "unsupported", "limits", "companions", "built"):
        getattr(matrix, name)


def _order(matrix: Matrix) -> None:
    """Every CANN version must be readable as one, wherever it is named."""
    for row in matrix.cann:
        versions.cann(row.version)
    for npu in matrix.torch_npu:
        for text in (*filter(None, [npu.cann]), *npu.cann_unofficial):
            if not text.endswith(".X"):
                versions.cann(text)


def _all(matrix: Matrix) -> Iterator[tuple[str, str, str, bool]]:
    labels = {row.label for row in matrix.indexes} | {"default", ""}
    generations = {row.id for row in matrix.hardware}
    for npu in matrix.torch_npu:
        yield "torch_npu", npu.id, f"index {npu.index}", npu.index in labels
    for triton in matrix.triton_ascend:
        yield "triton_ascend", triton.id, f"index {triton.index}", triton.index in labels
        yield from (("triton_ascend", triton.id, name, name in generations) for name in triton.hardware)
    for image in matrix.images:
        yield from (("images", image.id, name, name in generations) for name in image.hardware)
        yield "images", image.id, f"CANN {image.cann}", matrix.cann_row(image.cann) is not None
    for file in FRAMEWORK_FILES:
        for recipe in matrix.recipes_of(file):
            yield from ((f"frameworks/{file}", recipe.id, what, is_there) for what, is_there in _recipe(matrix, recipe))


def _recipe(matrix: Matrix, recipe: Recipe) -> Iterator[tuple[str, bool]]:
    yield f"CANN {recipe.cann}", not recipe.cann or matrix.cann_row(recipe.cann) is not None
    pins = {pin.name: pin.version for pin in recipe.pin}
    found = (matrix.torch_npu_row, matrix.vllm_ascend_row, matrix.triton_ascend_row)
    for name, lookup in zip(_ROW_PINS, found, strict=True):
        yield f"{name} {pins.get(name, '')}", name not in pins or lookup(pins[name]) is not None
    for name in recipe.hardware:
        row = matrix.hardware_row(name)
        yield f"hardware {name}", row is not None
        yield f"soc {recipe.soc.get(name)}", row is not None and recipe.soc.get(name) in row.socs
    sources = {git.name for git in recipe.git}
    for step in recipe.step:
        if step.does == "git":
            yield from ((f"step {step.id}: {name}", name in sources) for name in step.what)
