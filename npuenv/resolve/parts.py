"""What a stack has besides its packages: git sources, settings, base image, notes, and what it rests on.

Among them: the wheels of vllm-ascend that are built for one generation of cards, whether the stack's transformers can
load a model, and the closest public run on cards.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import Version

from npuenv.core import versions
from npuenv.core.messages import Message
from npuenv.resolve.types import Candidate, GitSource, Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import ChipWheel, ModelType, PublicRun, Recipe, RecipeGit


def git_source(each: RecipeGit, candidate: Candidate, request: Request, matrix: Matrix) -> GitSource:
    """A repository at its tag or commit. A version other than the recipe's own changes the tag."""
    version = candidate.versions.get(each.name)
    own = next((pin.version for pin in candidate.recipe.pin if pin.name == each.name), None)
    ref = f"v{version}" if version != own else each.ref
    build_env = dict(each.build_env)
    if each.name == "vllm-ascend" and candidate.hardware:
        build_env["SOC_VERSION"] = candidate.recipe.soc.get(candidate.hardware, "")
    built = matrix.built_row(each.name, version or each.ref.removeprefix("v"))
    requires = built.requires if built else ()
    released = matrix.vllm_ascend_row(ref.removeprefix("v")) if each.name == "vllm-ascend" else None
    commit = released.commit if released and not each.moving else ""
    # Hardware that was only assumed decides nothing that fails on other hardware.
    wheel = _chip_wheel(each, ref, candidate, matrix) if request.hardware else None
    return GitSource(each.name, each.repo, ref, each.moving, build_env, each.how, requires, commit, wheel)


def _chip_wheel(source: RecipeGit, ref: str, candidate: Candidate, matrix: Matrix) -> ChipWheel | None:
    """The wheel of a component at a release's tag for a candidate's cards, Python, architecture and C library, or None.

    One whose hash is known comes first. The wheel has compiled code: it is only for the CANN and torch_npu that its
    release was built with.
    """
    version = candidate.versions.get(source.name)
    if source.moving or source.how != "install" or ref != f"v{version}":
        return None
    system = matrix.system_row(candidate.os) if candidate.os else None
    python = f"-cp{candidate.python.replace('.', '')}-"
    fitting = [
        row
        for row in matrix.chip_wheels
        if (row.name, row.version, row.hardware) == (source.name, version, candidate.hardware)
        and python in row.id
        and f"_{candidate.arch}" in row.id
        and versions.accepts(f">={row.glibc}", system.glibc if system else candidate.recipe.glibc)
    ]
    return max(fitting, key=lambda row: bool(row.sha256)) if fitting and _is_as_built(candidate, matrix) else None


def _is_as_built(candidate: Candidate, matrix: Matrix) -> bool:
    """Whether a candidate has the CANN and the torch_npu of its vllm-ascend release."""
    row = matrix.vllm_ascend_row(candidate.versions.get("vllm-ascend", ""))
    if row is None or candidate.cann is None:
        return False
    cann = {versions.cann(text) for text in (row.cann, *(image.cann for image in row.image)) if text}
    torch_npu = versions.exact(row.requirement("torch-npu")) or row.torch_npu
    has = candidate.versions.get("torch-npu", "")
    is_torch_npu = bool(torch_npu and has) and Version(torch_npu).release == Version(has).release
    return versions.cann(candidate.cann) in cann and is_torch_npu


def environment(candidate: Candidate, matrix: Matrix) -> Mapping[str, str]:
    """Settings for every process of the framework. Those for one role belong in the launch files."""
    env: dict[str, str] = {}
    for row in matrix.settings:
        is_for_all = row.role == "all" and candidate.recipe.framework in row.frameworks
        if is_for_all and _is_read(row.since, row.until, candidate):
            env[row.name] = row.value
    system = matrix.system_row(candidate.os) if candidate.os else None
    arch = {"aarch64": "arm64", "x86_64": "amd64"}.get(candidate.arch, candidate.arch)
    # Debian names a package's folder after the architecture; dnf uses the same folder on all.
    ending = "" if system and system.packages == "dnf" else f"-{arch}"
    own = {name: value.replace("-{debian_arch}", ending) for name, value in candidate.recipe.env.items()}
    return {**env, **own}


