"""Checks of the session: HCCL's settings, debugging switches, files that variables name, others' packages; and of
`--stack NAME`: CANN, Python and the session's settings against those of the named stack.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npuenv.checks.base import Check, card_check, fail, fix_for, given, of_variable, ok, skip, unknown, warn
from npuenv.checks.session import variables
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.fact import Evidence

if TYPE_CHECKING:
    from npuenv.checks.base import CheckResult, Context
    from npuenv.resolve.types import Stack

# The variables that a capture stores; others are unknown.
_RECORDED = re.compile(r"(VLLM|HCCL|RAY|OMP|ASCEND|PYTORCH|TORCH|TASK|NPU)_\w+")
_AIV_EXEC_TIMEOUT_S = 1091  # with AIV, larger values and 0 count as this on A2, A3 and 950
_MODES = {
    "a2": ("HOST", "HOST_TS", "AI_CPU", "AIV"),
    "a3": ("AI_CPU", "AICPU_CacheDisable", "AIV"),
    "950": ("AI_CPU", "AICPU_TS", "AIV", "CCU_MS", "CCU_SCHED"),
    "310p": ("HOST", "AI_CPU"),
}
# Variable, the values that mean debugging; its documentation states the cost.
_DEBUGGING = (
    ("ASCEND_GLOBAL_LOG_LEVEL", ("0",)),
    ("ASCEND_SLOG_PRINT_TO_STDOUT", ("1",)),
    ("PYTORCH_NO_NPU_MEMORY_CACHING", ("1",)),
    ("HCCL_DIAGNOSE_ENABLE", ("1",)),
    ("HCCL_ENTRY_LOG_ENABLE", ("1",)),
)
_SITE = re.compile(r"/python(?P<version>[0-9]+\.[0-9]+)/(?:site|dist)-packages(?:/|$)")


@given(lambda context: context.stack, "stack.none")
def _stack_cann(context: Context, stack: Stack) -> CheckResult:
    """A CANN of another release than the stack's was not published with it; another patch gives a warning."""
    pin, cann = stack.pin("cann"), context.cann
    if pin is None or cann is None:
        return skip("stack.no-cann")
    evidence = (*context.facts.cann.toolkit.evidence, Evidence(stack.name, f"CANN {pin.version}"))
    args: dict[str, Any] = {"stack": stack.name, "wanted": pin.version, "has": cann.version}
    try:
        has, wanted = versions.cann(cann.version), versions.cann(pin.version)
    except BadInput:
        return unknown("stack.cann-unread", *evidence, **args)
    if has == wanted:
        return ok("stack.cann-ok", *evidence, **args)
    fix = fix_for("stack.cann", ("npuenv", "resolve", stack.name, "--cann", cann.version), **args)
    verdict = warn if has.series == wanted.series else fail
    return verdict("stack.cann-differs", *evidence, fix=fix, **args)


@given(lambda context: context.stack, "stack.none")
def _stack_python(context: Context, stack: Stack) -> CheckResult:
    """The wheels of a stack are for one Python."""
    if context.python is None:
        return skip("no-python")
    wanted, has = stack.platform.python, ".".join(context.python.version.split(".")[:2])
    args = {"stack": stack.name, "wanted": wanted, "has": has}
    if has == wanted:
        return ok("stack.python-ok", **args)
    return fail("stack.python-differs", fix=fix_for("stack.python", ("npuenv", "install", stack.name)), **args)


@given(lambda context: context.stack, "stack.none")
def _stack_settings(context: Context, stack: Stack) -> CheckResult:
    """The variables that the stack is published with, except those that its environment's activation script sets."""
    has = context.environment
    wanted = {name: value for name, value in stack.env.items() if _RECORDED.fullmatch(name)}
    if not wanted:
        return skip("stack.no-settings")
    wrong = {name: value for name, value in wanted.items() if has.get(name) != value}
    if not wrong:
        return ok("stack.settings-ok", stack=stack.name, count=len(wanted))
    lines = (Evidence(f"${name}", f"{has.get(name, '-')}, {stack.name}: {value}") for name, value in wrong.items())
    fix = fix_for("stack.settings", *(("export", f"{name}={value}") for name, value in wrong.items()))
    return warn("stack.settings-differ", *lines, fix=fix, stack=stack.name, names=tuple(wrong))


