"""Builds the Stack of a candidate without clashes: pins with reasons, overrides, install order, image, notes.

Among them: the wheels of vllm-ascend that are built for one generation of cards (`chip_wheel`), and whether the stack's
transformers can load a model (`missing_type`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import Version

from npuenv.core import versions
from npuenv.core.messages import Message
from npuenv.matrix.release_stacks import pairing, partner_overrides
from npuenv.matrix.rows import RecipeGit, RecipeOverride, RecipePin
from npuenv.resolve.reasons import because, because_asked, image_digest_notes, public_run, sources_read, why_not_newer
from npuenv.resolve.types import BuildStep, GitSource, Override, Pin, Platform, Reason, Request, Stack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import ChipWheel, ModelType, Recipe, TorchNpu, TritonAscend
    from npuenv.resolve.candidate import Candidate


_TORCH_FAMILY = ("torch", "torchvision", "torchaudio")


def build(candidate: Candidate, request: Request, matrix: Matrix) -> Stack:
    """The stack of a candidate."""
    recipe = candidate.recipe
    cann = matrix.cann_row(candidate.cann) if candidate.cann else None
    image = base_image(candidate, matrix)
    sources = tuple(_git(each, candidate, request, matrix) for each in recipe.git)
    return Stack(
        name=recipe.id,
        framework=recipe.framework,
        platform=Platform(candidate.arch, candidate.python, candidate.hardware, candidate.os, recipe.glibc),
        pins=tuple(_pins(candidate, request, matrix)),
        requirements=_requirements(candidate, request, matrix),
        overrides=tuple(_overrides(candidate, matrix)),
        git_sources=sources,
        order=tuple(BuildStep(step.id, step.does, step.what, Message(step.why)) for step in recipe.step),
        env=_env(candidate, matrix),
        image=image,
        cann_root=cann.root if cann else None,
        soc_version=recipe.soc.get(candidate.hardware or ""),
        system_packages=recipe.system_packages,
        verified_by=verified_by(candidate, request, matrix),
        sources=recipe.sources,
        notes=tuple(_notes(candidate, request, matrix, image, sources)),
        date=recipe.date,
        public_run=public_run(candidate, matrix),
        sources_read=sources_read(candidate, matrix),
    )


def _pins(candidate: Candidate, request: Request, matrix: Matrix) -> Iterator[Pin]:
    if candidate.cann is not None:
        yield _place_pin("cann", candidate.cann, candidate, request, matrix)
    yield _place_pin("python", candidate.python, candidate, request, matrix)
    published = {pin.name: pin for pin in candidate.recipe.pin}
    for name, version in candidate.versions.items():
        pin = published.get(name) or RecipePin(name, version, "request", candidate.recipe.source)
        if pin.version != version:
            pin = replace(pin, version=version, strength="request")
        yield _package_pin(pin, candidate, request, matrix)


def _place_pin(name: str, version: str, candidate: Candidate, request: Request, matrix: Matrix) -> Pin:
    """The pin of CANN or Python."""
    recipe = candidate.recipe
    requested = getattr(request, name)
    published = recipe.cann if name == "cann" else recipe.python[0]
    if requested is not None:
        reason = because_asked(f"--{name} {requested}", request.origins.get(name))
    else:
        reason = Reason(Message("resolve.because-recipe", {"stack": recipe.id}), (recipe.id,), (recipe.source,))
    strength = "image-practice" if version == published else "request"
    if name == "cann":
        strength = _cann_strength(candidate, matrix)
    newer = why_not_newer(name, candidate, request, matrix)
    return Pin(name, version, reason, newer, strength, None, False)


def _cann_strength(candidate: Candidate, matrix: Matrix) -> str:
    row = matrix.torch_npu_row(candidate.versions.get("torch-npu", ""))
    return (pairing(row, candidate.cann or "", matrix) if row else None) or "image-practice"


def _package_pin(pin: RecipePin, candidate: Candidate, request: Request, matrix: Matrix) -> Pin:
    version, index = _wheel(pin.name, pin.version, candidate, matrix)
    strength: str = pin.strength
    if pin.name == "torch-npu":
        strength = _cann_strength(candidate, matrix)
    built = any(git.name == pin.name for git in candidate.recipe.git)
    reason = because(pin, candidate, request, matrix)
    newer = why_not_newer(pin.name, candidate, request, matrix)
    return Pin(pin.name, version, reason, newer, strength, index, not built)


def _wheel(name: str, version: str, candidate: Candidate, matrix: Matrix) -> tuple[str, str | None]:
    """The version as in the name of its wheel for this platform, and the label of its index (None: the default one)."""
    if name in _TORCH_FAMILY:
        local = "+cpu" if _needs_cpu_wheels(candidate) else ""
        full = version if "+" in version else version + local
        return full, "pytorch-cpu" if "+cpu" in full else None
    found: TorchNpu | TritonAscend | None = None
    if name == "torch-npu":
        found = matrix.torch_npu_row(version)
    elif name == "triton-ascend":
        found = matrix.triton_ascend_row(version)
    index = found.index if found else "default"
    return version, None if index in ("default", "") else index


def _needs_cpu_wheels(candidate: Candidate) -> bool:
    """Whether torch must come from the CPU index.

    On x86_64 the default index has the CUDA build, and torch_npu below 2.12 requires `+cpu` by name. On aarch64 the
    default build is CPU-only up to 2.10; from 2.11 on it pulls in the CUDA packages too.
    """
    if not candidate.recipe.hardware or candidate.arch == "x86_64":
        return True
    torch = candidate.versions.get("torch", "").split("+")[0]
    return bool(torch) and versions.accepts(">=2.11", torch)


def _requirements(candidate: Candidate, request: Request, matrix: Matrix) -> tuple[str, ...]:
    """The recipe's further requirements, and what a pinned package imports. Of a requirement that the user pinned, only
    the extras are left.
    """
    result: list[str] = []
    for text in candidate.recipe.requirements:
        if versions.requirement_name(text) not in request.pins:
            result.append(text)
        elif "[" in text:
            result.append(text[: text.index("]") + 1])
    for limit in matrix.limits:
        package, needed = versions.requirement_name(limit.when), versions.requirement_name(limit.needs)
        pinned = candidate.versions.get(package) if limit.is_imported and package in request.pins else None
        if pinned is not None and versions.accepts(limit.when.removeprefix(package), pinned):
            # What the recipe names is for its own release of the package.
            result = [*(text for text in result if versions.requirement_name(text) != needed), limit.needs]
    return tuple(result)


def _overrides(candidate: Candidate, matrix: Matrix) -> Iterator[Override]:
    for each in (*candidate.recipe.override, *partner_overrides(candidate.recipe, matrix)):
        if each.arch in ("", candidate.arch):
            yield _override(each, candidate, matrix)
    named = {versions.requirement_name(text) for text in candidate.recipe.requirements} | set(candidate.versions)
    for limit in matrix.limits:
        package = versions.requirement_name(limit.when)
        version = candidate.versions.get(package)
        spec = limit.when.removeprefix(package)
        # A package whose version the lock decides needs to satisfy an open range, not one exact version.
        is_reachable = package in named and ">=" in spec and limit.since <= candidate.recipe.date
        applies = versions.accepts(spec, version) if version is not None else is_reachable
        is_bound = versions.requirement_name(limit.needs) != limit.needs
        if applies and is_bound and (not limit.python or candidate.python in limit.python):
            reason = Reason(Message(limit.why), (limit.id,), (limit.source,))
            yield Override(versions.requirement_name(limit.needs), "constrain", limit.needs, reason)


def _override(each: RecipeOverride, candidate: Candidate, matrix: Matrix) -> Override:
    torch, _ = _wheel("torch", candidate.versions["torch"], candidate, matrix)
    requirement = each.requirement.replace("{torch}", torch)
    reason = Reason(Message(each.why), (candidate.recipe.id,), (each.source,))
    return Override(each.package, each.does, requirement, reason)


def _git(each: RecipeGit, candidate: Candidate, request: Request, matrix: Matrix) -> GitSource:
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


def _env(candidate: Candidate, matrix: Matrix) -> Mapping[str, str]:
    """Settings for every process of the framework. Those for one role belong in the launch files."""
    env: dict[str, str] = {}
    for row in matrix.settings:
        if (
            row.role == "all"
            and candidate.recipe.framework in row.frameworks
            and _is_read(row.since, row.until, candidate)
        ):
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
    return not (since and not versions.accepts(f">={since}", version)) and not (
        until and versions.accepts(f">={until}", version)
    )


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


def verified_by(candidate: Candidate, request: Request, matrix: Matrix) -> str:
    """The confidence level of the stack: the recipe's own, lowered by every departure from it."""
    recipe = candidate.recipe
    published = {pin.name: pin.version for pin in recipe.pin if pin.arch in ("", candidate.arch)}
    if candidate.versions != published or candidate.python != recipe.python[0]:
        return "satisfiable"
    if not recipe.hardware:
        return recipe.verified_by if candidate.arch == recipe.arch[0] else "satisfiable"
    if versions.cann(candidate.cann or "") != versions.cann(recipe.cann):
        return "compatible" if recipe.verified_by != "satisfiable" else "satisfiable"
    return recipe.verified_by


