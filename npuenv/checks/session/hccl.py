"""Checks of HCCL's settings: values, and settings that exclude each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import card_check, fail, fix_for, ok, warn
from npuenv.checks.session.variables import generation, hccl_values, line, setting

if TYPE_CHECKING:
    from npuenv.checks.base import CheckResult, Context

_DOCS = "hicann/hccl docs/zh/user_guide/hccl_env/{}.md"
_AIV_EXEC_TIMEOUT_S = 1091  # with AIV, larger values and 0 count as this on A2, A3 and 950
_MODES = {
    "a2": ("HOST", "HOST_TS", "AI_CPU", "AIV"),
    "a3": ("AI_CPU", "AICPU_CacheDisable", "AIV"),
    "950": ("AI_CPU", "AICPU_TS", "AIV", "CCU_MS", "CCU_SCHED"),
    "310p": ("HOST", "AI_CPU"),
}


def _hccl(context: Context) -> CheckResult:
    """Values that HCCL refuses; then the timeout that AIV limits."""
    wrong = hccl_values(context)
    if wrong is not None:
        return wrong
    timeout = setting(context, "HCCL_EXEC_TIMEOUT")
    uses_aiv = setting(context, "HCCL_OP_EXPANSION_MODE").upper() == "AIV"
    if uses_aiv and timeout and not 0 < float(timeout) <= _AIV_EXEC_TIMEOUT_S:
        lines = (line(context, "HCCL_OP_EXPANSION_MODE"), line(context, "HCCL_EXEC_TIMEOUT"))
        return warn("session.hccl-aiv", *lines, value=timeout, most=_AIV_EXEC_TIMEOUT_S)
    return ok("session.hccl-ok")


def _mode(context: Context) -> CheckResult:
    """The operator expansion mode against the chip. Only the 950 line rejects unsupported ones; others fall back."""
    mode, chip = setting(context, "HCCL_OP_EXPANSION_MODE"), generation(context)
    takes = _MODES.get(chip, ())
    if not mode or not takes or mode.casefold() in {item.casefold() for item in takes}:
        return ok("session.hccl-mode-ok")
    fix = fix_for("session.hccl-mode", ("unset", "HCCL_OP_EXPANSION_MODE"))
    evidence = line(context, "HCCL_OP_EXPANSION_MODE")
    if chip == "950":
        return fail("session.hccl-mode-refused", evidence, fix=fix, mode=mode, takes=takes)
    return warn("session.hccl-mode-lost", evidence, fix=fix, mode=mode, takes=takes)


def _links(context: Context) -> CheckResult:
    """HCCL_INTRA_PCIE_ENABLE and HCCL_INTRA_ROCE_ENABLE: three of their combinations are not supported."""
    pcie, roce = setting(context, "HCCL_INTRA_PCIE_ENABLE"), setting(context, "HCCL_INTRA_ROCE_ENABLE")
    if (pcie, roce) in (("1", "1"), ("0", ""), ("", "0")):
        names = ("HCCL_INTRA_PCIE_ENABLE", "HCCL_INTRA_ROCE_ENABLE")
        fix = fix_for("session.hccl-links", *(("unset", name) for name in names))
        lines = (line(context, name) for name in names)
        return warn("session.hccl-links-wrong", *lines, fix=fix, pcie=pcie or "-", roce=roce or "-")
    return ok("session.hccl-links-ok")


def _event_timeout(context: Context) -> CheckResult:
    """torch_npu's event timeout must be longer than HCCL's, or the watchdog's error replaces HCCL's."""
    names = ("HCCL_EVENT_TIMEOUT", "HCCL_EXEC_TIMEOUT")
    event, execute = (setting(context, name) for name in names)
    if not (event.isdigit() and execute.isdigit()) or int(event) == 0:
        return ok("session.event-timeout-ok")
    if int(execute) != 0 and int(event) > int(execute):
        return ok("session.event-timeout-ok")
    fix = fix_for("session.event-timeout", ("unset", "HCCL_EVENT_TIMEOUT"))
    lines = (line(context, name) for name in names)
    return warn("session.event-timeout-short", *lines, fix=fix, event=event, execute=execute)


def _undone(context: Context) -> CheckResult:
    """Settings that have no effect with the chosen operator expansion mode."""
    mode = setting(context, "HCCL_OP_EXPANSION_MODE").upper()
    retry, exact = setting(context, "HCCL_OP_RETRY_ENABLE"), setting(context, "HCCL_DETERMINISTIC").lower()
    mode_line = line(context, "HCCL_OP_EXPANSION_MODE")
    if mode == "AIV" and exact in ("true", "strict"):
        fix = fix_for("session.hccl-pair", ("unset", "HCCL_OP_EXPANSION_MODE"))
        return warn("session.hccl-pair-exact", mode_line, line(context, "HCCL_DETERMINISTIC"), fix=fix, value=exact)
    if mode not in ("", "AI_CPU") and ":1" in retry:
        fix = fix_for("session.hccl-pair", ("export", "HCCL_OP_EXPANSION_MODE=AI_CPU"))
        return warn("session.hccl-pair-retry", mode_line, line(context, "HCCL_OP_RETRY_ENABLE"), fix=fix, mode=mode)
    if exact == "strict" and setting(context, "HCCL_INTER_HCCS_DISABLE").upper() == "TRUE":
        fix = fix_for("session.hccl-pair", ("unset", "HCCL_INTER_HCCS_DISABLE"))
        lines = (line(context, "HCCL_DETERMINISTIC"), line(context, "HCCL_INTER_HCCS_DISABLE"))
        return fail("session.hccl-pair-roce", *lines, fix=fix)
    return ok("session.hccl-pair-ok")


def _whitelist(context: Context) -> CheckResult:
    """HCCL_WHITELIST_DISABLE=0 enables a check that needs a file."""
    if setting(context, "HCCL_WHITELIST_DISABLE") != "0" or setting(context, "HCCL_WHITELIST_FILE"):
        return ok("session.whitelist-ok")
    fix = fix_for("session.whitelist", ("unset", "HCCL_WHITELIST_DISABLE"))
    lines = (line(context, "HCCL_WHITELIST_DISABLE"), line(context, "HCCL_WHITELIST_FILE"))
    return fail("session.whitelist-no-file", *lines, fix=fix)


_EVENT_TIMEOUT = "Ascend/pytorch docs/zh/api/environment_variable/collective_communication/HCCL_EVENT_TIMEOUT.md"
CHECKS = (
    card_check("session.hccl", (), _DOCS.format("*"), _hccl),
    card_check("session.hccl-mode", (), _DOCS.format("HCCL_OP_EXPANSION_MODE"), _mode),
    card_check("session.hccl-links", (), _DOCS.format("HCCL_INTRA_ROCE_ENABLE"), _links),
    card_check("session.event-timeout", (), _EVENT_TIMEOUT, _event_timeout),
    card_check("session.hccl-pair", (), f"{_DOCS.format('HCCL_DETERMINISTIC')}; HCCL_OP_RETRY_ENABLE.md", _undone),
    card_check("session.whitelist", (), _DOCS.format("HCCL_WHITELIST_DISABLE"), _whitelist),
)
