"""Checks of vllm and vllm-ascend: whether they match, how they were built, and what this release requires."""

from __future__ import annotations

import os.path
import re
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, Check, CheckResult, Context, fail, fix_for, ok, skip, unknown, warn
from npuenv.checks.python.installed import (
    accepts,
    gap,
    is_for_gpus,
    lines,
    public,
    published_as,
    reinstall,
    safe_install,
    vllm_ascend_row,
    where,
)
from npuenv.checks.python.limits import broken_limits, numpy_era
from npuenv.checks.python.torch_family import torch_npu_cann, torch_pair, triton
from npuenv.core import versions
from npuenv.core.fact import Evidence
from npuenv.core.finding import Fix, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.facts.cann.toolkit import CannFolder
    from npuenv.matrix.rows import VllmAscend

_VA = "vllm-project/vllm-ascend docs/source/community/versioning_policy.md"
_DEVICE_TYPES = {"A2": "a2", "A3": "a3", "310P": "310p", "_310P": "310p", "A5": "950"}
_NEEDS = ("torch", "torch-npu", "triton-ascend", "numpy", "transformers", "opencv-python-headless")
# The checks that report it already, with better advice: a release's metadata repeats the requirements of CANN and pair.
_ELSEWHERE: Mapping[str, tuple[Callable[[Context], CheckResult], ...]] = {
    "torch": (torch_pair,),
    "torch-npu": (torch_pair, torch_npu_cann),
    "triton-ascend": (triton,),
    "numpy": (numpy_era,),
}
_UNREADABLE = re.compile(r"(0\.1\.dev|0\.0\.0|0\.1$|dev$|unknown)")


def _reported_version(context: Context, vllm: str) -> str:
    """The version that vllm-ascend uses: VLLM_VERSION if set, for builds without a version of their own."""
    return context.environment.get("VLLM_VERSION") or vllm


def _pair(context: Context) -> CheckResult:
    """vllm against vllm-ascend: at run time a mismatch gives only a log line and an unspecified platform."""
    vllm, ascend = context.version("vllm"), context.version("vllm-ascend")
    if vllm is None or ascend is None:
        return _alone(context, vllm, ascend)
    if _UNREADABLE.match(_reported_version(context, vllm)):
        return skip("python.because", cause="python.vllm-version")
    row = vllm_ascend_row(context)
    evidence = lines(context, "vllm", "vllm-ascend")
    if row is None:
        return unknown("python.vllm-unknown", *evidence, vllm=vllm, ascend=ascend)
    if public(_reported_version(context, vllm)) == public(row.vllm):
        if is_for_gpus(vllm):
            return warn("python.vllm-gpu", *evidence, fix="python.vllm-gpu", vllm=vllm)
        return _transformers(context, row) or ok("python.vllm-ok", *evidence, vllm=vllm, ascend=ascend)
    fitting, fix = _fitting_plugin(context), fix_for("python.vllm-plain", wanted=f"vllm=={public(row.vllm)}")
    if fitting is not None:
        fix = reinstall(context, f"vllm-ascend=={fitting.version}")
    return fail("python.vllm-fail", *evidence, fix=fix, vllm=vllm, ascend=ascend, wanted=row.vllm)


def _fitting_plugin(context: Context) -> VllmAscend | None:
    """The vllm-ascend published for the installed vllm, torch and torch_npu, if it is another one.

    Then the plugin is the outlier, and changing it alone fixes the environment.
    """
    vllm, ascend = context.version("vllm"), context.version("vllm-ascend")
    pair = [(name, context.version(name)) for name in ("torch", "torch-npu")]
    if vllm is None or ascend is None:
        return None
    reported = public(_reported_version(context, vllm))
    rows = [row for row in context.matrix.vllm_ascend if public(row.vllm) == reported]
    rows = [row for row in rows if all(has and accepts(row.requirement(name), has) is True for name, has in pair)]
    return None if public(ascend) in {row.version for row in rows} else _final(rows)