def _is_read(since: str, until: str, candidate: Candidate) -> bool:
    """Whether the stack's vllm-ascend version reads a setting."""
    version = candidate.versions.get("vllm-ascend")
    if version is None:
        return not since
    is_too_old = since and not versions.accepts(f">={since}", version)
    return not is_too_old and not (until and versions.accepts(f">={until}", version))


def base_image(candidate: Candidate, matrix: Matrix) -> str | None:
    """The published base image for the platform, in the recipe's own registry first; None if nobody publishes one."""
    chip = matrix.hardware_row(candidate.hardware) if candidate.hardware else None
    if chip is None or candidate.cann is None:
        return None
    recipe = candidate.recipe
    fitting = [
        row
        for row in matrix.images
        if versions.cann(row.cann) == versions.cann(candidate.cann)
        and chip.id in row.hardware
        and (candidate.os or "") in row.os
        and row.python == candidate.python
    ]
    fitting.sort(key=lambda row: (row.repository != recipe.image_repository, row.suffix != recipe.image_suffix))
    if not fitting:
        return None
    row = fitting[0]
    return f"{row.repository}:{row.tag}-{chip.image_chip}-{candidate.os}-py{row.python}{row.suffix}"


def notes(
    candidate: Candidate, request: Request, matrix: Matrix, image: str | None, sources: Sequence[GitSource]
) -> Iterator[Message]:
    recipe = candidate.recipe
    missing = missing_model_type(recipe.id, candidate.versions.get("transformers"), recipe.framework, matrix)
    if missing is not None:
        yield missing
    yield from (Message(key) for key in recipe.notes)
    for each in recipe.dispute:
        args: dict[str, object] = {"about": each.about, "one": each.one, "one_source": each.one_source}
        args |= {"other": each.other, "other_source": each.other_source, "why": Message(each.why)}
        yield Message(f"resolve.dispute-{each.believe}", args)
    if not recipe.hardware:
        asked = {name: getattr(request, name) for name in ("hardware", "cann", "driver")}
        if given := tuple(f"--{name} {value}" for name, value in asked.items() if value):
            yield Message("resolve.note-no-npu", {"options": given, "stack": recipe.id})
        return
    if request.hardware is None:
        yield Message("resolve.note-assumed-hardware", {"hardware": candidate.hardware, "has": recipe.hardware})
    if image is None:
        platform = {"hardware": candidate.hardware, "os": candidate.os, "python": candidate.python}
        yield Message("resolve.note-no-image", {"cann": candidate.cann, **platform})
    yield from _image_digest_notes(image, matrix)
    yield from _chip_wheel_notes(sources)
    if candidate.os not in recipe.os:
        yield Message("resolve.note-other-os", {"os": candidate.os, "has": recipe.os})
    if candidate.python not in recipe.python:
        yield Message("resolve.note-other-python", {"python": candidate.python, "has": recipe.python})
    yield from _driver_notes(candidate, matrix)


def _driver_notes(candidate: Candidate, matrix: Matrix) -> Iterator[Message]:
    row = matrix.cann_row(candidate.cann or "")
    if row is None or candidate.driver is None:
        return
    if not row.driver_since:
        yield Message("resolve.note-driver-unstated", {"cann": row.version, "driver": candidate.driver})
    elif row.driver_until and versions.driver(candidate.driver).series > versions.driver(row.driver_until).series:
        args = {"cann": row.version, "until": row.driver_until, "driver": candidate.driver}
        yield Message("resolve.note-driver-newer", args)


