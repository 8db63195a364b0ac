"""Builds the Stack of a candidate without clashes: its pins with their reasons, what else a lock needs, its parts.

"Why not newer" replaces the chosen version with the next newer one that has a row and reports the resulting conflicts.
If no table lists the versions of a package, it reports the requirement that bounds it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.messages import Message
from npuenv.matrix.release_stacks import pairing, partner_overrides
from npuenv.matrix.rows import RecipePin, TritonAscend
from npuenv.resolve.parts import base_image, environment, git_source, notes, public_run, sources_read
from npuenv.resolve.request import PYTHONS
from npuenv.resolve.rules import matrix_conflicts
from npuenv.resolve.types import BuildStep, Candidate, Override, Pin, Platform, Reason, Request, Stack, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npuenv.matrix import Matrix
    from npuenv.matrix.load import Row
    from npuenv.matrix.rows import RecipeOverride, TorchNpu, VllmAscend


def build(candidate: Candidate, request: Request, matrix: Matrix) -> Stack:
    """The stack of a candidate."""
    recipe = candidate.recipe
    cann = matrix.cann_row(candidate.cann) if candidate.cann else None
    image = base_image(candidate, matrix)
    sources = tuple(git_source(each, candidate, request, matrix) for each in recipe.git)
    return Stack(
        name=recipe.id,
        framework=recipe.framework,
        platform=Platform(candidate.arch, candidate.python, candidate.hardware, candidate.os, recipe.glibc),
        pins=tuple(_pins(candidate, request, matrix)),
        requirements=_requirements(candidate, request, matrix),
        overrides=tuple(_overrides(candidate, matrix)),
        git_sources=sources,
        order=tuple(BuildStep(step.id, step.does, step.what, Message(step.why)) for step in recipe.step),
        env=environment(candidate, matrix),
        image=image,
        cann_root=cann.root if cann else None,
        soc_version=recipe.soc.get(candidate.hardware or ""),
        system_packages=recipe.system_packages,
        verified_by=verified_by(candidate),
        sources=recipe.sources,
        notes=tuple(notes(candidate, request, matrix, image, sources)),
        date=recipe.date,
        public_run=public_run(candidate, matrix),
        sources_read=sources_read(candidate, matrix),
    )


def verified_by(candidate: Candidate) -> str:
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
    if requested is not None:
        reason = _because_asked(f"--{name} {requested}", request.origins.get(name))
    else:
        reason = _reason(recipe, "resolve.because-recipe", stack=recipe.id)
    if name == "cann":
        strength = _cann_strength(candidate, matrix)
    else:
        strength = "image-practice" if version == recipe.python[0] else "request"
    newer = _why_not_newer(name, candidate, request, matrix)
    return Pin(name, version, reason, newer, strength, is_python=False)


def _package_pin(pin: RecipePin, candidate: Candidate, request: Request, matrix: Matrix) -> Pin:
    version, index = _wheel(pin.name, pin.version, candidate, matrix)
    strength = _cann_strength(candidate, matrix) if pin.name == "torch-npu" else pin.strength
    built = any(git.name == pin.name for git in candidate.recipe.git)
    reason = _because(pin, candidate, request, matrix)
    newer = _why_not_newer(pin.name, candidate, request, matrix)
    return Pin(pin.name, version, reason, newer, strength, index, not built)


def _cann_strength(candidate: Candidate, matrix: Matrix) -> str:
    row = matrix.torch_npu_row(candidate.versions.get("torch-npu", ""))
    return (pairing(row, candidate.cann or "", matrix) if row else None) or "image-practice"


_TORCH_FAMILY = ("torch", "torchvision", "torchaudio")


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


def _because(pin: RecipePin, candidate: Candidate, request: Request, matrix: Matrix) -> Reason:
    """Why a package has this version."""
    recipe = candidate.recipe
    if pin.name in request.pins:
        return _because_asked(f"--pin {pin.name}=={request.pins[pin.name]}")
    if pin.name == "torch" and "torch-npu" in candidate.versions:
        return _because_torch(candidate, matrix)
    if pin.name == "torch-npu":
        return _because_torch_npu(pin, candidate, matrix)
    row = matrix.companion_row(candidate.versions["torch"]) if pin.name in ("torchvision", "torchaudio") else None
    if row is not None:
        says = Message("resolve.because-companion", {"torch": row.torch})
        return Reason(says, (row.id, recipe.id), (row.source, pin.source))
    if pin.name == "vllm":
        return _because_vllm(pin, candidate, matrix)
    says = Message(pin.why) if pin.why else Message("resolve.because-recipe", {"stack": recipe.id})
    has_row = pin.name in ("vllm-ascend", "triton-ascend")
    rows = matrix.version_rows({pin.name: pin.version}, None) if has_row else ()
    return Reason(says, (*(row.id for row in rows), recipe.id), (pin.source,))


def _because_asked(option: str, origin: str | None = None) -> Reason:
    """The reason of a requested version: the user's option, or the file or host that `origin` names."""
    if origin is None:
        return Reason(Message("resolve.because-asked", {"option": option}), ("request",), (option,))
    return Reason(Message("resolve.because-read", {"line": origin}), ("request",), (origin,))