def _final(rows: list[VllmAscend]) -> VllmAscend | None:
    """The first release that is no candidate, else the first one; None without any."""
    return next((row for row in rows if "rc" not in row.version), next(iter(rows), None))


def _alone(context: Context, vllm: str | None, ascend: str | None) -> CheckResult:
    """One of the two without the other: the plugin has nothing to extend, and vllm alone finds no platform."""
    if ascend is not None:
        row, evidence = vllm_ascend_row(context), lines(context, "vllm-ascend", "vllm")
        fix = fix_for("python.vllm-plain", wanted=f"vllm=={public(row.vllm)}" if row is not None else "vllm")
        return fail("python.vllm-alone-ascend", *evidence, fix=fix, ascend=ascend)
    # SGLang uses parts of vllm and runs on NPUs without the plugin.
    if vllm is None or not context.is_for_npu or context.version("sglang") is not None:
        return skip("python.no-vllm")
    final = _final([row for row in context.matrix.vllm_ascend if public(row.vllm) == public(vllm)])
    add = reinstall(context, f"vllm-ascend=={final.version}" if final is not None else "vllm-ascend")
    return fail("python.vllm-alone", *lines(context, "vllm", "vllm-ascend"), fix=add, vllm=vllm)


def _transformers(context: Context, row: VllmAscend) -> CheckResult | None:
    """A failure if transformers is of a newer major version than this vllm-ascend accepts.

    Other differences are ignored: published images replace the exact pins of some releases within the same major
    version.
    """
    have, needs = context.version("transformers"), row.requirement("transformers")
    if not _is_too_new(context, row) or "transformers" in {name for _, name in broken_limits(context)}:
        return None  # reported by the check of limits, with both bounds
    fix = reinstall(context, f"transformers{needs}")
    evidence = lines(context, "transformers", "vllm-ascend")
    return fail("python.vllm-transformers", *evidence, fix=fix, have=have, needs=needs)


def _is_too_new(context: Context, row: VllmAscend) -> bool:
    have, needs = context.version("transformers"), row.requirement("transformers")
    if have is None or not needs or accepts(needs, have) is not False:
        return False
    limits = [each.version for each in versions.specifier(needs) if each.operator in ("<", "<=")]
    return any(versions.python_version(have).major >= versions.python_version(limit).major for limit in limits)


def _version(context: Context) -> CheckResult:
    """A vllm built without tags has a version like 0.1.dev, and vllm-ascend chooses its patches by that number."""
    vllm, ascend = context.version("vllm"), context.version("vllm-ascend")
    if vllm is None or ascend is None:
        return skip("python.no-vllm")
    reported = _reported_version(context, vllm)
    if not _UNREADABLE.match(reported):
        return ok("python.vllm-version-ok", vllm=reported)
    row = vllm_ascend_row(context)
    wanted = public(row.vllm) if row is not None else "X.Y.Z"
    fix = fix_for("python.vllm-version", ("export", f"VLLM_VERSION={wanted}"))
    return fail("python.vllm-version-fail", *lines(context, "vllm", "vllm-ascend"), fix=fix, vllm=reported)


def _build(context: Context) -> CheckResult:
    """A vllm for NPUs has no compiled part of its own."""
    vllm, packages = context.version("vllm"), context.facts.python.packages.value
    if vllm is None or packages is None or context.version("vllm-ascend") is None or not context.is_for_npu:
        return skip("python.no-vllm")
    if is_for_gpus(vllm):
        return skip("python.because", cause="python.vllm-pair")
    extensions = packages.extensions.get("vllm", ())
    compiled = [path for path in extensions if re.match(r"_(C|moe_C)\b", os.path.basename(path))]
    if not compiled:
        return ok("python.vllm-build-ok", vllm=vllm)
    evidence = (Evidence(where(context), path) for path in compiled)
    return warn("python.vllm-build-cuda", *evidence, fix="python.vllm-gpu", vllm=vllm)


