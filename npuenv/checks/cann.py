"""CANN and NNAL: found, sourced, of this machine, and at one with the driver."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv import versions
from npuenv.checks.base import NPU_FRAMEWORKS, Check, Context, Fix, Verdict, fail, fix, ok, skip, unsure, warn
from npuenv.errors import BadInput
from npuenv.facts.base import Evidence, State

if TYPE_CHECKING:
    from npuenv.facts.cann import Cann

_SET_ENV = "CANN set_env.sh and torch_npu 2.13.0 _init/registry/registry_manager.py"
_HDK = "CANN 9.1.0 and 9.1.1 release notes (hiascend); cann/release-management"
_INSTALL = "vllm-project/vllm-ascend docs/source/installation.md"


def _source(path: str) -> Fix:
    return fix("source", ("source", path or "CANN/set_env.sh"))


def _found(context: Context) -> Verdict:
    cann = context.facts.cann.value
    if cann is None:
        return fail("cann-found-fail", fix=fix("cann-install", ("npuenv", "resolve")))
    return ok("cann-found-ok", version=cann.version, root=cann.root, answered_by=cann.answered_by)


def _sourced(context: Context) -> Verdict:
    """The five things that torch_npu looks for, in its order; then the libraries on the loader's path."""
    cann, environment = context.facts.cann.value, context.facts.environment.value or {}
    if cann is None:
        return skip("no-cann")
    home = environment.get("ASCEND_HOME_PATH", "").rstrip("/")
    if not home:
        return fail("cann-sourced-unset", *_variable(environment, "ASCEND_HOME_PATH"), fix=_source(cann.set_env))
    if cann.answered_by != "ASCEND_HOME_PATH":
        return fail(
            "cann-sourced-nowhere", *_variable(environment, "ASCEND_HOME_PATH"), fix=_source(cann.set_env), home=home
        )
    if not environment.get("ASCEND_OPP_PATH"):
        return fail("cann-sourced-opp-unset", *_variable(environment, "ASCEND_OPP_PATH"), fix=_source(cann.set_env))
    if context.facts.opp.value != "folder":
        lines = _variable(environment, "ASCEND_OPP_PATH")
        return fail("cann-sourced-opp-nowhere", *lines, fix=_source(cann.set_env), path=environment["ASCEND_OPP_PATH"])
    if cann.missing_parts:
        return fail("cann-sourced-parts", fix=fix("cann-reinstall"), root=cann.root, parts=cann.missing_parts)
    folders = [folder.rstrip("/") for folder in environment.get("LD_LIBRARY_PATH", "").split(":")]
    if not any(folder.startswith(cann.root) for folder in folders):
        return fail(
            "cann-sourced-libraries",
            *_variable(environment, "LD_LIBRARY_PATH"),
            fix=_source(cann.set_env),
            root=cann.root,
        )
    return ok("cann-sourced-ok", *_variable(environment, "ASCEND_HOME_PATH"))


def _variable(environment: object, name: str) -> tuple[Evidence, ...]:
    value = environment.get(name) if isinstance(environment, dict) else None
    return (Evidence("environment", f"{name}={value}" if value is not None else f"{name} is not set"),)


def _arch(context: Context) -> Verdict:
    cann, arch = context.facts.cann.value, context.facts.arch.value
    if cann is None or not cann.arch or arch is None:
        return skip("no-cann")
    if cann.arch == arch:
        return ok("cann-arch-ok", arch=arch)
    return fail("cann-arch-fail", fix=fix("cann-reinstall"), cann=cann.arch, machine=arch)


