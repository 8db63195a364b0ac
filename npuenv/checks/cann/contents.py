"""Checks of a CANN's content: parts of one release, compiled operators for this chip, loadable custom operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import card_check, fail, fix_for, ok, skip, unknown, warn
from npuenv.checks.session.variables import generation
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.fact import Evidence, State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npuenv.checks.base import CheckResult, Context
    from npuenv.core.finding import Fix
    from npuenv.matrix.rows import Hardware

_NO_KERNELS = "Ascend/pytorch docs/zh/user_guide/troubleshooting, operator_called_error.md; vllm-ascend#3046"
_VENDORS = "CANN custom operator deployment: vendors, ASCEND_CUSTOM_OPP_PATH"
_VERSION_FILES = "version.info of CANN 8.2.RC1 toolkit and 8.3 opp_kernel"


def _release(text: str) -> versions.Version | None:
    try:
        return versions.cann(text)
    except BadInput:
        return None


def _parts(context: Context) -> CheckResult:
    """The releases of compiler, runtime, opp, toolkit and hccl, by their version files, else by version.cfg."""
    parts, config = context.facts.cann.parts.value or (), context.facts.cann.running.value
    named = {part.name: (part.release, Evidence(part.place, part.release)) for part in parts if part.release}
    for name, release in (config.running if config else {}).items():
        named.setdefault(name, (release, Evidence("version.cfg", f"{name}_running_version {release}")))
    named.pop("opp_kernel", None)  # the kernels package has its own check
    read = {name: (release, version, path) for name, (release, path) in named.items() if (version := _release(release))}
    if not read:
        return skip("cann.parts-skip")
    oldest = min(read.items(), key=lambda item: item[1][1])
    newest = max(read.items(), key=lambda item: item[1][1])
    if oldest[1][1] == newest[1][1]:
        return ok("cann.parts-ok", release=oldest[1][0], count=len(read))
    says = {"old": oldest[0], "old_release": oldest[1][0], "new": newest[0], "new_release": newest[1][0]}
    lines = (oldest[1][2], newest[1][2])
    is_far = oldest[1][1].series != newest[1][1].series
    return (fail if is_far else warn)("cann.parts-mixed", *lines, fix=fix_for("cann.parts"), **says)


def _ops(context: Context) -> CheckResult:
    """The kernels (ops) package against the toolkit. Before 8.5 a newer toolkit accepts an older kernels package:
    toolkit/version.info has `required_package_opp_kernel_version=">=7.6, <=8.2"`; from 8.5 on the versions must match.
    """
    cann, ops = context.facts.cann.toolkit.value, context.facts.cann.ops.value
    if cann is None or ops is None:
        return skip("no-cann" if cann is None else "cann.ops-skip")
    toolkit, kernels = _release(cann.version), _release(ops.version)
    if toolkit is None or kernels is None:
        return skip("cann.ops-skip")
    if toolkit == kernels:
        return ok("cann.ops-ok", version=ops.version)
    lines = (*context.facts.cann.ops.evidence, *context.facts.cann.toolkit.evidence)
    fix = _install(context, cann.version)
    is_bundled = ops.place.endswith("ascend_ops_install.info")
    if toolkit.series != kernels.series and (is_bundled or kernels > toolkit):
        return fail("cann.ops-other", *lines, fix=fix, ops=ops.version, cann=cann.version)
    return warn("cann.ops-other", *lines, fix=fix, ops=ops.version, cann=cann.version)


def _install(context: Context, version: str) -> Fix:
    row = context.matrix.hardware_row(generation(context))
    return fix_for("cann.ops-install", version=version, chip=row.image_chip if row else "CHIP")


def _kernels(context: Context) -> CheckResult:
    """Compiled operators for this machine's chip: without them the first operator fails with 561103."""
    cann, row = context.facts.cann.toolkit.value, context.matrix.hardware_row(generation(context))
    if cann is None:
        return skip("no-cann")
    fact, fix = context.facts.cann.kernels, _install(context, cann.version)
    if row is None or not row.kernels:
        return _for_any_chip(context, fix)
    kernels, says = fact.value, {"chip": row.kernels[0]}
    if kernels is None:
        return _by_package(context, row, fix)
    if set(row.kernels) & set(kernels.chips):
        return ok("cann.kernels-ok", **says)
    if set(row.kernels) & set(kernels.hollow):
        return fail("cann.kernels-hollow", *fact.evidence, fix=fix, folder=kernels.folder, **says)
    if kernels.chips:
        return fail("cann.kernels-other", *fact.evidence, fix=fix, chips=kernels.chips, **says)
    return fail("cann.kernels-none", *fact.evidence, fix=fix, folder=kernels.folder, **says)


