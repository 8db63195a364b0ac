"""Checks of torch, torch_npu and the packages built for them, and of the two tritons that share one folder."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, Check, card_check, fail, fix_for, given, ok, skip, unknown, warn
from npuenv.checks.python.installed import (
    is_for_gpus,
    lines,
    pip,
    pip_fix,
    public,
    published_as,
    reinstall,
    release,
    resolve_here,
    torch_fix,
)
from npuenv.core import versions
from npuenv.core.fact import Evidence

if TYPE_CHECKING:
    from npuenv.checks.base import CheckResult, Context
    from npuenv.core.finding import Fix
    from npuenv.facts.python import Python


_PTA = "Ascend/pytorch COMPATIBILITY.en.md"
_CUDA = re.compile(r"nvidia-(cublas|cudnn|cuda-runtime|nccl)(-cu\d+)?")
# From here on triton-ascend requires triton and still contains all of its files: both together are only worth a warning
# (triton-lang/triton-ascend pull request 395).
_COEXISTS = "3.2.1"
_NO_TRITON = "310p"
_TRITONS = {"triton", "triton-ascend"}


def torch_pair(context: Context) -> CheckResult:
    torch, torch_npu = context.version("torch"), context.version("torch-npu")
    if torch_npu is None:
        return skip("no-torch-npu")
    if torch is None:
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
    torch_npu, cann = context.version("torch-npu"), context.cann
    if torch_npu is None or cann is None:
        return skip("no-torch-npu" if torch_npu is None else "no-cann")
    evidence = (*lines(context, "torch-npu"), *context.facts.cann.toolkit.evidence)
    says, row = {"torch_npu": torch_npu, "cann": cann.version}, context.matrix.torch_npu_row(torch_npu.split("+")[0])
    if row is None or not versions.is_cann(cann.version):
        return unknown("python.torch-npu-cann-unknown", *evidence, **says)
    have = versions.cann(cann.version)
    fitting = [row.version for row in context.matrix.torch_npu if row.cann and versions.cann(row.cann) == have]
    chip = context.matrix.hardware_row(context.generation)
    if chip and chip.torch_npu and not versions.accepts(chip.torch_npu, row.version):
        args = {"torch_npu": torch_npu, "chip": chip.title, "needs": chip.torch_npu}
        known = [version for version in fitting if versions.accepts(chip.torch_npu, version)]
        return fail("python.torch-npu-cann-chip", *evidence, fix=_recommended(context, known, torch_npu), **args)
    if row.version in fitting:
        return ok("python.torch-npu-cann-pair", *evidence, **says)
    stated = (*row.cann_compatible, *row.cann_unofficial)
    named = [versions.cann(text) for text in stated if text[:1].isdigit() and "X" not in text]
    if f"{have.series[0]}.{have.series[1]}.X" in stated or have in named:
        return ok("python.torch-npu-cann-compatible", *evidence, **says)
    if _is_released(context, have):
        return ok("python.torch-npu-cann-released", *evidence, **says)
    fix = _recommended(context, fitting, torch_npu)
    pair = next((version for version in fitting if release(version) == release(torch_npu)), None)
    if not row.cann and pair is not None:
        return warn("python.torch-npu-cann-other", *evidence, fix=fix, **says, pair=pair)
    if not row.cann:
        return unknown("python.torch-npu-cann-unstated", *evidence, **says)
    return warn("python.torch-npu-cann-warn", *evidence, fix=fix, **says, recommended=row.cann)


def _is_released(context: Context, cann: versions.Version) -> bool:
    """Whether a stack was published with this CANN, this torch_npu and the installed vllm-ascend (else vllm)."""
    engine = next((name for name in ("vllm-ascend", "vllm") if context.version(name) is not None), None)
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
    torch = context.version("torch")
    row = context.matrix.companion_row(torch) if torch else None
    found = {name: context.version(name) for name in ("torchvision", "torchaudio")}
    if torch is None or row is None or not any(found.values()):
        return skip("python.companions-skip")
    wanted = {"torchvision": row.torchvision, "torchaudio": row.torchaudio}
    wrong = [name for name, version in found.items() if version and wanted[name] and release(version) != wanted[name]]
    evidence = lines(context, "torch", *found)
    if not wrong:
        return ok("python.companions-ok", *evidence, torch=torch)
    needs = tuple(f"{name}=={wanted[name]}" for name in wrong)
    fix, make = reinstall(context, *needs, options=("--no-deps",)), fail if "torchvision" in wrong else warn
    return make("python.companions-fail", *evidence, fix=fix, torch=torch, packages=needs)


def _build(context: Context) -> CheckResult:
    """Whether torch was built for CUDA, by its own version info, else by its CUDA dependencies."""
    torch, python = context.version("torch"), context.python
    if torch is None or python is None or not context.is_for_npu:
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


def triton(context: Context) -> CheckResult:
    """Triton and triton-ascend own the same files; the last one installed wins, and it has to be triton-ascend."""
    python = context.python
    ascend, plain = context.version("triton-ascend"), context.version("triton")
    if python is None or (ascend is None and (plain is None or "torch-npu" not in python.distributions)):
        return skip("no-triton-ascend")
    if ascend is None:
        fix = fix_for("python.triton-alone", pip(context, "uninstall", "triton"), resolve_here(context))
        return warn("python.triton-alone", *lines(context, "triton", "torch-npu"), fix=fix, triton=plain)
    evidence = lines(context, "triton", "triton-ascend")
    install = (f"triton-ascend=={ascend}",)
    fix = pip_fix(context, "python.triton", remove=("triton", "triton-ascend"), install=install)
    coexist = versions.accepts(f">={_COEXISTS}", ascend)
    if "ascend" not in python.triton_backends or _won(python) == "triton":
        return fail("python.triton-overwritten", *evidence, fix=fix, backends=python.triton_backends or ("-",))
    if plain is not None:
        shared = [item.count for item in python.shared_files if set(item.owners) == _TRITONS]
        says = {"triton": plain, "ascend": ascend, "count": next(iter(shared), 0)}
        return (warn if coexist else fail)("python.triton-residue", *evidence, fix=fix, **says)
    if (published := _cann(context, ascend)) is not None:
        return published
    row = context.matrix.triton_ascend_row(public(ascend))
    if row is None or not row.requires:
        return ok("python.triton-ok", *evidence, ascend=ascend)
    names = tuple(dict.fromkeys(versions.requirement_name(text) for text in row.requires))
    return ok("python.triton-ok-alone", *evidence, ascend=ascend, requires=names)


def _cann(context: Context, ascend: str) -> CheckResult | None:
    """A warning if this triton-ascend was not published for the CANN series."""
    row, cann = context.matrix.triton_ascend_row(ascend.split("+")[0]), context.cann
    if row is None or not row.cann or cann is None or not versions.is_cann(cann.version):
        return None
    if versions.cann(cann.version).series in {versions.cann(text).series for text in row.cann}:
        return None
    have = versions.cann(cann.version)
    if any(each.cann and versions.cann(each.cann) == have for each in published_as(context, "triton-ascend")):
        return None
    evidence = (*lines(context, "triton-ascend"), *context.facts.cann.toolkit.evidence)
    return warn("python.triton-cann", *evidence, ascend=ascend, cann=cann.version, published=row.cann)


def _won(python: Python) -> str:
    """The distribution whose files are present, by the sizes that each recorded; "" if that is ambiguous."""
    for item in python.shared_files:
        if set(item.owners) == _TRITONS and len(item.fits) == 2 and any(item.fits):
            one, two = item.fits
            return item.owners[0] if two == 0 else item.owners[1] if one == 0 else ""
    return ""


@given(lambda context: context.version("triton-ascend"), "no-triton-ascend")
def _chip(context: Context, ascend: str) -> CheckResult:
    chips = context.chip_generations
    if not chips:
        return skip("python.vllm-chip-skip")
    if _NO_TRITON not in chips:
        return ok("python.triton-chip-ok", ascend=ascend)
    fix = pip_fix(context, "python.triton-chip", remove=("triton-ascend", "triton"))
    evidence = (*lines(context, "triton-ascend"), *context.facts.npu.smi.evidence)
    return warn("python.triton-chip-warn", *evidence, fix=fix, ascend=ascend, chip=chips[_NO_TRITON])


_WITH_CANN = ("python.interpreter", "cann.toolkit")
_TORCH_BUILD = (
    "torch's wheels: CUDA builds on x86_64, and on aarch64 from 2.11 on; torch_npu's x86_64 wheels ask for +cpu"
)
TORCH = (
    Check("python.torch-pair", ("python.interpreter",), _PTA, torch_pair, required_for=NPU_FRAMEWORKS),
    Check("python.torch-npu-cann", _WITH_CANN, _PTA, torch_npu_cann, required_for=NPU_FRAMEWORKS),
    Check("python.torch-build", ("python.interpreter",), _TORCH_BUILD, _build),
    Check("python.torchvision", ("python.interpreter",), "matrix companions", _companions),
)
_TRITON = "triton-lang/triton-ascend README.md, #306; verl install script; vllm-project/vllm-ascend#7359"
_TRITON_CHIP = "vllm-project/vllm-ascend docs/source/installation.md: no Triton on 310P"
CHECKS = (
    Check("python.triton", ("python.interpreter",), _TRITON, triton),
    card_check("python.triton-chip", ("python.interpreter",), _TRITON_CHIP, _chip),
)