def _chip_wheel_notes(sources: Sequence[GitSource]) -> Iterator[Message]:
    """What an installation takes from a wheel for the requested hardware, and which wheel has no known hash."""
    for wheel in filter(None, (source.wheel for source in sources)):
        args = {"name": wheel.name, "file": wheel.id, "hardware": wheel.hardware, "sha256": wheel.sha256}
        index = Message("plan.default-index") if wheel.index == "default" else wheel.index
        key = "resolve.note-chip-wheel" if wheel.sha256 else "resolve.note-chip-wheel-unhashed"
        yield Message(key, {**args, "index": index})


def _image_digest_notes(image: str | None, matrix: Matrix) -> Iterator[Message]:
    """The digest that others saw the base image have."""
    for digest in (row for row in matrix.image_digests if row.id == image):
        args = {"image": digest.id, "digest": digest.digest, "date": digest.date, "source": digest.source}
        yield Message("resolve.note-image-digest" if digest.date else "resolve.note-image-digest-undated", args)


def missing_model_type(name: str, transformers: str | None, framework: str, matrix: Matrix) -> Message | None:
    """A message that a release of transformers is older than the models in a stack's or a model's name.

    It names the framework's stacks that can load them, those with that name first. None if it is not older, if no row
    matches the name, or if no release is pinned.
    """
    row = _model_type_of(name, matrix)
    if row is None or transformers is None or _can_load(transformers, row):
        return None
    able = [each for each in matrix.recipes if each.framework == framework and _can_load(_transformers_of(each), row)]
    named = [each for each in able if _model_type_of(each.id, matrix) is row]
    stacks = tuple(each.id for each in named or able)
    elsewhere = Message("resolve.model-elsewhere", {"stacks": stacks}) if stacks else Message("resolve.model-nowhere")
    args = {"has": transformers, "model": row.family, "since": row.since, "elsewhere": elsewhere}
    return Message("resolve.note-model-type", args)


def _model_type_of(name: str, matrix: Matrix) -> ModelType | None:
    plain = name.casefold().replace("_", "-")
    return next((row for row in matrix.model_types if re.search(row.pattern, plain)), None)


def _can_load(transformers: str | None, row: ModelType) -> bool:
    return transformers is not None and versions.accepts(f">={row.since}", transformers)


def _transformers_of(recipe: Recipe) -> str | None:
    return next((pin.version for pin in recipe.pin if pin.name == "transformers"), None)


def public_run(candidate: Candidate, matrix: Matrix) -> PublicRun | None:
    """The public run that is closest to a candidate; None where none is known.

    It has the same generation of cards and CANN series, the same vllm-ascend or release of the framework, and no other
    torch, torch_npu, vllm or vllm-ascend. One that did not fail comes first, then the one with most versions in common.
    """
    if candidate.cann is None:
        return None
    recipe = candidate.recipe
    series = versions.cann(candidate.cann).series
    pinned = {name: version.split("+")[0] for name, version in candidate.versions.items()}
    pinned.setdefault(recipe.framework, recipe.release)
    engines = {name: pinned[name] for name in ("torch", "torch-npu", "vllm", "vllm-ascend") if name in pinned}
    deciding = {name: pinned[name] for name in ("vllm-ascend", recipe.framework) if name in pinned}
    found = [
        run
        for run in matrix.runs
        if run.hardware == candidate.hardware
        and versions.cann(run.cann).series == series
        and any(run.packages.get(name) == version for name, version in deciding.items())
        and all(run.packages.get(name, version) == version for name, version in engines.items())
    ]
    return max(
        found,
        key=lambda run: (not run.failed, len(run.packages.items() & pinned.items()), run.date),
        default=None,
    )


def sources_read(candidate: Candidate, matrix: Matrix) -> tuple[str, str]:
    """The days on which the oldest and the youngest of the deciding rows were read."""
    days = [row.seen for row in (candidate.recipe, *matrix.version_rows(candidate.versions, candidate.cann))]
    return min(days), max(days)
