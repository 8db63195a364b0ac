"""How torch_npu pairs with CANN, and the stacks that follow from a single row.

There is one for each vllm-ascend release and one for each torch_npu version.
A vllm-ascend release fixes its partner vllm, its torch_npu and triton-ascend. Its Dockerfiles state the CANN and Python
it was built on for each hardware. That is a published stack, so it is derived from the row instead of being written
down again. Where the policy table, the metadata and the image of a release differ, the installed version is used and
the difference becomes a dispute of the recipe.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.messages import Message
from npuenv.matrix import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.matrix.load import VerifiedBy
    from npuenv.matrix.tables import Matrix


def pairing(row: rows.TorchNpu, cann: str, matrix: Matrix) -> str | None:
    """How a torch_npu version pairs with a CANN: recommended-pair, compatible-set, image-practice, or None.

    An image counts only if the release's policy table and its metadata name the same torch_npu. If they differ, one of
    them is a temporary build.
    """
    wanted = versions.cann(cann)
    if row.cann and versions.cann(row.cann) == wanted:
        return "recommended-pair"
    if any(versions.covers_cann(each, cann) for each in (*row.cann_compatible, *row.cann_unofficial)):
        return "compatible-set"
    exactly = f"=={row.version}"
    for release in matrix.vllm_ascend:
        agrees = release.torch_npu == row.version and release.requirement("torch-npu") == exactly
        if agrees and release.cann and versions.is_cann(release.cann) and versions.cann(release.cann) == wanted:
            return "image-practice"
    return None


def paired_with(row: rows.TorchNpu) -> tuple[str, ...] | Message:
    """The CANN versions a torch_npu row names, or a message that there are none."""
    named = tuple(dict.fromkeys(each for each in (row.cann, *row.cann_unofficial, *row.cann_compatible) if each))
    return named or Message("resolve.none-stated")


_ARCHITECTURES = ("aarch64", "x86_64")
_POLICY = "vllm-project/vllm-ascend docs/source/community/versioning_policy.md"
# What vllm-ascend's own Dockerfiles build for (vllm-project/vllm-ascend Dockerfile*, SOC_VERSION).
_SOC = {"a2": "ascend910b1", "a3": "ascend910_9391", "310p": "ascend310p1", "950": "ascend950dt_9582"}
_BUILD_TOOLS = (
    "setuptools-scm>=8", "wheel", "packaging", "ninja", "cmake>=3.26", "jinja2", "pybind11", "setuptools-rust",
)  # fmt: skip
_SYSTEM_PACKAGES = ("gcc", "g++", "cmake", "libnuma-dev", "git")
_NO_AUTOLOAD = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
# torch_npu imports these, but its metadata does not require them (Ascend/pytorch README.md, prerequisites).
_TORCH_NPU_NEEDS = ("numpy", "pyyaml", "setuptools")


@functools.lru_cache(maxsize=4)
def all_recipes(matrix: Matrix) -> tuple[rows.Recipe, ...]:
    """The recipes of the tables, then those of the vllm-ascend releases, then those of torch_npu alone."""
    releases = [recipe for row in reversed(matrix.vllm_ascend) for recipe in of_release(row, matrix)]
    return (*matrix.recipes, *releases, *of_torch_npu(matrix))


@functools.lru_cache(maxsize=256)
def recipe_named(name: str, matrix: Matrix) -> rows.Recipe | None:
    """The recipe with exactly that name, built without the others; None if there is none."""
    row = matrix.recipe_row(name)
    if row is not None or not name.startswith("vllm-ascend-"):
        return row or next((recipe for recipe in all_recipes(matrix) if recipe.id == name), None)
    releases = (release for release in matrix.vllm_ascend if name.startswith(f"vllm-ascend-{release.version}"))
    found = (recipe for release in releases for recipe in of_release(release, matrix))
    return next((recipe for recipe in found if recipe.id == name), None)


def of_release(row: rows.VllmAscend, matrix: Matrix) -> Iterator[rows.Recipe]:
    """The stacks of a vllm-ascend release: `vllm-ascend-V` for A2, A3 and 950, `vllm-ascend-V-310p` for the 310P.

    310P has its own stack because it has no triton, and because its images often use another CANN.
    """
    groups: dict[tuple[str, rows.ReleaseImage], list[str]] = {}
    for image in row.image:
        for each in image.hardware:
            groups.setdefault(("-310p" if each == "310p" else "", image), []).append(each)
    used: set[str] = set()
    for (suffix, image), hardware in groups.items():
        name = f"vllm-ascend-{row.version}{suffix or ('' if not used else '-' + hardware[0])}"
        used.add(name)
        yield _release(name, row, image, tuple(hardware), matrix)


def _release(
    name: str, row: rows.VllmAscend, image: rows.ReleaseImage, hardware: tuple[str, ...], matrix: Matrix
) -> rows.Recipe:
    pins = _release_pins(row, image, hardware, matrix)
    lacks = () if any(pin.name == "torch-npu" for pin in pins) else ("torch-npu",)
    return rows.Recipe(
        id=name,
        source=row.source,
        seen=row.seen,
        framework="vllm-ascend",
        release=row.version,
        date=row.released,
        python=_pythons(row, image),
        arch=_ARCHITECTURES,
        verified_by=_confidence(row, image, pins, matrix),
        sources=tuple(row.source.split("; ")),
        pin=pins,
        step=_steps(has_triton=any(pin.name == "triton-ascend" for pin in pins)),
        cann=image.cann,
        hardware=hardware,
        os=image.os,
        image_repository="quay.io/ascend/cann",
        soc={name: _SOC[name] for name in hardware},
        requirements=(*_BUILD_TOOLS, *((f"ray{image.ray}",) if image.ray else ())),
        system_packages=(*_SYSTEM_PACKAGES, *_of_image(row, hardware, matrix)),
        override=tuple(_overrides(row, pins, matrix)),
        git=_git(row),
        dispute=tuple(_disputes(row, image, pins)),
        lacks=lacks,
    )


def _of_image(row: rows.VllmAscend, hardware: tuple[str, ...], matrix: Matrix) -> Iterator[str]:
    """The system packages of the release's own images for this hardware that are needed at run time."""
    for package in matrix.system_packages:
        if package.since and versions.accepts(f">={package.since}", row.version) and {*hardware} <= {*package.hardware}:
            yield package.id