def _driver(context: Context) -> Verdict:
    """CANN against the driver's HDK number. The official line gives a range; older ones only name a match."""
    cann, driver = context.facts.cann.value, _driver_version(context)
    if driver is None and context.facts.driver.state is State.UNKNOWN:
        return unsure("unknown-input", *context.facts.driver.evidence, facts=("driver",))
    if cann is None or driver is None:
        return skip("cann-driver-skip")
    if _is_950(context):
        return skip("cann-driver-950", driver=driver)
    try:
        row, have = context.matrix.cann_row(cann.version), versions.driver(driver)
    except BadInput:
        return unsure("cann-driver-unreadable", cann=cann.version, driver=driver)
    if row is None:
        return unsure("cann-driver-no-row", cann=cann.version)
    if row.driver_since and have.series < versions.driver(row.driver_since).series:
        cure = fix("driver-update", since=row.driver_since)
        return fail("cann-driver-old", fix=cure, cann=cann.version, driver=driver, since=row.driver_since)
    if row.driver_until and have.series > versions.driver(row.driver_until).series:
        return warn("cann-driver-new", cann=cann.version, driver=driver, until=row.driver_until)
    if row.driver_since:
        return ok("cann-driver-ok", cann=cann.version, driver=driver, since=row.driver_since)
    if any(versions.driver(name) == have for name in row.driver_named):
        return ok("cann-driver-named", cann=cann.version, driver=driver)
    return warn("cann-driver-no-line", cann=cann.version, driver=driver, named=row.driver_named or ("-",))


def _is_950(context: Context) -> bool:
    """Whether the cards are of the line that numbers its drivers by itself: 25.1.RC1 goes with CANN 9.1.0 there."""
    table = context.facts.smi.value
    names = {card.name for card in table.cards if card.name} if table else set()
    return any((row := context.matrix.hardware_of_chip(name)) is not None and row.id == "950" for name in names)


def _driver_version(context: Context) -> str | None:
    """What runs (npu-smi) before what a file says: a file mounted into a container can be stale."""
    table, driver = context.facts.smi.value, context.facts.driver.value
    if table is not None and table.driver:
        return table.driver
    return driver.version if driver is not None else None


def _nnal(context: Context) -> Verdict:
    nnal, cann = context.facts.nnal.value, context.facts.cann.value
    if nnal is not None:
        if cann is not None and not _same_series(nnal.version, cann):
            return warn(
                "nnal-other", fix=fix("nnal-install", version=cann.version), nnal=nnal.version, cann=cann.version
            )
        return ok("nnal-ok", version=nnal.version)
    if cann is None:
        return skip("no-cann")
    cure = fix("nnal-install", version=cann.version)
    return fail("nnal-fail", fix=cure) if context.framework in NPU_FRAMEWORKS else warn("nnal-fail", fix=cure)


def _same_series(version: str, cann: Cann) -> bool:
    try:
        return versions.cann(version).series == versions.cann(cann.version).series
    except BadInput:
        return True  # an unreadable number proves no disagreement


def _nnal_sourced(context: Context) -> Verdict:
    nnal, environment = context.facts.nnal.value, context.facts.environment.value or {}
    if nnal is None:
        return skip("nnal-sourced-skip")
    path = f"{nnal.root.removesuffix('/latest')}/set_env.sh"
    if not environment.get("ATB_HOME_PATH"):
        return warn("nnal-sourced-unset", *_variable(environment, "ATB_HOME_PATH"), fix=_source(path))
    kinds = re.findall(r"cxx_abi_([01])/lib(?:[:/]|$)", environment.get("LD_LIBRARY_PATH", ""))
    if len(set(kinds)) > 1:
        lines = _variable(environment, "LD_LIBRARY_PATH")
        return warn("nnal-sourced-mixed", *lines, fix=fix("nnal-mixed"), first=kinds[0])
    return ok("nnal-sourced-ok", *_variable(environment, "ATB_HOME_PATH"))


CHECKS = (
    Check("cann.found", ("cann",), _INSTALL, _found, is_about_cards=True, required_for=NPU_FRAMEWORKS),
    Check("cann.sourced", ("cann", "opp"), _SET_ENV, _sourced, is_about_cards=True, required_for=NPU_FRAMEWORKS),
    Check("cann.arch", ("cann", "arch"), "ascend_toolkit_install.info, arch=", _arch, is_about_cards=True),
    Check("cann.driver", ("cann",), _HDK, _driver, is_about_cards=True, required_for=NPU_FRAMEWORKS),
    Check("nnal.present", ("nnal",), _INSTALL, _nnal, is_about_cards=True, required_for=NPU_FRAMEWORKS),
    Check("nnal.sourced", ("nnal",), "vllm-project/vllm-ascend issue 6299", _nnal_sourced, is_about_cards=True),
)
