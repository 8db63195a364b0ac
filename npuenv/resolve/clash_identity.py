"""Keys that identify the rule behind a clash. Equal keys mean the same rule.

Each clash has its own key. Some also belong to a broader clash about all stacks of the framework.
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


# Clashes of single stacks that together are one statement about their framework, and the arguments that identify it.
OF_ALL_STACKS = {
    "resolve.stack-hardware": ("hardware",),
    "resolve.stack-arch": ("arch",),
    "resolve.stack-cann": ("cann",),
    "resolve.stack-no-python": ("python",),
    "resolve.stack-no-version": ("package", "version"),
    "resolve.stack-package": ("package",),
}
# Clashes with a Python or with a package version that each stack has by a rule of its own.
_ABOUT_PYTHON = ("resolve.wheel-python", "resolve.vllm-ascend-python", "resolve.stack-python")
_ABOUT_VERSION = ("resolve.requires", "resolve.torch-npu-torch")


def clash_key(clash: Clash) -> str:
    """The key of the rule behind a clash: the row and what it demands, without the value that was found.

    "No stack of this framework is published for this hardware" is one rule, not one per stack.
    """
    key, args = clash.says.key, clash.says.args
    kind = _kind(key)
    if kind in OF_ALL_STACKS:
        about = (str(args[name]) for name in OF_ALL_STACKS[kind])
        return "|".join((kind, str(args["framework"]), *about))
    # One expression: the search computes these keys some hundred thousand times.
    needs, field, package = args.get("needs", ""), args.get("field", ""), args.get("package", "")
    return f"{clash.rule}|{kind}|{clash.source}|{needs}|{field}|{package}"


@functools.cache
def _kind(key: str) -> str:
    """The message key without its variants: `.some-` and `.stacks-` become `.stack-`, `asked-day` becomes `asked`."""
    return (
        "resolve.asked"
        if key == "resolve.asked-day"
        else key.replace(".stacks-", ".stack-").replace(".some-", ".stack-")
    )


def broader(clash: Clash, candidate: Candidate, request: Request) -> Clash | None:
    """The clash with all stacks of the framework that includes a clash; None if there is none or a stack was requested.

    Each stack rejects Python 3.13 or torch 2.13.0 by a rule of its own. "No stack accepts it" is the single reason.
    """
    if request.stack is not None:
        return None
    recipe = candidate.recipe
    args: dict[str, object] = {"stack": recipe.id, "framework": recipe.framework}
    if clash.says.key in _ABOUT_PYTHON:
        says = Message("resolve.stack-no-python", {**args, "python": candidate.python})
        return Clash(recipe.id, says, clash.source)
    if clash.says.key not in _ABOUT_VERSION:
        return None
    name = versions.requirement_name(str(clash.says.args.get("needs", "torch")))
    if name not in request.pins or candidate.versions.get(name) != request.pins[name]:
        return None
    says = Message("resolve.stack-no-version", {**args, "package": name, "version": request.pins[name]})
    return Clash(recipe.id, says, clash.source)


def keys_of(clash: Clash, candidate: Candidate, request: Request) -> list[str]:
    """The key of a clash, and that of the broader clash that it is part of."""
    more = broader(clash, candidate, request)
    return [clash_key(clash), *([clash_key(more)] if more else [])]