def _pythons(row: rows.VllmAscend, image: rows.ReleaseImage) -> tuple[str, ...]:
    """The image's Python, then the others that the policy table allows, newest first."""
    others = [f"3.{minor}" for minor in range(14, 8, -1)]
    allowed = [each for each in others if row.python and versions.accepts(row.python, each)]
    return tuple(dict.fromkeys((image.python, *allowed)))


def _release_pins(
    row: rows.VllmAscend, image: rows.ReleaseImage, hardware: tuple[str, ...], matrix: Matrix
) -> tuple[rows.RecipePin, ...]:
    """The versions that the release fixes: those its metadata pins, unless the image forces another one."""
    npu = image.torch_npu or versions.exact(row.requirement("torch-npu")) or row.torch_npu
    npu_row = matrix.torch_npu_row(npu)
    if npu_row is None:
        return ()
    torch = versions.exact(row.requirement("torch")) or npu_row.torch
    metadata = f"vllm-ascend {row.version} metadata"
    pins = [
        *_torch_family(torch, metadata, matrix),
        rows.RecipePin("torch-npu", npu, "image-practice", row.source if image.torch_npu else metadata),
        rows.RecipePin("vllm", row.vllm, "recommended-pair", _POLICY),
        rows.RecipePin("vllm-ascend", row.version, "identity", row.source),
    ]
    triton = versions.exact(row.requirement("triton-ascend")) or row.triton_ascend
    if triton and "310p" not in hardware:
        pins.append(rows.RecipePin("triton-ascend", triton, "image-practice", metadata, "resolve.derived-triton"))
    return tuple(pins)


def _torch_family(torch: str, source: str, matrix: Matrix) -> list[rows.RecipePin]:
    """The pins of torch and of the torchvision and torchaudio that belong to it."""
    pins = [rows.RecipePin("torch", torch, "identity", source)]
    if (companion := matrix.companion_row(torch)) is not None:
        pins.append(rows.RecipePin("torchvision", companion.torchvision, "identity", companion.source))
        pins.append(rows.RecipePin("torchaudio", companion.torchaudio, "identity", companion.source))
    return pins