def _reason(row: Row, key: str, /, **args: object) -> Reason:
    """The reason that one row gives."""
    return Reason(Message(key, args), (row.id,), (row.source,))


def _because_torch(candidate: Candidate, matrix: Matrix) -> Reason:
    row = matrix.torch_npu_row(candidate.versions["torch-npu"])
    assert row is not None
    needs = "torch" + (row.torch_requirement(candidate.arch) or f"=={row.torch}")
    return _reason(row, "resolve.because-torch", torch_npu=row.version, needs=needs, arch=candidate.arch)


def _because_torch_npu(pin: RecipePin, candidate: Candidate, matrix: Matrix) -> Reason:
    row = matrix.torch_npu_row(pin.version)
    cann = matrix.cann_row(candidate.cann or "")
    assert row is not None
    how = pairing(row, candidate.cann or "", matrix) or "image-practice"
    args = {"cann": candidate.cann, "version": pin.version}
    ids = (row.id, *((cann.id,) if cann else ()))
    return Reason(Message(f"resolve.because-{how}", args), ids, (row.source, pin.source))


def _because_vllm(pin: RecipePin, candidate: Candidate, matrix: Matrix) -> Reason:
    row = matrix.vllm_ascend_row(candidate.versions.get("vllm-ascend", ""))
    assert row is not None
    says = Message("resolve.because-vllm", {"vllm_ascend": row.version})
    return Reason(says, (row.id,), (row.source, pin.source))


# Above any release: a requirement that rejects it has an upper bound.
_FAR = "99999"


def _why_not_newer(name: str, candidate: Candidate, request: Request, matrix: Matrix) -> Reason:
    """The reason against a newer version, or that none is known."""
    version = _current(name, candidate)
    newer = _next_newer(name, version, candidate, matrix)
    if newer is not None:
        return _pairs_elsewhere(name, newer, candidate, matrix) or _against(name, newer, candidate, matrix)
    if any(same(version, each) for each in _known_versions(name, candidate, matrix)):
        return _reason(candidate.recipe, "resolve.newest-known", version=version)
    return _bounded(name, candidate, matrix) or _unbounded(name, candidate, request, matrix)


def _pairs_elsewhere(name: str, newer: str, candidate: Candidate, matrix: Matrix) -> Reason | None:
    """What the next newer version pairs with, if the pairing decides; else None."""
    if candidate.cann is None:
        return None
    if name in ("vllm-ascend", "triton-ascend"):
        return _published_for_other_cann(name, newer, candidate, matrix)
    if name not in ("torch-npu", "cann"):
        return None
    row = matrix.torch_npu_row(newer if name == "torch-npu" else candidate.versions["torch-npu"])
    if row is None or pairing(row, newer if name == "cann" else candidate.cann, matrix) == "recommended-pair":
        return None
    if name == "cann":
        if not row.cann or pairing(row, newer, matrix) is None:
            return None
        return _reason(row, "resolve.newer-cann-compatible", newer=newer, torch_npu=row.version, cann=row.cann)
    key = "resolve.newer-pairs" if row.cann or row.cann_unofficial else "resolve.newer-pairs-nothing"
    says = Message(key, {"newer": newer, "cann": row.cann or row.cann_unofficial})
    others = tuple(each.rule for each in matrix_conflicts(candidate.with_version(name, newer), matrix))
    return Reason(says, tuple(dict.fromkeys((row.id, *others))), (row.source,))


