"""Checks of CANN: found, sourced, for this machine, compatible with the driver, of one release and with its operators.

The session's paths to it are checked in `session`, NNAL too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, card_check, fail, fix_for, given, ok, skip, unknown, warn
from npuenv.checks.cann import session as cann_session
from npuenv.checks.cann.session import INSTALL, release_of, source
from npuenv.checks.python.installed import resolve_here
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.fact import Evidence, State
from npuenv.core.finding import Status
from npuenv.facts.cann.toolkit import home_of

if TYPE_CHECKING:
    from npuenv.checks.base import CheckResult, Context
    from npuenv.core.finding import Fix
    from npuenv.facts.cann import CustomOps
    from npuenv.facts.cann.toolkit import Cann
    from npuenv.matrix.rows import Cann as CannRow
    from npuenv.matrix.rows import Hardware


_NO_KERNELS = "Ascend/pytorch docs/zh/user_guide/troubleshooting, operator_called_error.md; vllm-ascend#3046"
_VENDORS = "CANN custom operator deployment: vendors, ASCEND_CUSTOM_OPP_PATH"
_VERSION_FILES = "version.info of CANN 8.2.RC1 toolkit and 8.3 opp_kernel"


def _parts(context: Context) -> CheckResult:
    """The releases of compiler, runtime, opp, toolkit and hccl, by their version files, else by version.cfg."""
    parts, config = context.facts.cann.parts.value or (), context.facts.cann.running.value
    named = {part.name: (part.release, Evidence(part.place, part.release)) for part in parts if part.release}
    for name, release in (config.running if config else {}).items():
        named.setdefault(name, (release, Evidence("version.cfg", f"{name}_running_version {release}")))
    named.pop("opp_kernel", None)  # the kernels package has its own check
    read = {name: version for name, (text, _) in named.items() if (version := release_of(text))}
    if not read:
        return skip("cann.parts-skip")
    old, new = (end(read, key=lambda name: read[name]) for end in (min, max))
    (old_release, old_line), (new_release, new_line) = named[old], named[new]
    if read[old] == read[new]:
        return ok("cann.parts-ok", release=old_release, count=len(read))
    says = {"old": old, "old_release": old_release, "new": new, "new_release": new_release}
    make = warn if read[old].series == read[new].series else fail
    return make("cann.parts-mixed", old_line, new_line, fix="cann.parts", **says)


def _ops(context: Context) -> CheckResult:
    """The kernels (ops) package against the toolkit. Before 8.5 a newer toolkit accepts an older kernels package:
    toolkit/version.info has `required_package_opp_kernel_version=">=7.6, <=8.2"`; from 8.5 on the versions must match.
    """
    cann, ops = context.cann, context.facts.cann.ops.value
    if cann is None or ops is None:
        return skip("no-cann" if cann is None else "cann.ops-skip")
    toolkit, kernels = release_of(cann.version), release_of(ops.version)
    if toolkit is None or kernels is None:
        return skip("cann.ops-skip")
    if toolkit == kernels:
        return ok("cann.ops-ok", version=ops.version)
    lines = (*context.facts.cann.ops.evidence, *context.facts.cann.toolkit.evidence)
    is_bundled = ops.place.endswith("ascend_ops_install.info")
    verdict = fail if toolkit.series != kernels.series and (is_bundled or kernels > toolkit) else warn
    fix = _install(context, cann.version)
    return verdict("cann.ops-other", *lines, fix=fix, ops=ops.version, cann=cann.version)


def _install(context: Context, version: str) -> Fix:
    row = context.matrix.hardware_row(context.generation)
    return fix_for("cann.ops-install", version=version, chip=row.image_chip if row else "CHIP")


@given(lambda context: context.cann, "no-cann")
def _kernels(context: Context, cann: Cann) -> CheckResult:
    """Compiled operators for this machine's chip: without them the first operator fails with 561103."""
    row = context.matrix.hardware_row(context.generation)
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


@given(lambda context: context.facts.cann.custom.value, "cann.custom-none")
def _custom(context: Context, custom: CustomOps) -> CheckResult:
    """Packages of custom operators: readable, present, and with kernels for this chip."""
    if custom.unreadable:
        path = custom.unreadable[0]
        fix = fix_for("cann.custom-closed", ("chmod", "a+r", path), needs_root=True)
        return fail("cann.custom-closed", Evidence(path, "unreadable"), fix=fix, path=path)
    lost = [item for item in custom.packages if not item.is_there]
    if lost:
        lines = (Evidence(item.named_by, f"{item.path}: absent") for item in lost)
        path, named_by = lost[0].path, lost[0].named_by
        return warn("cann.custom-lost", *lines, fix="cann.custom-lost", path=path, named_by=named_by)
    row = context.matrix.hardware_row(context.generation)
    wanted = set(row.kernels) if row else set()
    other = [item for item in custom.packages if wanted and item.chips and not wanted & set(item.chips)]
    if other:
        lines = (Evidence(item.path, " ".join(item.chips or ())) for item in other)
        says = {"path": other[0].path, "chips": other[0].chips or (), "chip": min(wanted)}
        return warn("cann.custom-other", *lines, fix="cann.custom-other", **says)
    return ok("cann.custom-ok", count=len(custom.packages))