def _disputes(
    row: rows.VllmAscend, image: rows.ReleaseImage, pins: tuple[rows.RecipePin, ...]
) -> Iterator[rows.Dispute]:
    """Differences between the release's policy table and what its metadata or image installs."""
    pinned = {pin.name: pin for pin in pins}
    for name, table in (("torch-npu", row.torch_npu), ("triton-ascend", row.triton_ascend)):
        pin = pinned.get(name)
        if pin is not None and table and table != pin.version:
            yield rows.Dispute(name, table, _POLICY, pin.version, pin.source, "other", "resolve.derived-metadata")
    named = {f"{name}=={table}" for name, table in (("torch-npu", row.torch_npu), ("triton-ascend", row.triton_ascend))}
    for text in image.one_off:
        name = versions.requirement_name(text)
        if name in pinned and text not in named:
            yield rows.Dispute(
                name, text, row.source, pinned[name].version, pinned[name].source, "other", "resolve.derived-one-off"
            )
    required = versions.exact(row.requirement("torch-npu"))
    if image.torch_npu and required and required != image.torch_npu:
        metadata = f"vllm-ascend {row.version} metadata"
        yield rows.Dispute(
            "torch-npu", required, metadata, image.torch_npu, row.source, "other", "resolve.derived-image"
        )
    if row.cann and versions.cann(row.cann) != versions.cann(image.cann):
        yield rows.Dispute("CANN", row.cann, _POLICY, image.cann, row.source, "other", "resolve.derived-image-cann")


def _confidence(
    row: rows.VllmAscend, image: rows.ReleaseImage, pins: tuple[rows.RecipePin, ...], matrix: Matrix
) -> VerifiedBy:
    """The confidence level: published if the image installs exactly these; with a one-off build, that of the
    replacement's pairing.
    """
    pinned = {pin.name: pin.version for pin in pins}
    if "torch-npu" not in pinned:
        return "satisfiable"
    if not any(versions.requirement_name(text) in pinned for text in image.one_off):
        return "published"
    npu = matrix.torch_npu_row(pinned["torch-npu"])
    how = pairing(npu, image.cann, matrix) if npu else None
    levels: dict[str | None, VerifiedBy] = {"recommended-pair": "recommended", "compatible-set": "compatible"}
    return levels.get(how, "satisfiable")


def _overrides(row: rows.VllmAscend, pins: tuple[rows.RecipePin, ...], matrix: Matrix) -> Iterator[rows.RecipeOverride]:
    """The bound of numpy, a torch_npu that the image forces, and packages that must not be installed."""
    source = f"vllm-ascend {row.version} metadata"
    numpy = row.requirement("numpy")
    if numpy:
        yield rows.RecipeOverride("numpy", "constrain", f"numpy{numpy}", "stack.numpy1-constraint", source)
    forced = next((pin.version for pin in pins if pin.name == "torch-npu"), "")
    if versions.exact(row.requirement("torch-npu")) not in ("", forced):
        yield rows.RecipeOverride("vllm-ascend", "replace", f"torch-npu=={forced}", "resolve.derived-image", row.source)
    if row.requirement("triton-ascend") and not any(pin.name == "triton-ascend" for pin in pins):
        source = (
            "vllm-project/vllm-ascend docs/source/installation.md @182b75ea (310P: uninstall triton and triton-ascend)"
        )
        yield rows.RecipeOverride("triton-ascend", "exclude", "triton-ascend", "resolve.derived-310p-triton", source)
    for name in ("xformers", "triton"):
        why = "stack.exclude-triton" if name == "triton" else "stack.exclude-cuda"
        yield rows.RecipeOverride(name, "exclude", name, why, f"vllm {row.vllm} metadata")


# vllm decides the version of these. Other packages it requires depend on the release it names (from 0.24.0 on starlette
# 1 and prometheus-fastapi-instrumentator 8), and vllm-ascend's older bound would leave only releases of 2019 for them.
_VLLM_CHOOSES = frozenset({"fastapi"})


def partner_overrides(recipe: rows.Recipe, matrix: Matrix) -> tuple[rows.RecipeOverride, ...]:
    """vllm's requirements that conflict with vllm-ascend's own, for a stack that is derived from a release.

    The published images install vllm-ascend after vllm, so that vllm-ascend's requirements win. They are looked up only
    when a stack is built, because the lists of all releases are long.
    """
    pinned = {pin.name: pin.version for pin in recipe.pin}
    if recipe.framework != "vllm-ascend" or "vllm" not in pinned:
        return ()
    found = _partners_clash(matrix, pinned["vllm-ascend"], pinned["vllm"])
    return tuple(each for each in found if versions.requirement_name(each.requirement) not in pinned)