def _for_any_chip(context: Context, fix: Fix) -> CheckResult:
    """Without the chip's name, because npu-smi lists none: reports only a CANN without kernels for any chip."""
    fact, npu = context.facts.cann.kernels, context.facts.npu
    if npu.smi.value is not None and npu.smi.value.cards:
        return skip("cann.kernels-skip")
    if fact.value is not None and not fact.value.chips:
        return fail("cann.kernels-none-at-all", *fact.evidence, fix=fix, folder=fact.value.folder)
    if not (npu.smi_trouble.is_known or npu.smi.state is State.UNKNOWN):
        return skip("cann.kernels-skip")
    if fact.value is None:
        return unknown("cann.kernels-unread", *npu.smi_trouble.evidence)
    return unknown("cann.kernels-no-chip", *npu.smi_trouble.evidence, chips=fact.value.chips)


def _by_package(context: Context, row: Hardware, fix: Fix) -> CheckResult:
    """The chip in the package's name, if its folders are not visible."""
    fact = context.facts.cann.ops
    if fact.value is None or not fact.value.chip:
        return unknown("unknown-input", *context.facts.cann.kernels.evidence, facts=("cann.kernels",))
    if fact.value.chip.casefold() == row.image_chip.casefold():
        return ok("cann.kernels-ok", *fact.evidence, chip=row.kernels[0])
    return fail("cann.kernels-other", *fact.evidence, fix=fix, chips=(fact.value.chip,), chip=row.kernels[0])


def _custom(context: Context) -> CheckResult:
    """Packages of custom operators: readable, present, and with kernels for this chip."""
    fact = context.facts.cann.custom
    if fact.value is None:
        return skip("cann.custom-none")
    if fact.value.unreadable:
        path = fact.value.unreadable[0]
        fix = fix_for("cann.custom-closed", ("chmod", "a+r", path), needs_root=True)
        return fail("cann.custom-closed", Evidence(path, "unreadable"), fix=fix, path=path)
    lost = [item for item in fact.value.packages if not item.is_there]
    if lost:
        lines = _places((item.named_by, f"{item.path}: absent") for item in lost)
        fix = fix_for("cann.custom-lost")
        return warn("cann.custom-lost", *lines, fix=fix, path=lost[0].path, named_by=lost[0].named_by)
    row = context.matrix.hardware_row(generation(context))
    wanted = set(row.kernels) if row else set()
    other = [item for item in fact.value.packages if wanted and item.chips and not wanted & set(item.chips)]
    if other:
        lines = _places((item.path, " ".join(item.chips or ())) for item in other)
        says = {"path": other[0].path, "chips": other[0].chips or (), "chip": min(wanted)}
        return warn("cann.custom-other", *lines, fix=fix_for("cann.custom-other"), **says)
    return ok("cann.custom-ok", count=len(fact.value.packages))


def _places(pairs: Iterable[tuple[str, str]]) -> tuple[Evidence, ...]:
    return tuple(Evidence(location, line) for location, line in pairs)


CHECKS = (
    card_check("cann.parts", ("cann.parts", "cann.running"), "version.cfg of CANN 8.0.0; version.info", _parts),
    card_check("cann.ops", ("cann.toolkit", "cann.ops"), _VERSION_FILES, _ops),
    card_check("cann.kernels", ("cann.toolkit",), _NO_KERNELS, _kernels),
    card_check("cann.custom-ops", ("cann.custom",), _VENDORS, _custom),
)
