"""Check of an environment that npuenv made: whether it was finished and verified, by its own records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import Check, CheckResult, Context, fail, fix_for, given, ok, warn
from npuenv.checks.python.installed import repair
from npuenv.core.fact import Evidence
from npuenv.facts.manifest import DAMAGED, LOCK, VERIFIED

if TYPE_CHECKING:
    from npuenv.facts.manifest import Described


@given(lambda context: context.facts.python.made.value, "python.made-elsewhere")
def _made(context: Context, made: Described) -> CheckResult:
    """Fails for an unfinished environment of npuenv's, warns about an unverified or modified one."""
    evidence = context.facts.python.made.evidence
    fix = fix_for("python.made", ("npuenv", "install", made.stack, "--target", made.root))
    args = {"stack": made.stack, "lock": made.lock}
    if made.status not in ("complete", DAMAGED):
        return fail("python.made-unfinished", *evidence, fix=fix, **args)
    if made.status == "complete" and (not made.is_proven or made.verified is None):
        unproven = Evidence(f"{made.root}/{VERIFIED}", "not there, of another lock, or altered")
        return warn("python.made-unproven", *evidence, unproven, fix=fix, **args)
    if made.lost:
        evidence = tuple(Evidence(f"{made.root}/{name}", "not there, or not as npuenv wrote it") for name in made.lost)
        needs_anew = LOCK in made.lost  # the file that a repair would restore from
        return warn("python.made-lost", *evidence, fix=fix if needs_anew else repair(made), **args, files=made.lost)
    if made.hooks:
        evidence = tuple(Evidence(f"{made.root}/{name}", "belongs to no package") for name in made.hooks)
        return warn("python.made-hooks", *evidence, fix=repair(made, "python.hooks"), **args, files=made.hooks)
    assert made.verified is not None
    return ok("python.made-ok", *evidence, **args, at=made.verified.at or "-", packages=made.verified.packages)


CHECKS = (Check("python.made", ("python.made",), "npuenv: what it writes down when it installs", _made),)