@functools.lru_cache(maxsize=128)
def _partners_clash(matrix: Matrix, vllm_ascend: str, vllm: str) -> tuple[rows.RecipeOverride, ...]:
    own, partner = matrix.built_row("vllm-ascend", vllm_ascend), matrix.built_row("vllm", vllm)
    wanted = {versions.requirement_name(text): text for text in (own.requires if own else ())}
    range_of = versions.requirement_spec
    source = f"vllm-ascend {vllm_ascend} metadata; vllm {vllm} metadata"
    found = []
    for text in partner.requires if partner else ():
        name = versions.requirement_name(text)
        if name in wanted and not versions.overlap(range_of(text), range_of(wanted[name])):
            if name in _VLLM_CHOOSES:
                found.append(
                    rows.RecipeOverride("vllm-ascend", "replace", text, "resolve.derived-vllm-chooses", source)
                )
                continue
            requirement = versions.with_extras_of(wanted[name], text)
            found.append(rows.RecipeOverride("vllm", "replace", requirement, "resolve.derived-va-last", source))
    return tuple(found)


def _git(row: rows.VllmAscend) -> tuple[rows.RecipeGit, ...]:
    base = "https://github.com/vllm-project"
    vllm = {"VLLM_TARGET_DEVICE": "empty", **_NO_AUTOLOAD}
    own = {"COMPILE_CUSTOM_KERNELS": "1", **_NO_AUTOLOAD}
    return (
        rows.RecipeGit("vllm", f"{base}/vllm.git", f"v{row.vllm}", build_env=vllm),
        rows.RecipeGit("vllm-ascend", f"{base}/vllm-ascend.git", f"v{row.version}", build_env=own),
    )


def _steps(*, has_triton: bool) -> tuple[rows.RecipeStep, ...]:
    steps = [
        rows.RecipeStep("torch", "pip", ("torch", "torchvision", "torchaudio"), "stack.step-torch"),
        rows.RecipeStep("torch-npu", "pip", ("torch-npu",), "stack.step-torch-npu"),
        rows.RecipeStep("rest", "rest", (), "stack.step-rest"),
        rows.RecipeStep("vllm", "git", ("vllm",), "stack.step-vllm"),
        rows.RecipeStep("vllm-ascend", "git", ("vllm-ascend",), "stack.step-vllm-ascend"),
        rows.RecipeStep("triton-leftovers", "uninstall", ("triton", "triton-ascend"), "stack.step-triton-leftovers"),
    ]
    if has_triton:
        steps.append(rows.RecipeStep("triton-ascend", "pip", ("triton-ascend",), "stack.step-triton-ascend"))
    return tuple(steps)


def of_torch_npu(matrix: Matrix) -> Iterator[rows.Recipe]:
    """A stack of torch and torch_npu alone for each version that has a recommended CANN and wheels, newest first."""
    published = [row for row in matrix.torch_npu if row.cann and row.index == "default" and row.published]
    for row in sorted(
        published, key=lambda each: (versions.cann(each.cann), versions.python_version(each.version)), reverse=True
    ):
        if matrix.cann_row(row.cann) is not None:
            yield _bare(row, matrix)


def _bare(row: rows.TorchNpu, matrix: Matrix) -> rows.Recipe:
    family = _torch_family(row.torch, row.source, matrix)
    torch_npu = rows.RecipePin("torch-npu", row.version, "recommended-pair", row.source)
    cann = matrix.cann_row(row.cann)
    override: tuple[rows.RecipeOverride, ...] = ()
    if cann is not None and cann.numpy:
        bound = f"numpy{cann.numpy}"
        override = (rows.RecipeOverride("numpy", "constrain", bound, "stack.numpy1-constraint", cann.source),)
    return rows.Recipe(
        id=f"torch-npu-{row.version}",
        source=row.source,
        seen=row.seen,
        framework="torch-npu",
        release=row.version,
        date=row.published,
        python=tuple(sorted({*row.python_aarch64, *row.python_x86_64}, key=versions.python_version, reverse=True)),
        arch=_ARCHITECTURES,
        verified_by="recommended",
        sources=(row.source,),
        pin=(*family, torch_npu),
        step=(
            rows.RecipeStep("torch", "pip", tuple(pin.name for pin in family), "stack.step-torch"),
            rows.RecipeStep("torch-npu", "pip", ("torch-npu",), "stack.step-torch-npu"),
            rows.RecipeStep("rest", "rest", (), "stack.step-rest"),
        ),
        cann=row.cann,
        hardware=("a2", "a3"),
        os=("ubuntu22.04",),
        image_repository="quay.io/ascend/cann",
        soc={name: _SOC[name] for name in ("a2", "a3")},
        requirements=_TORCH_NPU_NEEDS,
        override=override,
    )
