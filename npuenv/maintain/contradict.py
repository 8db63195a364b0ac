"""Where rows of the matrix contradict each other, and who has decided each: releases, recipes, what packages ask for.

A difference counts as decided where a row of `contradictions.toml` names its rows and speaks about its subject and
believes a side, or where a recipe that it concerns has a dispute or an override about that subject. Only recipes that
stand in the tables count: what follows from a rule alone, nobody has looked at.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from packaging.requirements import Requirement

from npuenv.core import versions
from npuenv.core.messages import Message
from npuenv.core.shellwords import ARCHES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npuenv.matrix.rows import Built, Contradiction, Recipe, ReleaseImage, TorchNpu, TritonAscend, VllmAscend
    from npuenv.matrix.tables import Matrix


# A side is believed, with a reason; both sides are written down, and the evidence does not decide; nobody has.
Standing = Literal["settled", "open", "unsettled"]


@dataclass(frozen=True, slots=True)
class RowConflict:
    """Two statements of the matrix that cannot both hold."""

    kind: str  # stable, like "policy-torch-npu"
    rows: tuple[str, ...]  # ids of the rows it lies between, the one that is asked about first
    subjects: tuple[str, ...]  # what it is about: normalised distribution names, or "cann"
    says: Message
    standing: Standing = "unsettled"
    by: tuple[str, ...] = ()  # ids of the contradictions and recipes that speak about it


def find_contradictions(matrix: Matrix) -> tuple[RowConflict, ...]:
    """Every contradiction between the rows, releases first, with its standing."""
    return tuple(_judge(each, matrix) for each in (*_release_differences(matrix), *_recipe_differences(matrix)))


def _judge(found: RowConflict, matrix: Matrix) -> RowConflict:
    about = [each for each in matrix.contradictions if set(found.rows) <= set(each.rows)]
    written = [each for each in about if _names(each.about, found)]
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
    tables, named = ({row.partition(".")[0] for row in rows} for rows in (found.rows, ids.intersection(found.rows)))
    return found.rows[0] == recipe.id or tables == named


def _decides(recipe: Recipe, found: RowConflict) -> bool:
    overruled = {versions.requirement_name(each.requirement) for each in recipe.override}
    return any(_names(each.about, found) for each in recipe.dispute) or not overruled.isdisjoint(found.subjects)


def _release_differences(matrix: Matrix) -> Iterator[RowConflict]:
    """Where the policy table, the metadata, the images and the partners of each vllm-ascend release differ."""
    for row in matrix.vllm_ascend:
        yield from _policy(row, matrix)
        for image in _distinct(row.image):
            yield from _image(row, image, matrix)
            yield from _wheels(row, image, matrix)
        yield from _partner(row, matrix)


def _distinct(images: Iterable[ReleaseImage]) -> Iterator[ReleaseImage]:
    """The images that differ in what is compared here, each with all the hardware it is built for."""
    groups: dict[tuple[str, str, str], list[ReleaseImage]] = {}
    for image in images:
        groups.setdefault((image.cann, image.python, image.torch_npu), []).append(image)
    for group in groups.values():
        yield replace(group[0], hardware=tuple(name for image in group for name in image.hardware))


def _difference(kind: str, rows: tuple[str, ...], subjects: tuple[str, ...], **args: object) -> RowConflict:
    return RowConflict(kind, rows, subjects, Message(f"matrix.found-{kind}", {"row": rows[0], **args}))


def _policy(row: VllmAscend, matrix: Matrix) -> Iterator[RowConflict]:
    """The policy table against the metadata."""
    required = row.requirement("torch-npu")
    if row.torch_npu and required and not versions.accepts(required, row.torch_npu):
        npu = matrix.torch_npu_row(versions.exact(required))
        rows = (row.id, npu.id) if npu else (row.id,)
        yield _difference("policy-torch-npu", rows, ("torch-npu",), table=row.torch_npu, requires=required)
    npu = matrix.torch_npu_row(versions.exact(required) or row.torch_npu)
    if npu and row.requirement("torch") and not versions.accepts(row.requirement("torch"), npu.torch):
        args = {"requires": row.requirement("torch"), "torch": npu.torch, "torch_npu": npu.version}
        yield _difference("torch-npu-torch", (row.id, npu.id), ("torch", "torch-npu"), **args)
    triton = row.requirement("triton-ascend")
    if row.triton_ascend and triton and not versions.accepts(triton, row.triton_ascend):
        args = {"table": row.triton_ascend, "requires": triton}
        yield _difference("policy-triton-ascend", (row.id,), ("triton-ascend",), **args)


def _image(row: VllmAscend, image: ReleaseImage, matrix: Matrix) -> Iterator[RowConflict]:
    """One of the release's images against its table, its metadata and what its parts were published for."""
    where = ", ".join(image.hardware)
    cann = matrix.cann_row(image.cann)
    if row.cann and versions.cann(row.cann) != versions.cann(image.cann):
        rows = (row.id, *(each.id for each in (matrix.cann_row(row.cann), cann) if each))
        yield _difference("image-cann", rows, ("cann",), table=row.cann, image=image.cann, hardware=where)
    required = row.requirement("torch-npu")
    if image.torch_npu and required and not versions.accepts(required, image.torch_npu):
        args = {"image": image.torch_npu, "requires": required, "hardware": where}
        yield _difference("image-torch-npu", (row.id,), ("torch-npu",), **args)
    npu = matrix.torch_npu_row(image.torch_npu or versions.exact(row.requirement("torch-npu")) or row.torch_npu)
    if npu and not _is_paired(npu, image.cann):
        rows = (row.id, npu.id, *((cann.id,) if cann else ()))
        yield _unpaired(npu, image.cann, rows)