def _hccl(context: Context) -> CheckResult:
    """Values that HCCL refuses (EI0001); then the timeout that AIV limits."""
    wrong = variables.misread_values(context, "hccl")
    if wrong:
        row, value, _ = wrong[0]
        is_in_bytes = len(wrong) == 1 and row.name == "HCCL_BUFFSIZE" and variables.is_number(value, row.most, 10**12)
        verdict, name = (warn, "session.hccl-bytes") if is_in_bytes else (fail, "session.hccl-range")
        return variables.misread_result(context, verdict, name, "session.hccl", wrong)
    timeout = context.setting("HCCL_EXEC_TIMEOUT")
    uses_aiv = context.setting("HCCL_OP_EXPANSION_MODE").upper() == "AIV"
    if uses_aiv and timeout and not 0 < float(timeout) <= _AIV_EXEC_TIMEOUT_S:
        lines = (context.line("HCCL_OP_EXPANSION_MODE"), context.line("HCCL_EXEC_TIMEOUT"))
        return warn("session.hccl-aiv", *lines, value=timeout, most=_AIV_EXEC_TIMEOUT_S)
    return ok("session.hccl-ok")


@of_variable("HCCL_OP_EXPANSION_MODE", "session.hccl-mode")
def _mode(context: Context, mode: str) -> CheckResult | None:
    """The operator expansion mode against the chip. Only the 950 line rejects unsupported ones; others fall back."""
    takes = _MODES.get(context.generation, ())
    if not takes or mode.casefold() in {item.casefold() for item in takes}:
        return None
    if context.generation == "950":
        return fail("session.hccl-mode-refused", mode=mode, takes=takes)
    return warn("session.hccl-mode-lost", mode=mode, takes=takes)


def _links(context: Context) -> CheckResult:
    """HCCL_INTRA_PCIE_ENABLE and HCCL_INTRA_ROCE_ENABLE: three of their combinations are not supported."""
    pcie, roce = context.setting("HCCL_INTRA_PCIE_ENABLE"), context.setting("HCCL_INTRA_ROCE_ENABLE")
    if (pcie, roce) in (("1", "1"), ("0", ""), ("", "0")):
        names = ("HCCL_INTRA_PCIE_ENABLE", "HCCL_INTRA_ROCE_ENABLE")
        fix = fix_for("session.hccl-links", *(("unset", name) for name in names))
        return warn("session.hccl-links-wrong", *map(context.line, names), fix=fix, pcie=pcie or "-", roce=roce or "-")
    return ok("session.hccl-links-ok")


@of_variable("HCCL_EVENT_TIMEOUT", "session.event-timeout")
def _event_timeout(context: Context, event: str) -> CheckResult | None:
    """torch_npu's event timeout must be longer than HCCL's, or the watchdog's error replaces HCCL's."""
    execute = context.setting("HCCL_EXEC_TIMEOUT")
    if not (event.isdigit() and execute.isdigit()) or int(event) == 0 or 0 < int(execute) < int(event):
        return None
    lines = map(context.line, ("HCCL_EVENT_TIMEOUT", "HCCL_EXEC_TIMEOUT"))
    return warn("session.event-timeout-short", *lines, event=event, execute=execute)


