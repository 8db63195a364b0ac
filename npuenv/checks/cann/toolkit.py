"""Checks of CANN: found, sourced, for this machine, and compatible with the driver.

The content of a toolkit is checked in `contents`, the session's paths to it in `session`, NNAL in `nnal`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, CheckResult, Context, card_check, fail, fix_for, ok, skip, unknown, warn
from npuenv.checks.cann import contents as cann_contents
from npuenv.checks.cann import nnal
from npuenv.checks.cann import session as cann_session
from npuenv.checks.cann.session import source
from npuenv.checks.python.installed import chip_generations, resolve_here
from npuenv.checks.session.variables import line
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.fact import Evidence, State
from npuenv.core.finding import Status
from npuenv.facts.cann.toolkit import home_of

if TYPE_CHECKING:
    from npuenv.matrix.rows import Cann as CannRow

_SET_ENV = "CANN set_env.sh and torch_npu 2.13.0 _init/registry/registry_manager.py"
_HDK = "CANN 9.1.0 and 9.1.1 release notes (hiascend); cann/release-management"
_INSTALL = "vllm-project/vllm-ascend docs/source/installation.md"


def _found(context: Context) -> CheckResult:
    fact = context.facts.cann.toolkit
    cann, lines = fact.value, fact.evidence
    if context.facts.cann.closed.value is not None:
        return _shut(context)
    if fact.state is State.UNKNOWN:
        return unknown("unknown-input", *lines, facts=("cann.toolkit",))
    if cann is None and (link := cann_session.broken_link(context)) is not None:
        return fail("cann.cann-found-link", *lines, fix=link.fix, link=link.path, root=link.root, version=link.version)
    if cann is None:
        return fail("cann.cann-found-fail", *lines, fix=fix_for("cann.cann-install", resolve_here(context)))
    says = {"version": cann.version, "root": cann.root}
    if cann.torn:
        lines = (Evidence(cann.torn, "names no version"), *lines)
        return warn("cann.cann-found-torn", *lines, fix=fix_for("cann.cann-reinstall"), file=cann.torn, **says)
    if not cann.set_env:
        line = Evidence(cann.root, "no set_env.sh, here or in the folder above")
        return warn("cann.cann-found-no-script", line, fix=fix_for("cann.cann-reinstall"), **says)
    if not cann.has_install_file:
        lines = (Evidence(cann.root, "no ascend_*_install.info"), *lines)
        return warn("cann.cann-found-no-file", *lines, fix=fix_for("cann.cann-reinstall"), **says)
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


def _sourced(context: Context) -> CheckResult:
    """The five things that torch_npu looks for, in its order; then the libraries on the loader's path."""
    cann, environment = context.facts.cann.toolkit.value, context.environment
    if cann is None:
        return skip("no-cann")
    fix = source(cann.set_env)
    home = environment.get("ASCEND_HOME_PATH", "").rstrip("/")
    if not home:
        return fail("cann.cann-sourced-unset", line(context, "ASCEND_HOME_PATH"), fix=fix)
    if cann.answered_by != "ASCEND_HOME_PATH":
        return fail("cann.cann-sourced-nowhere", line(context, "ASCEND_HOME_PATH"), fix=fix, home=home)
    if not environment.get("ASCEND_OPP_PATH"):
        return fail("cann.cann-sourced-opp-unset", line(context, "ASCEND_OPP_PATH"), fix=fix)
    if context.facts.cann.opp.value != "folder":
        shown = line(context, "ASCEND_OPP_PATH")
        return fail("cann.cann-sourced-opp-nowhere", shown, fix=fix, path=environment["ASCEND_OPP_PATH"])
    if cann.missing_parts:
        fix = fix_for("cann.cann-reinstall")
        return fail("cann.cann-sourced-parts", fix=fix, root=cann.root, parts=cann.missing_parts)
    if not _has_libraries(context, cann.root):
        shown = line(context, "LD_LIBRARY_PATH")
        return fail("cann.cann-sourced-libraries", shown, fix=fix, root=cann.root)
    return ok("cann.cann-sourced-ok", line(context, "ASCEND_HOME_PATH"))


def _has_libraries(context: Context, root: str) -> bool:
    """Whether LD_LIBRARY_PATH has a folder of this toolkit, under this name or, following links, under another."""
    folders = context.environment.get("LD_LIBRARY_PATH", "").split(":")
    if any(f"{folder.rstrip('/')}/".startswith(f"{root}/") for folder in folders):
        return True
    entries = context.facts.cann.entries.value or ()
    own = {item.real or item.home for item in entries if item.variable == "ASCEND_HOME_PATH"}
    return any(item.path in folders and (item.real or item.home) in own for item in entries)


def _arch(context: Context) -> CheckResult:
    cann, arch = context.facts.cann.toolkit.value, context.facts.machine.arch.value
    if cann is None or not cann.arch or arch is None:
        return skip("no-cann")
    if cann.arch == arch:
        return ok("cann.cann-arch-ok", arch=arch)
    return fail("cann.cann-arch-fail", fix=fix_for("cann.cann-reinstall"), cann=cann.arch, machine=arch)


def _driver(context: Context) -> CheckResult:
    """CANN against the driver's HDK number. The official table gives a range; older ones name only one match."""
    cann, driver = context.facts.cann.toolkit.value, _driver_version(context)
    if driver is None and context.facts.npu.driver.state is State.UNKNOWN:
        return unknown("unknown-input", *context.facts.npu.driver.evidence, facts=("driver",))
    if cann is None or driver is None:
        return skip("cann.cann-driver-skip")
    if "950" in chip_generations(context):  # its drivers have numbers of their own: 25.1.RC1 goes with CANN 9.1.0
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
    if years and have.series[0] < min(years) - 1:
        return warn("cann.cann-driver-no-line", cann=row.version, driver=driver, named=named)
    return ok("cann.cann-driver-no-line", cann=row.version, driver=driver, named=named)


def _driver_version(context: Context) -> str | None:
    """The running version (npu-smi) before that of a file: a file mounted into a container can be outdated."""
    table, driver = context.facts.npu.smi.value, context.facts.npu.driver.value
    if table is not None and table.driver:
        return table.driver
    return driver.version if driver is not None else None


_FOUND = f"{_INSTALL}; torch_npu 2.13.0 utils/collect_env.py: get_cann_version"
CHECKS = (
    card_check("cann.found", ("cann.closed",), _FOUND, _found, required_for=NPU_FRAMEWORKS),
    card_check("cann.sourced", ("cann.toolkit", "cann.opp"), _SET_ENV, _sourced, required_for=NPU_FRAMEWORKS),
    *cann_session.CHECKS,
    card_check("cann.arch", ("cann.toolkit", "machine.arch"), "ascend_toolkit_install.info, arch=", _arch),
    card_check("cann.driver", ("cann.toolkit",), _HDK, _driver, required_for=NPU_FRAMEWORKS),
    *cann_contents.CHECKS,
    *nnal.CHECKS,
)
