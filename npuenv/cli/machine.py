"""This machine as the commands that resolve, lock and install use it."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.cli.common import Stop, Ui
from npuenv.cli.hosts import DECIDED
from npuenv.core.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.core.messages import Message
    from npuenv.lock import Lock
    from npuenv.lock.make import Resolver
    from npuenv.resolve.types import Request, Stack


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
    from npuenv.install.locations import data_folder

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
    from npuenv.lock.choose import choose
    from npuenv.matrix import load_matrix
    from npuenv.report.resolution import as_json, show
    from npuenv.resolve.types import Stack

    result = choose(request, load_matrix(), own_locks())
    if isinstance(result, Stack):
        return result
    if ui.is_json:
        ui.print_json({**as_json(result, ui.lang), "exit": int(ExitCode.NOTHING_FITS)})
    else:
        show(result, ui.console(stderr=True), ui.lang)
    raise Stop(ExitCode.NOTHING_FITS)


def for_this_machine(request: Request, fields: frozenset[str] = DECIDED) -> Request:
    """The request with what this machine decides: its architecture, the Python of CPU stacks, and `for_this_host`.

    A CPU stack that allows the running interpreter's version gets it, because that one is known to be here. An NPU
    stack keeps the Python of its published recipe, and is made for this host where that has cards.
    """
    from npuenv.matrix import load_matrix
    from npuenv.resolve import resolve
    from npuenv.resolve.types import Stack

    request = replace(request, arch=request.arch or platform.machine())
    running = request
    if request.python is None:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        running = replace(request, python=python, origins={**request.origins, "python": sys.executable})
    stack = resolve(running, load_matrix())
    if isinstance(stack, Stack) and stack.platform.hardware is None:
        return running
    return for_this_host(request, fields)


def for_this_host(request: Request, fields: frozenset[str] = DECIDED) -> Request:
    """The request with what this machine decides of it, where the machine has cards and nothing names another one.

    What is left open of `fields` is taken from it: the generation of the cards, the system, and, where no stack is
    named, driver and CANN. `origins` says where each was read. Raises CannotTell for cards of several generations.
    """
    from npuenv.cli.hosts import WANTED
    from npuenv.facts.collect import collect
    from npuenv.facts.npu import driver
    from npuenv.host.local import LocalHost
    from npuenv.matrix import load_matrix
    from npuenv.resolve import resolve
    from npuenv.resolve.from_host import filled, generation
    from npuenv.resolve.names import ARCHITECTURES, in_normal_form
    from npuenv.resolve.types import Stack

    own, host = platform.machine(), LocalHost()
    if DECIDED & set(request.origins) or ARCHITECTURES.get((request.arch or own).casefold()) != own:
        return request
    smi = driver.table_of(driver.smi(host))
    if smi.value is None or not smi.value.cards:
        return request
    matrix = load_matrix()
    here = generation(replace(request, hardware=None), smi, matrix) if request.hardware is None else request
    named = in_normal_form(request, matrix).hardware
    if named is not None and named != generation(replace(request, hardware=None), smi, matrix).hardware:
        return request
    stack = resolve(here, matrix)
    if isinstance(stack, Stack) and stack.platform.hardware is None:
        return request
    facts = collect(host, only=WANTED)
    taken, _ = filled(here, facts, matrix, only=fields - {"cann", "driver"} if request.stack else fields)
    return taken


def tell_basis(ui: Ui, request: Request, stack: Stack) -> None:
    """Says first what nobody typed: what was read from the host, and the cards that were neither named nor found."""
    from npuenv.core.messages import Message

    taken = tuple(f"{name} {getattr(request, name)}" for name in sorted(DECIDED & set(request.origins)))
    if taken:
        ui.say(Message("resolve.host-taken", {"what": taken}), err=True)
    for note in assumed(stack):
        ui.say(note, err=True)


# The notes of a stack that are said first: what nobody typed or found on the host, and what it cannot do.
SAID_FIRST = (
    "resolve.note-assumed-hardware",
    "resolve.note-complete-lock",
    "resolve.note-newest",
    "resolve.note-model-type",
    "resolve.note-moved",
)


def assumed(stack: Stack) -> tuple[Message, ...]:
    """What to know before a stack is installed: what it was chosen by, and what it cannot do."""
    return tuple(note for note in stack.notes if note.key in SAID_FIRST)


def lock_at_hand(ui: Ui, stack: Stack) -> Lock:
    """As `lock_of`; pip's settings here are read only where a lock has to be made."""
    from npuenv.lock.store import find_lock

    return find_lock(stack, own_locks()) or lock_of(ui, stack, this_machine(ui), fill=False)


def lock_of(ui: Ui, stack: Stack, machine: Machine, *, fill: bool) -> Lock:
    """The stack's lock: a shipped or own one; made now where there is none, or where it is partial and `fill` is on."""
    from npuenv.lock.make import make_lock
    from npuenv.lock.store import find_lock, put_lock

    lock = find_lock(stack, machine.own_locks)
    if lock is None or (fill and not lock.is_complete):
        from npuenv.core.messages import Message

        ui.say(Message("cli.locking", {"stack": stack.name, "platform": stack.platform.tag}), err=ui.is_json)
        lock = make_lock(stack, machine.resolver)
        if lock.is_complete:
            put_lock(lock, machine.own_locks)
    return lock