def _published_for_other_cann(name: str, newer: str, candidate: Candidate, matrix: Matrix) -> Reason | None:
    row: VllmAscend | TritonAscend | None
    row = matrix.vllm_ascend_row(newer) if name == "vllm-ascend" else matrix.triton_ascend_row(newer)
    paired = row.cann if isinstance(row, TritonAscend) else tuple(filter(None, [row.cann])) if row else ()
    if row is None or not paired or any(same(each, candidate.cann) for each in paired):
        return None
    return _reason(row, "resolve.newer-pairs", newer=newer, cann=paired)


def _against(name: str, newer: str, candidate: Candidate, matrix: Matrix) -> Reason:
    """The conflicts of the next newer version. For vllm-ascend, vllm changes with it."""
    changed = candidate.with_version(name, newer)
    if name == "vllm-ascend":
        partner = matrix.vllm_ascend_row(newer)
        changed = changed.with_version("vllm", partner.vllm) if partner else changed
    found = list(matrix_conflicts(changed, matrix))
    if not found:
        return _reason(candidate.recipe, "resolve.newer-not-tried", newer=newer, stack=candidate.recipe.id)
    first = found[0]
    says = Message("resolve.newer-objected", {"newer": newer, "objection": first.says})
    return Reason(says, tuple(dict.fromkeys(each.rule for each in found)), (first.source,))


def _next_newer(name: str, version: str, candidate: Candidate, matrix: Matrix) -> str | None:
    """The next newer published version of a package in its table; None if there is none or no table."""
    of: Callable[[str], Any] = versions.cann if name == "cann" else versions.python_version
    known = _known_versions(name, candidate, matrix)
    return min((each for each in known if of(each) > of(version)), key=of, default=None)


def _known_versions(name: str, candidate: Candidate, matrix: Matrix) -> tuple[str, ...]:
    """The versions of a package that the tables list; empty if no table does."""
    if name == "cann":
        return tuple(row.version for row in matrix.cann)
    if name == "python":
        return PYTHONS
    if name == "torch-npu":
        rows = (row for row in matrix.torch_npu if row.status in ("released", "patch", "unlisted") and row.index)
        return tuple(row.version for row in rows)
    if name == "torch" and candidate.recipe.hardware:
        return tuple({row.torch for row in matrix.torch_npu if row.status == "released"})
    if name in ("torchvision", "torchaudio"):
        return tuple(getattr(row, name) for row in matrix.companions)
    if name == "vllm-ascend":
        return tuple(row.version for row in matrix.vllm_ascend)
    if name == "vllm":
        return tuple({row.vllm for row in matrix.vllm_ascend})
    if name == "triton-ascend":
        return tuple(row.version for row in matrix.triton_ascend)
    return ()


def _current(name: str, candidate: Candidate) -> str:
    if name == "cann":
        return candidate.cann or ""
    return candidate.python if name == "python" else candidate.versions[name]


def _bounded(name: str, candidate: Candidate, matrix: Matrix) -> Reason | None:
    """The requirement that bounds the version from above."""
    found = list(matrix_conflicts(candidate.with_version(name, _FAR), matrix))
    if not found:
        return None
    needs = tuple(dict.fromkeys(str(each.says.args["needs"]) for each in found if "needs" in each.says.args))
    says = Message("resolve.bounded", {"needs": needs, "source": found[0].source})
    return Reason(says, tuple(dict.fromkeys(each.rule for each in found)), tuple(each.source for each in found))


def _unbounded(name: str, candidate: Candidate, request: Request, matrix: Matrix) -> Reason:
    key = "resolve.not-newer-asked" if name in request.pins else "resolve.not-newer-recipe"
    args = {"stack": candidate.recipe.id, "package": name, "version": _current(name, candidate)}
    return _reason(candidate.recipe, key, **args)


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
