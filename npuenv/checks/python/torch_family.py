"""Checks of torch, torch_npu, CANN and packages built for one torch. By metadata: an import error hides a mismatch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, Check, CheckResult, Context, fail, fix_for, ok, skip, unknown, warn
from npuenv.checks.python.installed import (
    is_for_gpus,
    is_for_npu,
    lines,
    pip,
    published_as,
    python_of,
    reinstall,
    release,
    torch_fix,
    version_of,
)
from npuenv.checks.session.variables import generation
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.fact import Evidence

if TYPE_CHECKING:
    from npuenv.core.finding import Fix

_PTA = "Ascend/pytorch COMPATIBILITY.en.md"
_CUDA = re.compile(r"nvidia-(cublas|cudnn|cuda-runtime|nccl)(-cu\d+)?")


def torch_pair(context: Context) -> CheckResult:
    torch, torch_npu = version_of(context, "torch"), version_of(context, "torch-npu")
    if torch is None or torch_npu is None:
        if torch_npu is None:
            return skip("no-torch-npu")
        return fail("python.torch-pair-no-torch", fix=torch_fix(context, release(torch_npu)), torch_npu=torch_npu)
    row = context.matrix.torch_npu_row(torch_npu.split("+")[0])
    wanted = row.torch if row is not None else release(torch_npu)
    evidence = lines(context, "torch", "torch-npu")
    if release(torch) == release(wanted):
        if is_for_gpus(torch):
            return warn("python.torch-pair-gpu", *evidence, fix=torch_fix(context, wanted), torch=torch)
        return ok("python.torch-pair-ok", *evidence, torch=torch, torch_npu=torch_npu)
    fix = torch_fix(context, wanted)
    return fail("python.torch-pair-fail", *evidence, fix=fix, torch=torch, torch_npu=torch_npu, wanted=wanted)


def torch_npu_cann(context: Context) -> CheckResult:
    """The recommended pair, the compatible set of the release notes, or what other projects state; never guessed."""
    torch_npu, cann = version_of(context, "torch-npu"), context.facts.cann.toolkit.value
    if torch_npu is None or cann is None:
        return skip("no-torch-npu" if torch_npu is None else "no-cann")
    evidence = (*lines(context, "torch-npu"), *context.facts.cann.toolkit.evidence)
    try:
        have = versions.cann(cann.version)
        fitting = [row.version for row in context.matrix.torch_npu if row.cann and versions.cann(row.cann) == have]
    except BadInput:
        return unknown("python.torch-npu-cann-unknown", *evidence, torch_npu=torch_npu, cann=cann.version)
    row = context.matrix.torch_npu_row(torch_npu.split("+")[0])
    if row is None:
        return unknown("python.torch-npu-cann-unknown", *evidence, torch_npu=torch_npu, cann=cann.version)
    chip = context.matrix.hardware_row(generation(context))
    if chip and chip.torch_npu and not versions.accepts(chip.torch_npu, row.version):
        args = {"torch_npu": torch_npu, "chip": chip.title, "needs": chip.torch_npu}
        known = [version for version in fitting if versions.accepts(chip.torch_npu, version)]
        return fail("python.torch-npu-cann-chip", *evidence, fix=_recommended(context, known, torch_npu), **args)
    if row.version in fitting:
        return ok("python.torch-npu-cann-pair", *evidence, torch_npu=torch_npu, cann=cann.version)
    stated = (*row.cann_compatible, *row.cann_unofficial)
    series = f"{have.series[0]}.{have.series[1]}.X"
    if series in stated or any(
        text[:1].isdigit() and "X" not in text and versions.cann(text) == have for text in stated
    ):
        return ok("python.torch-npu-cann-compatible", *evidence, torch_npu=torch_npu, cann=cann.version)
    if _is_released(context, have):
        return ok("python.torch-npu-cann-released", *evidence, torch_npu=torch_npu, cann=cann.version)
    fix = _recommended(context, fitting, torch_npu)
    pair = next((version for version in fitting if release(version) == release(torch_npu)), None)
    if not row.cann and pair is not None:
        return warn(
            "python.torch-npu-cann-other", *evidence, fix=fix, torch_npu=torch_npu, cann=cann.version, pair=pair
        )
    if not row.cann:
        return unknown("python.torch-npu-cann-unstated", *evidence, torch_npu=torch_npu, cann=cann.version)
    return warn(
        "python.torch-npu-cann-warn", *evidence, fix=fix, torch_npu=torch_npu, cann=cann.version, recommended=row.cann
    )


def _is_released(context: Context, cann: versions.Version) -> bool:
    """Whether a stack was published with this CANN, this torch_npu and the installed vllm-ascend (else vllm)."""
    engine = next((name for name in ("vllm-ascend", "vllm") if version_of(context, name) is not None), None)
    if engine is None:
        return False
    names = ("torch-npu", engine)
    return any(recipe.cann and versions.cann(recipe.cann) == cann for recipe in published_as(context, *names))


def _recommended(context: Context, fitting: list[str], torch_npu: str) -> Fix | None:
    """The recommended torch_npu for the installed torch, else the first one together with its torch."""
    for version in fitting:
        if release(version) == release(torch_npu):
            return reinstall(context, f"torch-npu=={version}")
    return torch_fix(context, fitting[0], f"torch-npu=={fitting[0]}") if fitting else None


def _companions(context: Context) -> CheckResult:
    torch = version_of(context, "torch")
    row = context.matrix.companion_row(torch) if torch else None
    found = {name: version_of(context, name) for name in ("torchvision", "torchaudio")}
    if torch is None or row is None or not any(found.values()):
        return skip("python.companions-skip")
    wanted = {"torchvision": row.torchvision, "torchaudio": row.torchaudio}
    wrong = [name for name, version in found.items() if version and wanted[name] and release(version) != wanted[name]]
    evidence = lines(context, "torch", *found)
    if not wrong:
        return ok("python.companions-ok", *evidence, torch=torch)
    needs = tuple(f"{name}=={wanted[name]}" for name in wrong)
    fix = fix_for("python.reinstall", pip(context, "install", "--no-deps", *needs), requirement=" ".join(needs))
    verdict = fail if "torchvision" in wrong else warn
    return verdict("python.companions-fail", *evidence, fix=fix, torch=torch, packages=needs)


def _build(context: Context) -> CheckResult:
    """Whether torch was built for CUDA, by its own version info, else by its CUDA dependencies."""
    torch, python = version_of(context, "torch"), python_of(context)
    if torch is None or python is None or not is_for_npu(context):
        return skip("python.build-skip")
    if is_for_gpus(torch):
        return skip("python.because", cause="python.torch-pair")
    packages = context.facts.python.packages.value
    reported = packages.built.get("torch", {}) if packages is not None else {}
    brought = sorted(name for name in python.distributions if _CUDA.fullmatch(name))
    cuda = next((reported[key] for key in ("cuda", "hip") if reported.get(key, "None") != "None"), "")
    if cuda or (not reported and brought):
        evidence = (Evidence("torch/version.py", f"cuda {cuda}"),) if cuda else lines(context, "torch", *brought[:3])
        return warn("python.build-cuda", *evidence, fix=torch_fix(context, torch), torch=torch, cuda=cuda or brought[0])
    return ok("python.build-ok", *lines(context, "torch"), torch=torch)


CHECKS = (
    Check("python.torch-pair", ("python.interpreter",), _PTA, torch_pair, required_for=NPU_FRAMEWORKS),
    Check(
        "python.torch-npu-cann",
        ("python.interpreter", "cann.toolkit"),
        _PTA,
        torch_npu_cann,
        required_for=NPU_FRAMEWORKS,
    ),
    Check(
        "python.torch-build",
        ("python.interpreter",),
        "torch's wheels: CUDA builds on x86_64, and on aarch64 from 2.11 on; torch_npu's x86_64 wheels ask for +cpu",
        _build,
    ),
    Check("python.torchvision", ("python.interpreter",), "matrix companions", _companions),
)
