"""The doctor's look at a machine, against a published stack where one is named. Start from `judge`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.app.examine import Judged, look
from npuenv.app.options import FRAMEWORKS
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from npuenv.app.options import Wish
    from npuenv.app.ui import Ui
    from npuenv.facts.collect import Facts
    from npuenv.host.base import Host
    from npuenv.resolve.types import Stack


def judge(wish: Wish, ui: Ui, host: Host, *, python: str | None = None) -> Judged:
    """Collects and checks; `python`: as `look`.

    Raises BadInput for a stack that does not exist, Stop for one that fits no such machine.
    """
    stack = stack_named(wish)
    if stack is None:
        return look(wish, host, python=python)
    framework = wish.framework or (stack.framework if stack.framework in FRAMEWORKS else None)
    return look(wish, host, framework=framework, stack_of=lambda facts: _stack_here(ui, stack, facts), python=python)


def usual_python(wish: Wish, ui: Ui) -> str | None:
    """The interpreter of this machine to judge where none is named; None: the session's. One of ours is announced."""
    from npuenv.host.local import LocalHost
    from npuenv.install.active import active_environment

    if wish.python is not None or wish.capture is not None or wish.report is not None:
        return None
    stack = stack_named(wish)
    found = active_environment(LocalHost(), stack.framework if stack else wish.framework)
    if found.origin != "newest":
        return None
    ui.say(found.says, err=True)
    return found.python


def stack_named(wish: Wish) -> Stack | None:
    """The stack as it is published. Raises BadInput: no such stack (with the nearest names), or one of another use."""
    if wish.stack is None:
        return None
    from npuenv.matrix import load_matrix
    from npuenv.resolve import resolve
    from npuenv.resolve.types import Request, Stack

    found = resolve(Request(stack=wish.stack), load_matrix())
    assert isinstance(found, Stack), wish.stack  # a published stack resolves as it is published: a test of the matrix
    if wish.framework not in (None, found.framework):
        args = {"stack": found.name, "framework": found.framework, "asked": wish.framework}
        raise BadInput(Message("doctor.other-use", args), Message("doctor.other-use-hint", args))
    return found


def _stack_here(ui: Ui, stack: Stack, facts: Facts) -> Stack:
    """The stack for this machine's architecture and cards; a conflict is said and ends the command with exit 4."""
    from npuenv.cli.machine import resolve_or_stop
    from npuenv.matrix import load_matrix
    from npuenv.resolve.from_host import filled
    from npuenv.resolve.types import Request

    request = Request(stack=stack.name)
    here, _ = filled(request, facts, load_matrix())
    hardware = here.hardware if stack.platform.hardware else None
    return resolve_or_stop(ui, replace(request, arch=here.arch, hardware=hardware, origins=here.origins))
