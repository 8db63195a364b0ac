"""Whether an environment that npuenv made was finished and proven, by what it says of itself."""

from __future__ import annotations

from npuenv.checks.base import Check, Context, Verdict, fail, fix, ok, skip, warn


def _made(context: Context) -> Verdict:
    """Another tool's environment is no worse for it; one of ours that was never finished or verified is."""
    made = context.facts.python.made.value
    if made is None:
        return skip("python.made-elsewhere")
    told = context.facts.python.made.evidence
    cure = fix("python.made", ("npuenv", "install", made.stack, "--target", made.root))
    args = {"stack": made.stack, "lock": made.lock}
    if made.status != "complete":
        return fail("python.made-unfinished", *told, fix=cure, **args)
    if not made.is_proven or made.verified is None:
        return warn("python.made-unproven", *told, fix=cure, **args)
    return ok("python.made-ok", *told, **args, at=made.verified.at or "-", packages=made.verified.packages)


CHECKS = (Check("python.made", ("python.made",), "npuenv: what it writes down when it installs", _made),)