def _found(context: Context) -> CheckResult:
    fact = context.facts.cann.toolkit
    cann, lines = fact.value, fact.evidence
    if context.facts.cann.closed.value is not None:
        return _shut(context)
    if fact.state is State.UNKNOWN:
        return unknown("unknown-input", *lines, facts=("cann.toolkit",))
    if cann is None and (broken := cann_session.broken_link(context)) is not None:
        link, newest, fix = broken
        return fail("cann.cann-found-link", *lines, fix=fix, link=link, root=newest.root, version=newest.version)
    if cann is None:
        return fail("cann.cann-found-fail", *lines, fix=fix_for("cann.cann-install", resolve_here(context)))
    says = {"version": cann.version, "root": cann.root}
    if cann.torn:
        lines = (Evidence(cann.torn, "names no version"), *lines)
        return warn("cann.cann-found-torn", *lines, fix="cann.cann-reinstall", file=cann.torn, **says)
    if not cann.set_env:
        line = Evidence(cann.root, "no set_env.sh, here or in the folder above")
        return warn("cann.cann-found-no-script", line, fix="cann.cann-reinstall", **says)
    if not cann.has_install_file:
        lines = (Evidence(cann.root, "no ascend_*_install.info"), *lines)
        return warn("cann.cann-found-no-file", *lines, fix="cann.cann-reinstall", **says)
    return ok("cann.cann-found-ok", *lines, answered_by=cann.answered_by, **says)


def _shut(context: Context) -> CheckResult:
    """A toolkit is named or installed, but this user may not read its folder."""
    shut, account = context.facts.cann.closed.value, context.facts.machine.account.value
    assert shut is not None
    user = (account.name or str(account.uid)) if account else "?"
    fix = fix_for("cann.cann-closed-above", path=shut.path)
    # a complete home folder, which other users need not read
    if home_of(f"{shut.path}/") or shut.path.endswith("/Ascend"):
        fix = fix_for("cann.cann-closed", ("chmod", "-R", "a+rX", shut.path), needs_root=True)
    lines = context.facts.cann.closed.evidence
    return fail("cann.cann-found-closed", *lines, fix=fix, path=shut.path, user=user)


def why_unloadable(context: Context) -> str | None:
    """The id of the check that explains why CANN's libraries cannot be loaded; None if CANN is fine."""
    if _found(context).status is Status.FAIL:
        return "cann.found"
    is_known = context.facts.cann.toolkit.is_known and context.facts.cann.opp.state is not State.UNKNOWN
    return "cann.sourced" if is_known and _sourced(context).status is Status.FAIL else None


@given(lambda context: context.cann, "no-cann")
def _sourced(context: Context, cann: Cann) -> CheckResult:
    """The five things that torch_npu looks for, in its order; then the libraries on the loader's path."""
    environment, fix = context.environment, source(cann.set_env)
    home = environment.get("ASCEND_HOME_PATH", "").rstrip("/")
    if not home:
        return fail("cann.cann-sourced-unset", context.line("ASCEND_HOME_PATH"), fix=fix)
    if cann.answered_by != "ASCEND_HOME_PATH":
        return fail("cann.cann-sourced-nowhere", context.line("ASCEND_HOME_PATH"), fix=fix, home=home)
    if not environment.get("ASCEND_OPP_PATH"):
        return fail("cann.cann-sourced-opp-unset", context.line("ASCEND_OPP_PATH"), fix=fix)
    if context.facts.cann.opp.value != "folder":
        shown = context.line("ASCEND_OPP_PATH")
        return fail("cann.cann-sourced-opp-nowhere", shown, fix=fix, path=environment["ASCEND_OPP_PATH"])
    if cann.missing_parts:
        return fail("cann.cann-sourced-parts", fix="cann.cann-reinstall", root=cann.root, parts=cann.missing_parts)
    if not _has_libraries(context, cann.root):
        shown = context.line("LD_LIBRARY_PATH")
        return fail("cann.cann-sourced-libraries", shown, fix=fix, root=cann.root)
    return ok("cann.cann-sourced-ok", context.line("ASCEND_HOME_PATH"))


def _has_libraries(context: Context, root: str) -> bool:
    """Whether LD_LIBRARY_PATH has a folder of this toolkit, under this name or, following links, under another."""
    folders = context.environment.get("LD_LIBRARY_PATH", "").split(":")
    if any(f"{folder.rstrip('/')}/".startswith(f"{root}/") for folder in folders):
        return True
    entries = context.facts.cann.entries.value or ()
    own = {item.real or item.home for item in entries if item.variable == "ASCEND_HOME_PATH"}
    return any(item.path in folders and (item.real or item.home) in own for item in entries)