def _undone(context: Context) -> CheckResult:
    """Settings that have no effect with the chosen operator expansion mode."""
    mode = context.setting("HCCL_OP_EXPANSION_MODE").upper()
    retry, exact = context.setting("HCCL_OP_RETRY_ENABLE"), context.setting("HCCL_DETERMINISTIC").lower()
    mode_line = context.line("HCCL_OP_EXPANSION_MODE")
    if mode == "AIV" and exact in ("true", "strict"):
        fix = fix_for("session.hccl-pair", ("unset", "HCCL_OP_EXPANSION_MODE"))
        return warn("session.hccl-pair-exact", mode_line, context.line("HCCL_DETERMINISTIC"), fix=fix, value=exact)
    if mode not in ("", "AI_CPU") and ":1" in retry:
        fix = fix_for("session.hccl-pair", ("export", "HCCL_OP_EXPANSION_MODE=AI_CPU"))
        return warn("session.hccl-pair-retry", mode_line, context.line("HCCL_OP_RETRY_ENABLE"), fix=fix, mode=mode)
    if exact == "strict" and context.setting("HCCL_INTER_HCCS_DISABLE").upper() == "TRUE":
        fix = fix_for("session.hccl-pair", ("unset", "HCCL_INTER_HCCS_DISABLE"))
        lines = (context.line("HCCL_DETERMINISTIC"), context.line("HCCL_INTER_HCCS_DISABLE"))
        return fail("session.hccl-pair-roce", *lines, fix=fix)
    return ok("session.hccl-pair-ok")


@of_variable("HCCL_WHITELIST_DISABLE", "session.whitelist")
def _whitelist(context: Context, value: str) -> CheckResult | None:
    """HCCL_WHITELIST_DISABLE=0 enables a check that needs a file."""
    if value != "0" or context.setting("HCCL_WHITELIST_FILE"):
        return None
    lines = map(context.line, ("HCCL_WHITELIST_DISABLE", "HCCL_WHITELIST_FILE"))
    return fail("session.whitelist-no-file", *lines)


def _proxy(context: Context) -> CheckResult:
    proxies, listen = context.facts.network.proxies.value, context.facts.network.proxies_listen.value
    if not proxies:
        return ok("network.proxy-none")
    odd = [proxy for proxy in proxies if proxy.port is None]
    if odd:
        lines = (Evidence("environment", f"{proxy.variable}={proxy.address}") for proxy in odd)
        return warn("network.proxy-unreadable", *lines, variables=tuple(proxy.variable for proxy in odd))
    if listen is None:
        return ok("network.proxy-untried", count=len(proxies))
    dead = [name for name, is_there in listen.items() if not is_there]
    if dead:
        fix = fix_for("network.proxy", ("unset", *dead))
        tried = context.facts.network.proxies_listen.evidence
        return fail("network.proxy-dead", *tried, fix=fix, variables=tuple(dead))
    return ok("network.proxy-ok", *context.facts.network.proxies_listen.evidence, count=len(proxies))