def _notes(
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
        given = tuple(
            f"--{name} {getattr(request, name)}" for name in ("hardware", "cann", "driver") if getattr(request, name)
        )
        if given:
            yield Message("resolve.note-no-npu", {"options": given, "stack": recipe.id})
        return
    if request.hardware is None:
        yield Message("resolve.note-assumed-hardware", {"hardware": candidate.hardware, "has": recipe.hardware})
    if image is None:
        platform = {"hardware": candidate.hardware, "os": candidate.os, "python": candidate.python}
        yield Message("resolve.note-no-image", {"cann": candidate.cann, **platform})
    yield from image_digest_notes(image, matrix)
    yield from _chip_wheel_notes(sources)
    if candidate.os not in recipe.os:
        yield Message("resolve.note-other-os", {"os": candidate.os, "has": recipe.os})
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


def _chip_wheel_notes(sources: Iterable[GitSource]) -> Iterator[Message]:
    """What an installation takes from a wheel for the requested hardware, and which wheel has no known hash."""
    for wheel in filter(None, (source.wheel for source in sources)):
        args = {"name": wheel.name, "file": wheel.id, "hardware": wheel.hardware, "sha256": wheel.sha256}
        index = Message("plan.default-index") if wheel.index == "default" else wheel.index
        key = "resolve.note-chip-wheel" if wheel.sha256 else "resolve.note-chip-wheel-unhashed"
        yield Message(key, {**args, "index": index})


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
