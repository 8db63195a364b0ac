"""What must hold between matrix tables and within each row, beyond the types of the fields.

Names of other rows must exist, ids are unique over all tables, dates are dates and not younger than the day the row
was read, every sentence a row names is in the catalogues, and versions that are listed in order are in order.
"""

from __future__ import annotations

import datetime
import itertools
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import LANGUAGES, Message, say
from npuenv.matrix import error_patterns
from npuenv.matrix.load import dangling
from npuenv.matrix.tables import FRAMEWORK_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from npuenv.matrix.load import Row
    from npuenv.matrix.rows import Recipe
    from npuenv.matrix.tables import Matrix

_TABLES = (
    "hardware", "cann", "systems", "torch_npu", "vllm_ascend", "triton_ascend", "companions", "images", "indexes",
    "settings", "unsupported", "limits", "clashes", "npu_faults", "variables", "contradictions", "system_packages",
    "cann_files", "wheel_hashes", "probes", "models", "model_types", "container_places", "container_cards",
    "roll_releases", "roll_recipes", "launch_recipes", "launch_keys", "upstream", "runs", "image_digests",
    "chip_wheels", "requires_python",
)  # fmt: skip
# The fields that hold a day, beside `seen`.
_DAYS = ("published", "released", "date")

Table = tuple[str, "tuple[Row, ...]"]  # file without its ending, rows


def check(matrix: Matrix) -> None:
    """Reads every table and follows every reference. Raises: BadInput naming file and row."""
    tables = list(tables_of(matrix))
    _versions(matrix)
    for file, row, what, is_there in _references(matrix):
        if not is_there:
            raise dangling(f"{file}.toml", row, what)
    for problem in itertools.chain(_ids(tables), _days(tables), _sources(tables), _sentences(tables), _order(matrix)):
        raise problem


def tables_of(matrix: Matrix) -> Iterator[Table]:
    """Every table with the name of its file. The rows of the folder `built` count as one table."""
    yield from ((name, getattr(matrix, name)) for name in _TABLES)
    yield "built", matrix.built
    yield from ((f"frameworks/{file}", matrix.recipes_of(file)) for file in FRAMEWORK_FILES)
    folder = matrix.folder / "error_patterns"
    if folder.is_dir():  # the tables that a test makes up have none
        yield from ((f"error_patterns/{name}", rows) for name, rows in error_patterns.tables_of(folder).items())
    if (matrix.folder / "keys").is_dir():
        yield from (("keys/choices", matrix.choices), ("keys/bounds", matrix.bounds), ("keys/moved", matrix.moved_keys))
        yield "keys/refused", matrix.refused_values


def _versions(matrix: Matrix) -> None:
    """Every CANN version must be readable as one, wherever it is named. Raises: BadInput."""
    named = [row.version for row in matrix.cann]
    named += [text for npu in matrix.torch_npu for text in (npu.cann, *npu.cann_unofficial, *npu.cann_compatible)]
    named += [text for row in matrix.vllm_ascend for text in (row.cann, *(image.cann for image in row.image))]
    named += [row.cann for row in matrix.runs]
    for text in filter(None, named):
        versions.cann(text.removesuffix(".X"))
    of_packages = [row.version for row in matrix.torch_npu] + [row.version for row in matrix.vllm_ascend]
    for text in (*of_packages, *(row.version for row in matrix.triton_ascend)):
        versions.python_version(text)


def _ids(tables: Iterable[Table]) -> Iterator[BadInput]:
    """Ids are unique over all tables: a reference names a row without its table."""
    seen: dict[str, str] = {}
    for file, rows in tables:
        for row in rows:
            if seen.setdefault(row.id, file) != file:
                yield _wrong("duplicate", file, row.id, what=row.id)


def _days(tables: Iterable[Table]) -> Iterator[BadInput]:
    for file, rows in tables:
        for row, name in itertools.product(rows, ("seen", *_DAYS)):
            day = str(getattr(row, name, ""))
            if day and not _is_day(day):
                yield _wrong("not-a-day", file, row.id, what=f"{name} = {day!r}")
            elif day > row.seen:
                yield _wrong("after-seen", file, row.id, what=f"{name} = {day!r}", seen=row.seen)


def _is_day(text: str) -> bool:
    """Whether a text is a day as YYYY-MM-DD, the only form that sorts as text."""
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _sources(tables: Iterable[Table]) -> Iterator[BadInput]:
    """Every field that holds a source holds one, in the parts of a recipe too."""
    for file, rows in tables:
        for row, part, name, value in _fields(rows):
            is_source = name == "source" or name.endswith("_source")
            if is_source and not str(value).strip():
                yield _wrong("no-source", file, row.id, what=f"{part}{name}")


def _sentences(tables: Iterable[Table]) -> Iterator[BadInput]:
    """Every sentence that a row names is in both catalogues and says something without arguments."""
    named = {}
    for file, rows in tables:
        for row, _, name, value in _fields(rows):
            keys = (value,) if name == "why" and value else value if name == "notes" else ()
            named.update(dict.fromkeys(keys, (file, row.id)))
    for key, (file, row_id) in named.items():
        if not all(_is_said(key, lang) for lang in LANGUAGES):
            yield _wrong("no-sentence", file, row_id, what=key)


def _is_said(key: str, lang: str) -> bool:
    try:
        return bool(say(Message(key), lang))
    except (KeyError, OSError):
        return False