def _unpaired(npu: TorchNpu, cann: str, rows: tuple[str, ...]) -> RowConflict:
    args = {"torch_npu": npu.version, "cann": cann, "has": ", ".join(_paired_with(npu))}
    return _difference("torch-npu-cann", rows, ("torch-npu", "cann"), **args)


def _wheels(row: VllmAscend, image: ReleaseImage, matrix: Matrix) -> Iterator[RowConflict]:
    """Whether what the release asks for exists for its image's Python, where its wheels were listed, and its CANN."""
    npu = matrix.torch_npu_row(image.torch_npu or versions.exact(row.requirement("torch-npu")))
    for arch in ARCHES if npu and npu.index == "default" else ():
        if npu and image.python not in npu.pythons(arch):
            args = {"package": f"torch-npu {npu.version}", "python": image.python, "arch": arch}
            yield _difference("no-wheel", (row.id, npu.id), ("torch-npu",), **args)
    triton = matrix.triton_ascend_row(versions.exact(row.requirement("triton-ascend")))
    # No triton runs on some generations: their images take it out again.
    if triton is None or not set(triton.hardware) & set(image.hardware):
        return
    yield from _triton_on(triton, image.cann, row.id)
    for arch in ARCHES:
        if image.python not in triton.python or arch not in triton.arch:
            args = {"package": f"triton-ascend {triton.version}", "python": image.python, "arch": arch}
            yield _difference("no-wheel", (row.id, triton.id), ("triton-ascend",), **args)


def _partner(row: VllmAscend, matrix: Matrix) -> Iterator[RowConflict]:
    """Packages for which vllm-ascend and its vllm ask for ranges that never meet."""
    own, vllm = matrix.built_row("vllm-ascend", row.version), matrix.built_row("vllm", row.vllm)
    if own is None or vllm is None:
        return
    for python in dict.fromkeys(image.python for image in row.image):
        mine, theirs = _asked_for(own, python), _asked_for(vllm, python)
        for name in sorted(mine.keys() & theirs.keys()):
            if not versions.overlap(mine[name], theirs[name]):
                args = {"package": name, "own": mine[name], "vllm": row.vllm, "theirs": theirs[name], "python": python}
                yield _difference("vllm-against-vllm-ascend", (row.id,), (name,), **args)


def _recipe_differences(matrix: Matrix) -> Iterator[RowConflict]:
    """Where the recipes of the tables contradict themselves, the rows, or what their components ask for."""
    for recipe in matrix.recipes:
        pins = {pin.name: pin.version for pin in recipe.pin}
        yield from _own_ranges(recipe, pins)
        yield from _pairs(recipe, pins, matrix)
        yield from _components(recipe, pins, matrix)


def _own_ranges(recipe: Recipe, pins: Mapping[str, str]) -> Iterator[RowConflict]:
    asked = [(each.name, each.spec, each.source) for each in recipe.range]
    asked += [(*_named(Requirement(text)), recipe.source) for text in recipe.requirements]
    for name, spec, source in asked:
        if name in pins and not versions.accepts(spec, pins[name]):
            args = {"package": name, "pin": pins[name], "requires": spec, "source": source}
            yield _difference("recipe-range", (recipe.id,), (name,), **args)


