"""This machine as the commands that resolve, lock and install use it."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.cli.common import Stop, Ui
from npuenv.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.lock import Lock
    from npuenv.lock.make import Resolver
    from npuenv.messages import Message
    from npuenv.resolve.types import Request, Stack

# Notes of a stack that an installation says first.
_BEFORE_INSTALLING = ("resolve.note-assumed-hardware", "resolve.note-model-type", "resolve.note-moved")


@dataclass(frozen=True, slots=True)
class Machine:
    """The live host, with what the user configured for pip there."""

    resolver: Resolver

    @property
    def own_locks(self) -> Path:
        """The folder of the locks that were made on this machine."""
        return own_locks(self.resolver.host.environ())


def own_locks(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the locks that were made on this machine."""
    from npuenv.store.places import data_folder

    return Path(data_folder(environ)) / "locks"


def this_machine(ui: Ui) -> Machine:
    """Reads pip's settings; says what in them cannot be used."""
    from npuenv.facts.pip import pip_settings
    from npuenv.host.local import LocalHost
    from npuenv.lock.make import Resolver, find_uv
    from npuenv.matrix import load_matrix

    host = LocalHost()
    settings = pip_settings(host, prefix=sys.prefix)
    for warning in settings.warnings if ui.is_verbose else ():
        ui.say(warning, err=True)
    indexes = {row.label: row.url for row in load_matrix().indexes if row.url}
    return Machine(Resolver(host, find_uv(), settings, indexes))


def resolve_or_stop(ui: Ui, request: Request) -> Stack:
    """The stack of a request. A conflict is said and ends the command with exit 4."""
    from npuenv.matrix import load_matrix
    from npuenv.report.resolution import as_json, show
    from npuenv.resolve import resolve
    from npuenv.resolve.types import Stack

    result = resolve(request, load_matrix())
    if isinstance(result, Stack):
        return result
    if ui.is_json:
        ui.print_json({**as_json(result, ui.lang), "exit": int(ExitCode.NOTHING_FITS)})
    else:
        show(result, ui.console(stderr=True), ui.lang)
    raise Stop(ExitCode.NOTHING_FITS)


def for_this_machine(request: Request) -> Request:
    """The request with what this machine decides: its architecture, the Python of CPU stacks and the cards of others.

    A CPU stack that allows the running interpreter's version gets it, because that one is known to be here. An NPU
    stack keeps the Python of its published recipe, and is made for the cards that are here where none are named.
    """
    from npuenv.matrix import load_matrix
    from npuenv.resolve import resolve
    from npuenv.resolve.types import Stack

    request = replace(request, arch=request.arch or platform.machine())
    running = replace(request, python=request.python or f"{sys.version_info.major}.{sys.version_info.minor}")
    stack = resolve(running, load_matrix())
    if isinstance(stack, Stack) and stack.platform.hardware is None:
        return running
    return for_these_cards(request)


def for_these_cards(request: Request) -> Request:
    """The request with the generation of this machine's cards, where it leaves open for which, and means this machine.

    Raises CannotTell for cards of several generations.
    """
    from npuenv.facts.npu import driver
    from npuenv.host.local import LocalHost
    from npuenv.matrix import load_matrix
    from npuenv.resolve import resolve
    from npuenv.resolve.from_host import generation
    from npuenv.resolve.names import ARCHITECTURES
    from npuenv.resolve.types import Stack

    is_this = ARCHITECTURES.get((request.arch or "").casefold()) == platform.machine() and "arch" not in request.origins
    if request.hardware is not None or not is_this:
        return request
    here = generation(request, driver.table_of(driver.smi(LocalHost())), load_matrix())
    stack = resolve(request, load_matrix()) if here is not request else None
    return here if isinstance(stack, Stack) and stack.platform.hardware is not None else request


def assumed(stack: Stack) -> tuple[Message, ...]:
    """What to know before a stack is installed: cards that nobody named or found, models it cannot load, other pins."""
    return tuple(note for note in stack.notes if note.key in _BEFORE_INSTALLING)


def lock_at_hand(ui: Ui, stack: Stack) -> Lock:
    """As `lock_of`; pip's settings here are read only where a lock has to be made."""
    from npuenv.lock.shelf import find_lock

    return find_lock(stack, own_locks()) or lock_of(ui, stack, this_machine(ui), fill=False)


def lock_of(ui: Ui, stack: Stack, machine: Machine, *, fill: bool) -> Lock:
    """The stack's lock: a shipped or own one; made now where there is none, or where it is partial and `fill` is on."""
    from npuenv.lock.make import make_lock
    from npuenv.lock.shelf import find_lock, put_lock

    lock = find_lock(stack, machine.own_locks)
    if lock is None or (fill and not lock.is_complete):
        from npuenv.messages import Message

        ui.say(Message("cli.locking", {"stack": stack.name, "platform": stack.platform.tag}), err=ui.is_json)
        lock = make_lock(stack, machine.resolver)
        if lock.is_complete:
            put_lock(lock, machine.own_locks)
    return lock
