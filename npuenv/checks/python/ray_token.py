"""Check of the token that Ray from 2.59 on creates and requires of every node that joins."""

from __future__ import annotations

from npuenv.checks.base import Check, CheckResult, Context, fix_for, ok, skip, warn
from npuenv.checks.python.installed import lines
from npuenv.core.versions import accepts


def _ray(context: Context) -> CheckResult:
    """Reported only if the session's variables name several nodes: a single one needs no token."""
    ray = context.version("ray")
    if ray is None:
        return skip("python.no-ray")
    is_decided = context.framework == "cpu" or "RAY_AUTH_MODE" in context.environment
    if accepts(">=2.59", ray) and not is_decided and context.spans_nodes:
        fix = fix_for("python.ray-token", ("export", "RAY_AUTH_MODE=disabled"))
        return warn("python.ray-token", *lines(context, "ray"), fix=fix, ray=ray)
    return ok("python.ray-ok", *lines(context, "ray"), ray=ray)


_RAY_TOKEN = "measured with Ray 2.59: ray.init() writes ~/.ray/auth_token"
CHECKS = (Check("python.ray-token", ("python.interpreter",), _RAY_TOKEN, _ray),)
