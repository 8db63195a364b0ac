"""What is wrong with a machine for training on Ascend NPUs: `doctor`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.app.examine import FRAMEWORKS, DoctorOptions, DoctorResult, examine
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.host.local import LocalHost
from npuenv.install.active import active_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.facts.collect import Facts
    from npuenv.host import Host
    from npuenv.resolve.types import Stack


def doctor(
    options: DoctorOptions | None = None,
    host: Host | None = None,
    *,
    python: str | None = None,
    on_command: Callable[[str], object] | None = None,
    notify: Callable[[Message], object] | None = None,
) -> DoctorResult:
    """The facts of a machine and its findings. Nothing on the machine is changed.

    `host` None: the capture of the options, else this machine. `python`: the interpreter where the options name none;
    None: that of the active environment, else the session's. `on_command` is called with each command before it runs,
    `notify` with what a user should know of the choices that were made.

    Raises BadInput for options that contradict each other, a capture that cannot be read, a Python that is none and
    an unknown stack; ConflictError for a stack that does not run on such a machine.
    """
    options = options or DoctorOptions()
    options.validate()
    stack = find_stack(options)
    framework = stack.framework if stack and stack.framework in FRAMEWORKS else None
    if host is None and python is None:
        python = active_python(options, notify)
    stack_of = (lambda facts: _stack_for(stack, facts)) if stack else None
    return examine(options, host, framework=framework, stack_of=stack_of, python=python, on_command=on_command)


def active_python(options: DoctorOptions, notify: Callable[[Message], object] | None = None) -> str | None:
    """The Python of the newest environment of npuenv's own that is active; None: that of the session is judged."""
    if options.python is not None or options.capture is not None:
        return None
    stack = find_stack(options)
    found = active_environment(LocalHost(), stack.framework if stack else options.framework)
    if found.origin != "newest":
        return None
    if notify:
        notify(found.says)
    return found.python


def find_stack(options: DoctorOptions) -> Stack | None:
    """The stack as it is published. Raises BadInput for an unknown one (with the nearest names), or of another use."""
    if options.stack is None:
        return None
    from npuenv.app import resolution  # only with a stack: it loads what locks

    found = resolution.published(options.stack)
    if options.framework not in (None, found.framework):
        args = {"stack": found.name, "framework": found.framework, "asked": options.framework}
        raise BadInput(Message("doctor.other-use", args), Message("doctor.other-use-hint", args))
    return found


def _stack_for(stack: Stack, facts: Facts) -> Stack:
    """The stack for a machine's architecture and cards. Raises ConflictError."""
    from npuenv.app import resolution
    from npuenv.matrix import load_matrix
    from npuenv.resolve.request import filled_from_host
    from npuenv.resolve.types import Request

    request = Request(stack=stack.name)
    of_host, _ = filled_from_host(request, facts, load_matrix())
    hardware = of_host.hardware if stack.platform.hardware else None
    return resolution.resolve(replace(request, arch=of_host.arch, hardware=hardware, origins=of_host.origins))
