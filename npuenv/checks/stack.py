"""The checks of `--stack NAME`: CANN, Python and the session's settings against those of the named stack."""

from __future__ import annotations

import re
from typing import Any

from npuenv.checks.base import Check, CheckResult, Context, card_check, fail, fix_for, ok, skip, unknown, warn
from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.fact import Evidence

# The variables that a capture stores; others are unknown.
_SEEN = re.compile(r"(VLLM|HCCL|RAY|OMP|ASCEND|PYTORCH|TORCH|TASK|NPU)_\w+")


def _cann(context: Context) -> CheckResult:
    """A CANN of another release than the stack's was not published with it; another patch gives a warning."""
    pin = context.stack.pin("cann") if context.stack else None
    cann = context.cann
    if context.stack is None or pin is None or cann is None:
        return skip("stack.none" if context.stack is None else "stack.no-cann")
    evidence = (*context.facts.cann.toolkit.evidence, Evidence(context.stack.name, f"CANN {pin.version}"))
    args: dict[str, Any] = {"stack": context.stack.name, "wanted": pin.version, "has": cann.version}
    try:
        has, wanted = versions.cann(cann.version), versions.cann(pin.version)
    except BadInput:
        return unknown("stack.cann-unread", *evidence, **args)
    if has == wanted:
        return ok("stack.cann-ok", *evidence, **args)
    fix = fix_for("stack.cann", ("npuenv", "resolve", context.stack.name, "--cann", cann.version), **args)
    verdict = warn if has.series == wanted.series else fail
    return verdict("stack.cann-differs", *evidence, fix=fix, **args)


def _python(context: Context) -> CheckResult:
    """The wheels of a stack are for one Python."""
    python = context.python
    if context.stack is None or python is None:
        return skip("stack.none" if context.stack is None else "no-python")
    wanted, has = context.stack.platform.python, ".".join(python.version.split(".")[:2])
    args = {"stack": context.stack.name, "wanted": wanted, "has": has}
    if has == wanted:
        return ok("stack.python-ok", **args)
    return fail("stack.python-differs", fix=fix_for("stack.python", ("npuenv", "install", context.stack.name)), **args)


def _settings(context: Context) -> CheckResult:
    """The variables that the stack is published with, except those that its environment's activation script sets."""
    environment = context.environment
    wanted = {
        name: value for name, value in (context.stack.env if context.stack else {}).items() if _SEEN.fullmatch(name)
    }
    if context.stack is None or not wanted:
        return skip("stack.none" if context.stack is None else "stack.no-settings")
    wrong = {name: value for name, value in wanted.items() if environment.get(name) != value}
    if not wrong:
        return ok("stack.settings-ok", stack=context.stack.name, count=len(wanted))
    evidence = tuple(
        Evidence(f"${name}", f"{environment.get(name, '-')}, {context.stack.name}: {wrong[name]}") for name in wrong
    )
    fix = fix_for("stack.settings", *(("export", f"{name}={value}") for name, value in wrong.items()))
    return warn("stack.settings-differ", *evidence, fix=fix, stack=context.stack.name, names=tuple(wrong))


_SOURCE = "matrix: the named stack's recipe, with its own sources"
CHECKS = (
    card_check("stack.cann", ("cann.toolkit",), _SOURCE, _cann),
    Check("stack.python", ("python.interpreter",), _SOURCE, _python),
    Check("stack.settings", ("environment",), _SOURCE, _settings),
)