def _interface(context: Context) -> CheckResult:
    name, *others = map(context.environment.get, ("NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "HCCL_IF_IP"))
    if not name or any(others):
        return ok("network.interface-ok")
    fix = fix_for("network.interface", ("export", f"HCCL_SOCKET_IFNAME={name}"))
    return warn("network.interface-nccl", context.line("NCCL_SOCKET_IFNAME"), fix=fix)


def _debugging(context: Context) -> CheckResult:
    """Debugging switches that were left on: everything is slower, or the disk fills with logs."""
    left = [name for name, values in _DEBUGGING if context.setting(name) in values]
    if not left:
        return ok("session.debugging-ok")
    fix = fix_for("session.debugging", *(("unset", name) for name in left))
    return warn("session.debugging-on", *map(context.line, left), fix=fix, names=tuple(left))


def _preload(context: Context) -> CheckResult:
    """LD_PRELOAD libraries: for a missing one every process prints that it is ignored."""
    files = context.facts.cann.named_files.value or ()
    lost = [item.path for item in files if item.variable == "LD_PRELOAD" and not item.is_there]
    if not lost:
        return ok("session.preload-ok")
    fix = fix_for("session.preload", ("unset", "LD_PRELOAD"))
    return warn("session.preload-lost", context.line("LD_PRELOAD"), fix=fix, paths=tuple(lost))


def _named_files(context: Context) -> CheckResult:
    """Files named for HCCL and torch_npu. A missing rank table is silently ignored."""
    files = [item for item in context.facts.cann.named_files.value or () if item.variable != "LD_PRELOAD"]
    if not files:
        return ok("session.files-none")
    lost = next((item for item in files if not item.is_there), None)
    if lost is not None:
        fix = fix_for("session.files", ("unset", lost.variable))
        return warn("session.files-lost", context.line(lost.variable), fix=fix, name=lost.variable, path=lost.path)
    linked = next((item for item in files if item.is_link), None)
    if linked is not None:
        fix = fix_for("session.files", ("unset", linked.variable))
        return fail("session.files-link", context.line(linked.variable), fix=fix, path=linked.path)
    return ok("session.files-ok", *(context.line(item.variable) for item in files))


def _python_path(context: Context) -> CheckResult:
    """PYTHONPATH with another Python's packages: their extensions miss symbols. PYTHONHOME breaks others."""
    python = context.python
    if context.setting("PYTHONHOME"):
        fix = fix_for("session.python-path", ("unset", "PYTHONHOME"))
        return fail("session.python-path-home", context.line("PYTHONHOME"), fix=fix)
    if python is None:
        return skip("no-python")
    mine = ".".join(python.version.split(".")[:2])
    found = ((entry, _SITE.search(entry)) for entry in context.environment.get("PYTHONPATH", "").split(":"))
    foreign = [(entry, match["version"]) for entry, match in found if match and match["version"] != mine]
    if not foreign:
        return ok("session.python-path-ok")
    entry, version = foreign[0]
    evidence = Evidence("environment", f"PYTHONPATH: {entry}")
    fix = fix_for("session.python-path", ("unset", "PYTHONPATH"))
    return fail("session.python-path-other", evidence, fix=fix, entry=entry, version=version, mine=mine)


_STACK_SOURCE = "matrix: the named stack's recipe, with its own sources"
_DOCS = "hicann/hccl docs/zh/user_guide/hccl_env/{}.md"
_EVENT_TIMEOUT = "Ascend/pytorch docs/zh/api/environment_variable/collective_communication/HCCL_EVENT_TIMEOUT.md"
_LEFT_ON = (
    "hiascend log reference; Ascend/pytorch PYTORCH_NO_NPU_MEMORY_CACHING.md; hicann/hccl HCCL_DIAGNOSE_ENABLE.md"
)
_FILES = "Ascend/pytorch docs/zh/api/environment_variable/collective_communication/RANK_TABLE_FILE.md"
_PYTHON_PATH = "verl-qwen3.5 install guide, trouble 3 and 4; python -h PYTHONHOME"
CHECKS = (
    card_check("stack.cann", ("cann.toolkit",), _STACK_SOURCE, _stack_cann),
    Check("stack.python", ("python.interpreter",), _STACK_SOURCE, _stack_python),
    Check("stack.settings", ("environment",), _STACK_SOURCE, _stack_settings),
    Check("session.proxy", ("network.proxies",), "verl-qwen3.5 install guide, first aid", _proxy),
    card_check("session.interface", (), "HCCL environment variables: HCCL_SOCKET_IFNAME", _interface),
    *variables.TORCH_NPU,
    card_check("session.hccl", (), _DOCS.format("*"), _hccl),
    card_check("session.hccl-mode", (), _DOCS.format("HCCL_OP_EXPANSION_MODE"), _mode),
    card_check("session.hccl-links", (), _DOCS.format("HCCL_INTRA_ROCE_ENABLE"), _links),
    card_check("session.event-timeout", (), _EVENT_TIMEOUT, _event_timeout),
    card_check("session.hccl-pair", (), f"{_DOCS.format('HCCL_DETERMINISTIC')}; HCCL_OP_RETRY_ENABLE.md", _undone),
    card_check("session.whitelist", (), _DOCS.format("HCCL_WHITELIST_DISABLE"), _whitelist),
    *variables.ABOVE,
    card_check("session.debugging", (), _LEFT_ON, _debugging),
    Check("session.preload", ("cann.named_files",), "gpustack/gpustack#5660; ld.so(8)", _preload),
    card_check("session.files", ("cann.named_files",), _FILES, _named_files),
    Check("session.python-path", ("python.interpreter",), _PYTHON_PATH, _python_path),
)