def _arch(context: Context) -> CheckResult:
    cann, arch = context.cann, context.facts.machine.arch.value
    if cann is None or not cann.arch or arch is None:
        return skip("no-cann")
    if cann.arch == arch:
        return ok("cann.cann-arch-ok", arch=arch)
    return fail("cann.cann-arch-fail", fix="cann.cann-reinstall", cann=cann.arch, machine=arch)


def _driver(context: Context) -> CheckResult:
    """CANN against the driver's HDK number, with the lines of both."""
    driver, lines = _driver_version(context)
    result = _compare_driver(context, driver)
    if result.evidence or result.status is Status.SKIP:
        return result
    return result._replace(evidence=(*context.facts.cann.toolkit.evidence, *lines))


def _compare_driver(context: Context, driver: str | None) -> CheckResult:
    """The official table gives a range; older ones name only one match."""
    cann = context.cann
    if driver is None and context.facts.npu.driver.state is State.UNKNOWN:
        return unknown("unknown-input", *context.facts.npu.driver.evidence, facts=("npu.driver",))
    if cann is None or driver is None:
        return skip("cann.cann-driver-skip")
    if "950" in context.chip_generations:  # its drivers have numbers of their own: 25.1.RC1 goes with CANN 9.1.0
        return skip("cann.cann-driver-950", driver=driver)
    try:
        row, have = context.matrix.cann_row(cann.version), versions.driver(driver)
    except BadInput:
        return unknown("cann.cann-driver-unreadable", cann=cann.version, driver=driver)
    if row is None:
        return unknown("cann.cann-driver-no-row", cann=cann.version)
    if row.driver_since and have.series < versions.driver(row.driver_since).series:
        fix = fix_for("cann.driver-update", since=row.driver_since)
        return fail("cann.cann-driver-old", fix=fix, cann=cann.version, driver=driver, since=row.driver_since)
    if row.driver_until and have.series > versions.driver(row.driver_until).series:
        return warn("cann.cann-driver-new", cann=cann.version, driver=driver, until=row.driver_until)
    if row.driver_since:
        return ok("cann.cann-driver-ok", cann=cann.version, driver=driver, since=row.driver_since)
    if any(versions.driver(name) == have for name in row.driver_named):
        return ok("cann.cann-driver-named", cann=cann.version, driver=driver)
    return _without_line(row, have, driver)


def _without_line(row: CannRow, have: versions.Version, driver: str) -> CheckResult:
    """A CANN without an official range. Public reports show working drivers a year older than the named one (23.0.3
    with 8.1.RC1, 24.1.RC3 with 8.2.RC1), so only an even older one is worth a warning.
    """
    named = row.driver_named or ("-",)
    years = [versions.driver(name).series[0] for name in row.driver_named]
    verdict = warn if years and have.series[0] < min(years) - 1 else ok
    return verdict("cann.cann-driver-no-line", cann=row.version, driver=driver, named=named)


def _driver_version(context: Context) -> tuple[str | None, tuple[Evidence, ...]]:
    """The running version (npu-smi) before that of a file: a file mounted into a container can be outdated.

    With the lines that show it.
    """
    smi, driver = context.facts.npu.smi, context.facts.npu.driver
    if smi.value is not None and smi.value.driver:
        return smi.value.driver, smi.evidence
    return (driver.value.version if driver.value is not None else None), driver.evidence


_SET_ENV = "CANN set_env.sh and torch_npu 2.13.0 _init/registry/registry_manager.py"
_HDK = "CANN 9.1.0 and 9.1.1 release notes (hiascend); cann/release-management"
_FOUND = f"{INSTALL}; torch_npu 2.13.0 utils/collect_env.py: get_cann_version"
CHECKS = (
    card_check("cann.found", ("cann.closed",), _FOUND, _found, required_for=NPU_FRAMEWORKS),
    card_check("cann.sourced", ("cann.toolkit", "cann.opp"), _SET_ENV, _sourced, required_for=NPU_FRAMEWORKS),
    *cann_session.CHECKS,
    card_check("cann.arch", ("cann.toolkit", "machine.arch"), "ascend_toolkit_install.info, arch=", _arch),
    card_check("cann.driver", ("cann.toolkit",), _HDK, _driver, required_for=NPU_FRAMEWORKS),
    card_check("cann.parts", ("cann.parts", "cann.running"), "version.cfg of CANN 8.0.0; version.info", _parts),
    card_check("cann.ops", ("cann.toolkit", "cann.ops"), _VERSION_FILES, _ops),
    card_check("cann.kernels", ("cann.toolkit",), _NO_KERNELS, _kernels),
    card_check("cann.custom-ops", ("cann.custom",), _VENDORS, _custom),
    *cann_session.NNAL_CHECKS,
)