def _fields(rows: Iterable[Row]) -> Iterator[tuple[Row, str, str, Any]]:
    """Each field of each row, then those of the values nested in it: row, path of the part, name, value."""
    for row in rows:
        for name, value in _values(row):
            yield row, "", name, value
            if isinstance(value, tuple) and value and hasattr(value[0], "__dataclass_fields__"):
                for at, each in enumerate(value, 1):
                    yield from ((row, f"{name}[{at}].", *own) for own in _values(each))


def _values(row: Any) -> Iterator[tuple[str, Any]]:
    return ((each.name, getattr(row, each.name)) for each in fields(row))


def _order(matrix: Matrix) -> Iterator[BadInput]:
    """Releases stand by version, oldest first: what is derived from them relies on it."""
    releases = [(row.id, row.version) for row in matrix.vllm_ascend]
    tritons = [(row.id, row.version) for row in matrix.triton_ascend]
    for file, rows in (("vllm_ascend", releases), ("triton_ascend", tritons)):
        for (_, one), (row_id, other) in itertools.pairwise(rows):
            if versions.python_version(one) >= versions.python_version(other):
                yield _wrong("not-in-order", file, row_id, what=other, after=one)


def _wrong(key: str, file: str, row: str, **args: str) -> BadInput:
    named = {"file": f"{file}.toml"}
    return BadInput(Message(f"matrix.{key}", {**named, "row": row, **args}), Message("matrix.hint", named))


def _references(matrix: Matrix) -> Iterator[tuple[str, str, str, bool]]:
    """Each name of another row: file, row, what is named, whether it is there."""
    labels = {row.label for row in matrix.indexes} | {"default", ""}
    generations = {row.id for row in matrix.hardware}
    for npu in matrix.torch_npu:
        yield "torch_npu", npu.id, f"index {npu.index}", npu.index in labels
    for triton in matrix.triton_ascend:
        yield "triton_ascend", triton.id, f"index {triton.index}", triton.index in labels
        yield from (("triton_ascend", triton.id, name, name in generations) for name in triton.hardware)
    for wheel in matrix.chip_wheels:
        yield "chip_wheels", wheel.id, f"index {wheel.index}", wheel.index in labels
        yield "chip_wheels", wheel.id, wheel.hardware, wheel.hardware in generations
    for image in matrix.images:
        yield from (("images", image.id, name, name in generations) for name in image.hardware)
        yield from (("images", image.id, name, matrix.system_row(name) is not None) for name in image.os)
        yield "images", image.id, f"CANN {image.cann}", matrix.cann_row(image.cann) is not None
    for place in matrix.container_places:
        yield from (("container_places", place.id, name, name in generations) for name in place.hardware)
    for cards in matrix.container_cards:
        yield "container_cards", cards.id, cards.hardware, cards.hardware in generations
    for unsupported in matrix.unsupported:
        yield from (("unsupported", unsupported.id, name, name in generations) for name in unsupported.hardware)
    yield from (("runs", run.id, run.hardware, run.hardware in generations) for run in matrix.runs)
    yield from _release_images(matrix)
    for file in FRAMEWORK_FILES:
        for recipe in matrix.recipes_of(file):
            yield from ((f"frameworks/{file}", recipe.id, what, is_there) for what, is_there in _recipe(matrix, recipe))
    known = {row.id for _, rows in tables_of(matrix) for row in rows}
    for contradiction in matrix.contradictions:
        yield from (("contradictions", contradiction.id, name, name in known) for name in contradiction.rows)


def _release_images(matrix: Matrix) -> Iterator[tuple[str, str, str, bool]]:
    for release in matrix.vllm_ascend:
        for image in release.image:
            named = [(f"CANN {image.cann}", matrix.cann_row(image.cann) is not None)]
            named += [(name, matrix.hardware_row(name) is not None) for name in image.hardware]
            named += [(name, matrix.system_row(name) is not None) for name in image.os]
            if image.torch_npu:
                named.append((f"torch-npu {image.torch_npu}", matrix.torch_npu_row(image.torch_npu) is not None))
            yield from (("vllm_ascend", release.id, what, is_there) for what, is_there in named)


def _recipe(matrix: Matrix, recipe: Recipe) -> Iterator[tuple[str, bool]]:
    rows_of: dict[str, Callable[[str], Row | None]] = {
        "torch-npu": matrix.torch_npu_row,
        "vllm-ascend": matrix.vllm_ascend_row,
        "triton-ascend": matrix.triton_ascend_row,
    }
    yield f"CANN {recipe.cann}", not recipe.cann or matrix.cann_row(recipe.cann) is not None
    for pin in recipe.pin:
        if pin.name in rows_of:
            yield f"{pin.name} {pin.version}", rows_of[pin.name](pin.version) is not None
    for name in recipe.hardware:
        row = matrix.hardware_row(name)
        yield f"hardware {name}", row is not None
        yield f"soc {recipe.soc.get(name)}", row is not None and recipe.soc.get(name) in row.socs
    yield from ((name, matrix.system_row(name) is not None) for name in recipe.os)
    yield from _steps(recipe)


def _steps(recipe: Recipe) -> Iterator[tuple[str, bool]]:
    """A step takes what the recipe has: its repositories by name, its packages by pin, range or requirement."""
    repositories = {git.name for git in recipe.git}
    packages = {pin.name for pin in recipe.pin} | {each.name for each in recipe.range}
    packages |= {versions.requirement_name(text) for text in recipe.requirements}
    leftovers = packages | {versions.normalised(each.package) for each in recipe.override}
    known = {"git": repositories, "pip": packages, "requirements": packages, "uninstall": leftovers}
    for step in recipe.step:
        if step.does in known:
            asked = ((name, versions.requirement_name(name)) for name in step.what)
            yield from ((f"step {step.id}: {what}", name in known[step.does]) for what, name in asked)
