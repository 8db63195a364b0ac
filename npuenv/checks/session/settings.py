"""Checks of environment variables that HCCL, torch_npu and engines do not cover in files of their own: switches for
debugging, files and folders that variables name, other Pythons' packages.
"""

from __future__ import annotations

import re

from npuenv.checks.base import Check, CheckResult, Context, card_check, fail, fix_for, ok, skip, warn
from npuenv.checks.session import engines as session_engines
from npuenv.checks.session import hccl as session_hccl
from npuenv.checks.session import torch as session_torch
from npuenv.checks.session import variables
from npuenv.checks.session.variables import line, setting
from npuenv.core.fact import Evidence

# Variable, the values that mean debugging; its documentation states the cost.
_DEBUGGING = (
    ("ASCEND_GLOBAL_LOG_LEVEL", ("0",)),
    ("ASCEND_SLOG_PRINT_TO_STDOUT", ("1",)),
    ("PYTORCH_NO_NPU_MEMORY_CACHING", ("1",)),
    ("HCCL_DIAGNOSE_ENABLE", ("1",)),
    ("HCCL_ENTRY_LOG_ENABLE", ("1",)),
)
_SITE = re.compile(r"/python(?P<version>[0-9]+\.[0-9]+)/(?:site|dist)-packages(?:/|$)")


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
        return fail(
            "network.proxy-dead", *context.facts.network.proxies_listen.evidence, fix=fix, variables=tuple(dead)
        )
    return ok("network.proxy-ok", *context.facts.network.proxies_listen.evidence, count=len(proxies))


def _interface(context: Context) -> CheckResult:
    environment = context.environment
    if environment.get("NCCL_SOCKET_IFNAME") and not (
        environment.get("HCCL_SOCKET_IFNAME") or environment.get("HCCL_IF_IP")
    ):
        name = environment["NCCL_SOCKET_IFNAME"]
        line = Evidence("environment", f"NCCL_SOCKET_IFNAME={name}")
        fix = fix_for("network.interface", ("export", f"HCCL_SOCKET_IFNAME={name}"))
        return warn("network.interface-nccl", line, fix=fix)
    return ok("network.interface-ok")


def _debugging(context: Context) -> CheckResult:
    """Debugging switches that were left on: everything is slower, or the disk fills with logs."""
    left = [name for name, values in _DEBUGGING if setting(context, name) in values]
    if not left:
        return ok("session.debugging-ok")
    fix = fix_for("session.debugging", *(("unset", name) for name in left))
    return warn("session.debugging-on", *(line(context, name) for name in left), fix=fix, names=tuple(left))


def _preload(context: Context) -> CheckResult:
    """LD_PRELOAD libraries: for a missing one every process prints that it is ignored."""
    files = context.facts.cann.named_files.value or ()
    lost = [item.path for item in files if item.variable == "LD_PRELOAD" and not item.is_there]
    if not lost:
        return ok("session.preload-ok")
    fix = fix_for("session.preload", ("unset", "LD_PRELOAD"))
    return warn("session.preload-lost", line(context, "LD_PRELOAD"), fix=fix, paths=tuple(lost))


def _named_files(context: Context) -> CheckResult:
    """Files named for HCCL and torch_npu. A missing rank table is silently ignored."""
    files = [item for item in context.facts.cann.named_files.value or () if item.variable != "LD_PRELOAD"]
    if not files:
        return ok("session.files-none")
    lost = next((item for item in files if not item.is_there), None)
    if lost is not None:
        fix = fix_for("session.files", ("unset", lost.variable))
        return warn("session.files-lost", line(context, lost.variable), fix=fix, name=lost.variable, path=lost.path)
    linked = next((item for item in files if item.is_link), None)
    if linked is not None:
        fix = fix_for("session.files", ("unset", linked.variable))
        return fail("session.files-link", line(context, linked.variable), fix=fix, path=linked.path)
    return ok("session.files-ok", *(line(context, item.variable) for item in files))


def _python_path(context: Context) -> CheckResult:
    """PYTHONPATH with another Python's packages: their extensions miss symbols. PYTHONHOME breaks others."""
    python = context.facts.python.interpreter.value
    if setting(context, "PYTHONHOME"):
        fix = fix_for("session.python-path", ("unset", "PYTHONHOME"))
        return fail("session.python-path-home", line(context, "PYTHONHOME"), fix=fix)
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


_FILES = "Ascend/pytorch docs/zh/api/environment_variable/collective_communication/RANK_TABLE_FILE.md"
_PYTHON_PATH = "verl-qwen3.5 install guide, trouble 3 and 4; python -h PYTHONHOME"
CHECKS = (
    Check("session.proxy", ("network.proxies",), "verl-qwen3.5 install guide, first aid", _proxy),
    card_check("session.interface", (), "HCCL environment variables: HCCL_SOCKET_IFNAME", _interface),
    *session_torch.CHECKS,
    *session_hccl.CHECKS,
    *session_engines.CHECKS,
    *variables.CHECKS,
    card_check(
        "session.debugging",
        (),
        "hiascend log reference; Ascend/pytorch PYTORCH_NO_NPU_MEMORY_CACHING.md; hicann/hccl HCCL_DIAGNOSE_ENABLE.md",
        _debugging,
    ),
    Check("session.preload", ("cann.named_files",), "gpustack/gpustack#5660; ld.so(8)", _preload),
    card_check("session.files", ("cann.named_files",), _FILES, _named_files),
    Check("session.python-path", ("python.interpreter",), _PYTHON_PATH, _python_path),
)