def _needs(context: Context) -> CheckResult:
    """The metadata requirements of this vllm-ascend, except those that a published stack overrides."""
    ascend, row = context.version("vllm-ascend"), vllm_ascend_row(context)
    if ascend is None or row is None:
        return skip("python.no-vllm")
    if _is_odd_plugin(context):
        return skip("python.because", cause="python.vllm-pair")
    unmet = {name: spec for name in _NEEDS if (spec := row.requirement(name)) and _lacks(context, row, name, spec)}
    for name in list(unmet):
        is_told = any(judge(context).status in (Status.FAIL, Status.WARN) for judge in _ELSEWHERE.get(name, ()))
        if is_told or (name == "transformers" and _is_too_new(context, row)):
            del unmet[name]
    if not unmet:
        return ok("python.vllm-needs-ok", ascend=ascend)
    evidence = lines(context, "vllm-ascend", *unmet)
    shown = tuple(gap(f"{name}{spec}", context.version(name)) for name, spec in unmet.items())
    fix = safe_install(context, "python.reinstall", *(f"{name}{spec}" for name, spec in unmet.items()))
    if "torch-npu" in unmet and context.version("torch-npu") is None:
        needs = f"torch-npu{unmet['torch-npu']}"
        return fail("python.vllm-needs-torch-npu", *evidence, fix=fix, ascend=ascend, needs=needs)
    verdict = fail if {"torch", "torch-npu"} & set(unmet) else warn
    return verdict("python.vllm-needs", *evidence, fix=fix, ascend=ascend, packages=shown)


def _is_odd_plugin(context: Context) -> bool:
    """Whether only vllm-ascend has to change: then its requirements say nothing about this environment."""
    return _pair(context).status is Status.FAIL and _fitting_plugin(context) is not None


def _lacks(context: Context, row: VllmAscend, name: str, spec: str) -> bool:
    """Whether a package differs from that of the release and of any published stack with the release."""
    has = context.version(name)
    if has is None:  # the 310P needs no triton; with unknown cards nothing is reported
        chips = context.chip_generations
        return name in ("torch-npu", "triton-ascend") and bool(chips) and "310p" not in chips
    # The policy table and the release's own images count as much as its metadata.
    named = {row.torch_npu, *(image.torch_npu for image in row.image)} if name == "torch-npu" else set()
    if accepts(spec, has) is not False or public(has) in named:
        return False
    return not any(published_as(context, "vllm-ascend", name))


def _chip(context: Context) -> CheckResult:
    """The chip that vllm-ascend was built for, from its build information, against the cards."""
    packages, ascend = context.facts.python.packages.value, context.version("vllm-ascend")
    reported = packages.built.get("vllm_ascend", {}) if packages is not None else {}
    text = reported.get("device_type") or reported.get("soc_version") or ""
    if ascend is None or not text:
        return skip("python.vllm-chip-skip")
    row = context.matrix.hardware_of_chip(text)
    built_for = _DEVICE_TYPES.get(text) or (row.id if row is not None else "")
    known = {name: context.matrix.hardware_row(generation) for generation, name in context.chip_generations.items()}
    # Cards of the first generation are reported by their own check.
    chips = {name: chip for name, chip in known.items() if chip is not None and chip.accepted}
    if not chips or not built_for:
        return skip("python.vllm-chip-skip") if not chips else unknown("python.vllm-chip-unknown", built=text)
    if built_for in {chip.id for chip in chips.values()}:
        return ok("python.vllm-chip-ok", built=text)
    name, chip = next(iter(chips.items()))
    evidence = (Evidence("vllm_ascend/_build_info.py", text), *context.facts.npu.smi.evidence)
    fix = fix_for("python.vllm-chip", soc=chip.socs[0] if chip.socs else chip.id)
    return fail("python.vllm-chip-fail", *evidence, fix=fix, ascend=ascend, built=text, chip=name)


