"""Check of triton and triton-ascend: one folder, written by two distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import Check, CheckResult, Context, card_check, fail, fix_for, ok, skip, warn
from npuenv.checks.python.installed import (
    chip_generations,
    lines,
    pip,
    public,
    published_as,
    python_of,
    resolve_here,
    version_of,
)
from npuenv.core import versions

if TYPE_CHECKING:
    from npuenv.core.fact import Evidence
    from npuenv.facts.python.interpreter import Python

# From here on triton-ascend requires triton and still contains all of its files: both together are only worth a warning
# (triton-lang/triton-ascend pull request 395).
_COEXISTS = "3.2.1"
_NO_TRITON = "310p"


def triton(context: Context) -> CheckResult:
    """Triton and triton-ascend own the same files; the last one installed wins, and it has to be triton-ascend."""
    python = python_of(context)
    ascend, plain = version_of(context, "triton-ascend"), version_of(context, "triton")
    if python is None or (ascend is None and (plain is None or "torch-npu" not in python.distributions)):
        return skip("no-triton-ascend")
    if ascend is None:
        fix = fix_for("python.triton-alone", pip(context, "uninstall", "triton"), resolve_here(context))
        return warn("python.triton-alone", *lines(context, "triton", "torch-npu"), fix=fix, triton=plain)
    evidence = lines(context, "triton", "triton-ascend")
    fix = fix_for(
        "python.triton",
        pip(context, "uninstall", "triton", "triton-ascend"),
        pip(context, "install", f"triton-ascend=={ascend}"),
    )
    coexist = versions.accepts(f">={_COEXISTS}", ascend)
    if "ascend" not in python.triton_backends or _won(python) == "triton":
        return fail("python.triton-overwritten", *evidence, fix=fix, backends=python.triton_backends or ("-",))
    if plain is not None:
        shared = next(
            (item.count for item in python.shared_files if set(item.owners) == {"triton", "triton-ascend"}), 0
        )
        verdict = warn if coexist else fail
        return verdict("python.triton-residue", *evidence, fix=fix, triton=plain, ascend=ascend, count=shared)
    return _cann(context, ascend) or _well(context, ascend, evidence)


def _well(context: Context, ascend: str, evidence: tuple[Evidence, ...]) -> CheckResult:
    row = context.matrix.triton_ascend_row(public(ascend))
    if row is None or not row.requires:
        return ok("python.triton-ok", *evidence, ascend=ascend)
    names = tuple(dict.fromkeys(versions.requirement_name(text) for text in row.requires))
    return ok("python.triton-ok-alone", *evidence, ascend=ascend, requires=names)


def _cann(context: Context, ascend: str) -> CheckResult | None:
    """A warning if this triton-ascend was not published for the CANN series."""
    row, cann = context.matrix.triton_ascend_row(ascend.split("+")[0]), context.facts.cann.toolkit.value
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
        if set(item.owners) == {"triton", "triton-ascend"} and len(item.fits) == 2 and any(item.fits):
            one, two = item.fits
            return item.owners[0] if two == 0 else item.owners[1] if one == 0 else ""
    return ""


def _chip(context: Context) -> CheckResult:
    ascend = version_of(context, "triton-ascend")
    if ascend is None:
        return skip("no-triton-ascend")
    chips = chip_generations(context)
    if not chips:
        return skip("python.vllm-chip-skip")
    if _NO_TRITON not in chips:
        return ok("python.triton-chip-ok", ascend=ascend)
    fix = fix_for("python.triton-chip", pip(context, "uninstall", "triton-ascend", "triton"))
    evidence = (*lines(context, "triton-ascend"), *context.facts.npu.smi.evidence)
    return warn("python.triton-chip-warn", *evidence, fix=fix, ascend=ascend, chip=chips[_NO_TRITON])


_TRITON = "triton-lang/triton-ascend README.md, #306; verl install script; vllm-project/vllm-ascend#7359"
_TRITON_CHIP = "vllm-project/vllm-ascend docs/source/installation.md: no Triton on 310P"
CHECKS = (
    Check("python.triton", ("python.interpreter",), _TRITON, triton),
    card_check("python.triton-chip", ("python.interpreter",), _TRITON_CHIP, _chip),
)