def _pairs(recipe: Recipe, pins: Mapping[str, str], matrix: Matrix) -> Iterator[RowConflict]:
    """The pins against the rows that say which versions belong together."""
    npu, cann = matrix.torch_npu_row(pins.get("torch-npu", "")), matrix.cann_row(recipe.cann) if recipe.cann else None
    if npu and cann and not _is_paired(npu, recipe.cann):
        yield _unpaired(npu, recipe.cann, (recipe.id, npu.id, cann.id))
    triton = matrix.triton_ascend_row(pins.get("triton-ascend", ""))
    if triton and recipe.cann:
        yield from _triton_on(triton, recipe.cann, recipe.id)
    for name, version, row_id in _expected(pins, matrix):
        if name in pins and not versions.accepts(f"=={version}", pins[name]):
            args = {"package": name, "pin": pins[name], "partner": version}
            yield _difference("recipe-pair", (recipe.id, row_id), (name,), **args)


def _triton_on(triton: TritonAscend, cann: str, row: str) -> Iterator[RowConflict]:
    """A triton-ascend on a CANN of another series than those it was published for."""
    series = {versions.cann(each).series for each in triton.cann}
    if series and versions.cann(cann).series not in series:
        args = {"triton_ascend": triton.version, "cann": cann, "has": triton.cann}
        yield _difference("triton-ascend-cann", (row, triton.id), ("triton-ascend", "cann"), **args)


def _expected(pins: Mapping[str, str], matrix: Matrix) -> Iterator[tuple[str, str, str]]:
    """What a pin's partners must be: name, version, the row that says so."""
    npu = matrix.torch_npu_row(pins.get("torch-npu", ""))
    if npu:
        yield "torch", npu.torch, npu.id
    release = matrix.vllm_ascend_row(pins.get("vllm-ascend", ""))
    if release:
        yield "vllm", release.vllm, release.id
    companion = matrix.companion_row(pins.get("torch", ""))
    if companion:
        yield "torchvision", companion.torchvision, companion.id
        yield "torchaudio", companion.torchaudio, companion.id


def _components(recipe: Recipe, pins: Mapping[str, str], matrix: Matrix) -> Iterator[RowConflict]:
    """The pins, and the overrides, against what the components built from repositories ask for."""
    for git in recipe.git:
        row = matrix.built_row(git.name, pins.get(git.name) or git.ref.removeprefix("v"))
        if row is None:
            continue
        asked = _asked_for(row, recipe.python[0])
        for name in sorted(asked.keys() & pins.keys()):
            if not versions.accepts(asked[name], pins[name]):
                args = {"package": name, "pin": pins[name], "who": f"{row.name} {row.version}", "requires": asked[name]}
                yield _difference("recipe-requires", (recipe.id,), (name,), **args)
        for override in recipe.override:
            if override.does == "replace" and override.package == git.name:
                filled = override.requirement  # "torch=={torch}" -> "torch==2.8.0"
                for pin, version in pins.items():
                    filled = filled.replace(f"{{{pin}}}", version)
                name, spec = _named(Requirement(filled))
                if name in asked and versions.specifier(spec) == versions.specifier(asked[name]):
                    args = {"package": git.name, "requirement": f"{name}{spec}"}
                    yield _difference("pointless-override", (recipe.id,), (), **args)


@functools.lru_cache(maxsize=512)
def _asked_for(row: Built, python: str) -> Mapping[str, str]:
    """Name -> specifier of what a package asks for on a Python on Linux, whatever the architecture."""
    found: dict[str, list[str]] = {}
    for text in row.requires:
        requirement = Requirement(text)
        marker = requirement.marker
        environments = (versions.marker_environment(arch, python) for arch in ARCHES)
        if marker is None or any(marker.evaluate(each) for each in environments):
            name, spec = _named(requirement)
            found.setdefault(name, []).append(spec)
    return {name: ",".join(filter(None, specs)) for name, specs in found.items()}


def _named(requirement: Requirement) -> tuple[str, str]:
    return versions.normalised(requirement.name), str(requirement.specifier)


def _is_paired(row: TorchNpu, cann: str) -> bool:
    """Whether a torch_npu row names a CANN: as its pair, in a compatible set, or as others pair it."""
    return any(versions.covers_cann(each, cann) for each in _paired_with(row))


def _paired_with(row: TorchNpu) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in (row.cann, *row.cann_unofficial, *row.cann_compatible) if each))