def _cann(context: Context) -> CheckResult:
    """A CANN older than any that this vllm-ascend, its images or a published stack with it name. Series are compared.

    The check of torch_npu's compatible set covers newer ones.
    """
    row, cann = vllm_ascend_row(context), context.cann
    if row is None or cann is None:
        return skip("python.no-vllm" if row is None else "no-cann")
    if _is_odd_plugin(context):
        return skip("python.because", cause="python.vllm-pair")
    named = [text for text in (row.cann, row.cann_image, *(image.cann for image in row.image)) if text]
    series = sorted(versions.cann(text).series for text in named if versions.is_cann(text))
    if not versions.is_cann(cann.version):
        return skip("python.vllm-cann-unread", cann=cann.version)
    has = versions.cann(cann.version).series
    if not series or has >= series[0]:
        return ok("python.vllm-cann-ok", ascend=row.version, cann=cann.version)
    torch_npu = context.version("torch-npu")
    if torch_npu is not None and not _is_compatible(context, public(torch_npu), cann.version):
        return skip("python.because", cause="python.torch-npu-cann")
    if any(versions.cann(each.cann).series == has for each in published_as(context, "vllm-ascend") if each.cann):
        return ok("python.vllm-cann-ok", ascend=row.version, cann=cann.version)
    evidence = (*lines(context, "vllm-ascend"), *context.facts.cann.toolkit.evidence)
    args = {"ascend": row.version, "cann": cann.version, "named": tuple(dict.fromkeys(named))}
    installs = context.facts.cann.installs.value
    found = [item for item in (installs.found if installs else ()) if versions.is_cann(item.version)]
    other = next((item for item in found if versions.cann(item.version).series in series), None)
    if other is not None:
        in_use = [item for item in found if item.version == cann.version]
        fix, line = _switch(in_use, other), Evidence(other.root, f"CANN {other.version}")
        return warn("python.vllm-cann-other", *evidence, line, fix=fix, **args, other=other.version)
    resolve = ("npuenv", "resolve", "--host", "this", "--for", "vllm-ascend", "--cann", cann.version)
    return warn("python.vllm-cann-warn", *evidence, fix=fix_for("python.vllm-cann", resolve), **args)


def _switch(in_use: list[CannFolder], to: CannFolder) -> Fix:
    """The fix that switches the session to another install: by the links in use, if they are beside it."""
    folder = os.path.dirname(to.root)
    links = [link for item in in_use for link in item.links if os.path.dirname(link) == folder]
    commands = (("ln", "-sfn", to.root, link) for link in links)
    return fix_for("python.vllm-cann-other", *commands, needs_root=bool(links), root=to.root, version=to.version)


def _is_compatible(context: Context, torch_npu: str, cann: str) -> bool:
    row = context.matrix.torch_npu_row(torch_npu)
    stated = (row.cann, *row.cann_compatible, *row.cann_unofficial) if row is not None else ()
    return any(versions.covers_cann(text, cann) for text in stated if text[:1].isdigit())


_VLLM_VERSION = "vllm-project/vllm-ascend docs/source/faqs.md: VLLM_VERSION; vllm_ascend/utils.py vllm_version_is"
_VLLM_BUILD = "vllm-project/vllm-ascend docs/source/installation.md: VLLM_TARGET_DEVICE=empty; vllm wheel metadata"
_VLLM_ASCEND_CHIP = "vllm-project/vllm-ascend#11160; vllm_ascend/utils.py check_ascend_device_type"
_VLLM_ASCEND_CANN = f"{_VA}; vllm-project/vllm-ascend#672"
CHECKS = (
    Check("python.vllm-pair", ("python.interpreter",), _VA, _pair, required_for=NPU_FRAMEWORKS),
    Check("python.vllm-version", ("python.interpreter",), _VLLM_VERSION, _version),
    Check("python.vllm-build", ("python.interpreter", "python.packages"), _VLLM_BUILD, _build),
    Check("python.vllm-ascend-needs", ("python.interpreter",), f"{_VA}; wheel metadata; #143, #7587", _needs),
    Check("python.vllm-ascend-chip", ("python.interpreter", "python.packages"), _VLLM_ASCEND_CHIP, _chip),
    Check("python.vllm-ascend-cann", ("python.interpreter", "cann.toolkit"), _VLLM_ASCEND_CANN, _cann),
)
