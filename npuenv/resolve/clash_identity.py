"""When two clashes are the same rule: the keys that reasons are made of.

A clash has a key of its own, and some are part of a broader one about the whole framework.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.messages import Message
from npuenv.resolve.types import Clash

if TYPE_CHECKING:
    from npuenv.resolve.candidate import Candidate
    from npuenv.resolve.types import Request


# Objections of single stacks that together are one statement about their framework, and what it is about.
OF_ALL_STACKS = {
    "resolve.stack-hardware": ("hardware",),
    "resolve.stack-arch": ("arch",),
    "resolve.stack-cann": ("cann",),
    "resolve.stack-no-python": ("python",),
    "resolve.stack-no-version": ("package", "version"),
    "resolve.stack-package": ("package",),
}
# Objections to a Python, and to the version of a package, that each stack makes by a rule of its own.
_TO_A_PYTHON = ("resolve.wheel-python", "resolve.vllm-ascend-python", "resolve.stack-python")
_TO_A_VERSION = ("resolve.requires", "resolve.torch-npu-torch")


def clash_key(clash: Clash) -> str:
    """What makes two clashes the same rule: the row and what it demands, not the value it met.

    That no stack of a framework is published for some hardware is one rule, not one for each of its stacks.
    """
    key, args = clash.says.key, clash.says.args
    kind = _kind(key)
    if kind in OF_ALL_STACKS:
        about = (str(args[name]) for name in OF_ALL_STACKS[kind])
        return "|".join((kind, str(args["framework"]), *about))
    # One expression: the search asks for these keys some hundred thousand times.
    needs, field, package = args.get("needs", ""), args.get("field", ""), args.get("package", "")
    return f"{clash.rule}|{kind}|{clash.source}|{needs}|{field}|{package}"


@functools.cache
def _kind(key: str) -> str:
    """The key of an objection, that of a single stack or of the bare wish where the sentence says more."""
    return (
        "resolve.asked"
        if key == "resolve.asked-day"
        else key.replace(".stacks-", ".stack-").replace(".some-", ".stack-")
    )


def broader(clash: Clash, candidate: Candidate, request: Request) -> Clash | None:
    """What an objection says about the stack's framework, where no stack was named; None where it says nothing.

    Each stack refuses Python 3.13 or torch 2.13.0 by a rule of its own: that none of them takes it is the one reason.
    """
    if request.stack is not None:
        return None
    recipe = candidate.recipe
    args: dict[str, object] = {"stack": recipe.id, "framework": recipe.framework}
    if clash.says.key in _TO_A_PYTHON:
        says = Message("resolve.stack-no-python", {**args, "python": candidate.python})
        return Clash(recipe.id, says, clash.source)
    if clash.says.key not in _TO_A_VERSION:
        return None
    name = versions.requirement_name(str(clash.says.args.get("needs", "torch")))
    if name not in request.pins or candidate.versions.get(name) != request.pins[name]:
        return None
    says = Message("resolve.stack-no-version", {**args, "package": name, "version": request.pins[name]})
    return Clash(recipe.id, says, clash.source)


def keys_of(clash: Clash, candidate: Candidate, request: Request) -> list[str]:
    """The keys of a clash and of the broader one that it is a part of."""
    more = broader(clash, candidate, request)
    return [clash_key(clash), *([clash_key(more)] if more else [])]
