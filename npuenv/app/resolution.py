"""Which versions fit together (`resolve`), of several stacks one whose lock is complete, what a machine decides;
and the lock of a stack (`lock`), with what locks and installs on this machine.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.app.progress import SILENT, Progress
from npuenv.core.messages import Message
from npuenv.facts.npu import driver
from npuenv.facts.npu.driver import visible
from npuenv.host import local
from npuenv.host.recorded import load_capture
from npuenv.install.environments import data_folder
from npuenv.lock.file import COMPLETE
from npuenv.lock.store import LockedRequest, find_lock, for_chip, put_lock, shipped_folder
from npuenv.matrix import load_matrix
from npuenv.matrix.release_stacks import recipe_named
from npuenv.resolve import newer_release
from npuenv.resolve import resolve as solve
from npuenv.resolve.request import ARCHITECTURES, checked, filled_from_host, in_normal_form, with_hardware_of_cards
from npuenv.resolve.search import by_preference
from npuenv.resolve.types import Conflict, ConflictError, Request, Stack, command_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npuenv.facts.collect import Facts
    from npuenv.host import Host
    from npuenv.lock.file import Lock
    from npuenv.lock.uv import Resolver
    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe


DECIDED = frozenset({"arch", "hardware", "os", "driver", "cann"})  # what a host decides of a request
_GROUPS = frozenset({"machine", "npu", "cann"})  # the groups of facts that decide a stack
# The notes of a stack to read before it is used: what nobody named or found on the host, and what it cannot do.
ASSUMPTIONS = (
    "resolve.note-assumed-hardware",
    "resolve.note-complete-lock",
    "resolve.note-newest",
    "resolve.note-model-type",
    "resolve.note-moved",
)

_STATUS = re.compile(r'^status = "(\w+)"$', re.MULTILINE)
_STANDINGS = ("measured-here", "published", "recommended", "compatible", "satisfiable")
# An older stack has other features: the first ROLL guide describes no training run of 2026.
_AT_MOST = timedelta(days=183)
_HEAD = 2048  # characters: the status is among the first lines of a lock


def resolve(request: Request) -> Stack:
    """The versions that fit together. Raises ConflictError, and BadInput for names that do not exist."""
    result = choose_stack(request, load_matrix(), own_locks())
    if isinstance(result, Stack):
        return result
    raise ConflictError(result)


def choose_stack(request: Request, matrix: Matrix, local_folder: Path) -> Stack | Conflict:
    """Like the resolver, but if no stack is named, one with a complete lock is preferred to one with a partial lock.

    The other stack must be for the same use and hardware, have at least the same confidence level, and be about as
    young. `local_folder`: that of the locks made on this machine. The notes of the result name the stack that was
    passed over.
    """
    first = solve(request, matrix)
    if not isinstance(first, Stack) or request.stack is not None:
        return first
    if request.is_newest:
        return _beside(first, solve(replace(request, is_newest=False), matrix), "resolve.note-newest")
    if _status(first, local_folder) in (None, COMPLETE):
        return first
    for stack in _others(request, matrix):
        if _serves_as_well(stack, first) and _status(stack, local_folder) == COMPLETE:
            return _beside(stack, first, "resolve.note-complete-lock")
    return first


def _others(request: Request, matrix: Matrix) -> Iterator[Stack]:
    for recipe in by_preference(checked(request, matrix), matrix)[0]:
        if recipe.is_release_candidate:
            continue
        result = solve(replace(request, stack=recipe.id), matrix)
        if isinstance(result, Stack):
            yield result


def _serves_as_well(stack: Stack, first: Stack) -> bool:
    is_alike = (stack.framework, stack.platform.hardware) == (first.framework, first.platform.hardware)
    is_of_its_time = date.fromisoformat(stack.date) >= date.fromisoformat(first.date) - _AT_MOST
    return is_alike and is_of_its_time and _STANDINGS.index(stack.verified_by) <= _STANDINGS.index(first.verified_by)


def _beside(stack: Stack, other: Stack | Conflict, key: str) -> Stack:
    """The stack with a note that names the one that was passed over."""
    if not isinstance(other, Stack) or other.name == stack.name:
        return stack
    return replace(stack, notes=(Message(key, {"stack": stack.name, "other": other.name}), *stack.notes))


def _status(stack: Stack, local_folder: Path) -> str | None:
    """The best status among the stack's locks; None if there is no lock."""
    name = f"{stack.name}.{stack.platform.tag}.toml"
    found = set()
    for folder in (local_folder, shipped_folder()):
        if (folder / name).is_file():
            with (folder / name).open(encoding="utf-8", errors="replace") as file:
                found.update(_STATUS.findall(file.read(_HEAD)))
    return COMPLETE if COMPLETE in found else next(iter(found), None)


def published(name: str) -> Stack:
    """A stack as it is published. Raises BadInput for an unknown one, with the nearest names."""
    found = solve(Request(stack=name), load_matrix())
    assert isinstance(found, Stack), name  # a published stack resolves: a test of the matrix
    return found


def own_locks(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the locks that were made on this machine."""
    return Path(data_folder(environ)) / "locks"


def for_this_machine(request: Request, fields: frozenset[str] = DECIDED) -> Request:
    """The request with what this machine decides: its architecture, the Python of CPU stacks, and `for_this_host`.

    A CPU stack that allows the running interpreter's version gets it, because that one is known to be here. An NPU
    stack keeps the Python of its published recipe, and is made for this host where that has cards.
    """
    request = replace(request, arch=request.arch or platform.machine())
    running = request
    if request.python is None:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        running = replace(request, python=python, origins={**request.origins, "python": sys.executable})
    stack = solve(running, load_matrix())
    if isinstance(stack, Stack) and stack.platform.hardware is None:
        return running
    return for_this_host(request, fields)


def for_this_host(request: Request, fields: frozenset[str] = DECIDED) -> Request:
    """The request with what this machine decides of it, where the machine has cards and nothing names another one.

    What is left open of `fields` is taken from it: the generation of the cards, the system, and, where no stack is
    named, driver and CANN. `origins` says where each was read. Raises CannotTell for cards of several generations.
    """
    own, host = platform.machine(), local.LocalHost()
    if DECIDED & set(request.origins) or ARCHITECTURES.get((request.arch or own).casefold()) != own:
        return request
    smi = driver.table_of(driver.smi(host))
    if smi.value is None or not smi.value.cards:
        return request
    matrix = load_matrix()
    here = with_hardware_of_cards(replace(request, hardware=None), smi, matrix) if request.hardware is None else request
    named = in_normal_form(request, matrix).hardware
    if named is not None and named != with_hardware_of_cards(replace(request, hardware=None), smi, matrix).hardware:
        return request
    stack = solve(here, matrix)
    if isinstance(stack, Stack) and stack.platform.hardware is None:
        return request
    facts = _facts_of(host)
    taken, _ = filled_from_host(here, facts, matrix, only=fields - {"cann", "driver"} if request.stack else fields)
    return taken


def with_host(request: Request, name: str) -> tuple[Request, tuple[Message, ...]]:
    """The request with what a host decides, and what it does not tell. `this` machine, or a capture file."""
    return filled_from_host(request, _facts_of(_host_named(name)), load_matrix())


def num_cards(name: str) -> int | None:
    """How many cards a session sees on `this` machine or that of a capture; None where that cannot be told."""
    host = _host_named(name)
    table = driver.table_of(driver.smi(host)).value
    return visible(host.environ(), len(table.cards)) if table is not None and table.is_complete else None


def _facts_of(host: Host) -> Facts:
    """The facts that decide a stack; with all readers, for which a machine without cards does not wait."""
    from npuenv.facts.collect import collect

    return collect(host, only=_GROUPS)


def _host_named(name: str) -> Host:
    return local.LocalHost() if name == "this" else load_capture(Path(name))


def basis_of(request: Request, stack: Stack, asked: Request | None = None) -> tuple[Message, ...]:
    """What nobody named: what was read from the host, and what the stack assumes because it was not found there.

    `asked`: the request before `for_this_machine` completed it; None: it did not.
    """
    taken = tuple(f"{name} {getattr(request, name)}" for name in sorted(DECIDED & set(request.origins)))
    notes = [Message("resolve.host-taken", {"what": taken})] if taken else []
    recipe = recipe_named(stack.name, load_matrix())
    if recipe is not None and recipe.hardware and _assumes_arch(asked or request, request, stack, recipe):
        notes.append(Message("resolve.note-assumed-arch", {"arch": stack.platform.arch, "has": recipe.arch}))
    return (*notes, *assumption_notes(stack))


def _assumes_arch(asked: Request, request: Request, stack: Stack, recipe: Recipe) -> bool:
    """Whether to say which architecture is assumed: a recipe with several was not told one, nor by a host.

    A machine of the usual one goes without saying.
    """
    is_open = len(recipe.arch) > 1 and asked.arch is None and not DECIDED & set(request.origins)
    return is_open and (request.arch is None or stack.platform.arch != recipe.arch[0])


def next_steps(stack: Stack, request: Request) -> Iterator[Message]:
    """Why no newer release, how far the stack's lock is, and the commands that go on from here."""
    newer = newer_release(stack, request, load_matrix())
    if newer is not None:
        yield newer
    found = find_lock(stack, own_locks())
    if found is None:
        yield Message("stack.lock-none")
    else:
        lacks = tuple(dict.fromkeys(missing.name for missing in found.missing))
        yield Message(f"stack.lock-{found.status}", {"packages": len(found.packages), "lacks": lacks})
    # What a host told, it tells the next command too.
    of_host: dict[str, Any] = dict.fromkeys(DECIDED & set(request.origins))
    typed = replace(request, **of_host)
    named = command_for(replace(typed, stack=stack.name, framework=None, release=None, is_newest=False))[2:]
    yield Message("stack.next-install", {"command": shlex.join(("npuenv", "install", *named))})
    yield Message("stack.next-why", {"command": shlex.join(("npuenv", "resolve", *named))})


def assumption_notes(stack: Stack) -> tuple[Message, ...]:
    """What to know before a stack is installed: what it was chosen by, and what it cannot do."""
    return tuple(note for note in stack.notes if note.key in ASSUMPTIONS)


@dataclass(frozen=True, slots=True)
class LockOptions:
    """How stacks are locked."""

    fill: bool = False  # ask the indexes for what a lock lacks or took from public lock files
    renew: bool = False  # resolve again even where a lock is there
    is_offline: bool = False  # resolve from uv's cache only
    out: Path | None = None  # the folder of the locks; None: that of the locks made on this machine


def this_resolver(progress: Progress, *, is_offline: bool = False) -> Resolver:
    """uv with the indexes of the tables and the settings that the user made for pip on this machine."""
    from npuenv.facts.pip import pip_settings
    from npuenv.lock.uv import Resolver, find_uv

    host = local.LocalHost()
    settings = pip_settings(host, prefix=sys.prefix)
    for warning in settings.warnings:
        progress.warning(warning)
    indexes = {row.label: row.url for row in load_matrix().indexes if row.url}
    return Resolver(host, find_uv(), settings, indexes, is_offline=is_offline, warn=progress.note)


def lock(stack: Stack, resolver: Resolver | None = None, *, fill: bool = False, progress: Progress = SILENT) -> Lock:
    """The stack's lock: a shipped or an own one; made now where there is none, or where it is partial
    or rests on hashes that its index did not give, and `fill` is on.

    `resolver` None: that of this machine, where a lock has to be made. Raises CannotTell, NothingFits.
    """
    folder = own_locks(resolver.host.environ()) if resolver else own_locks()
    found = find_lock(stack, folder)
    if found is None or (fill and not found.is_from_indexes):
        from npuenv.lock.make import make_lock  # most locks are found, and rendering does not wait for it

        about = {"stack": stack.name, "platform": stack.platform.tag}
        progress.activity(Message("cli.locking", about))
        found = make_lock(stack, resolver or this_resolver(progress))
        if found.is_complete:
            put_lock(found, folder)
    return found


def lock_request(request: Request, options: LockOptions | None = None, progress: Progress = SILENT) -> LockedRequest:
    """The stack of a request on this machine, and its lock. Raises ConflictError, BadInput, CannotTell, NothingFits.

    With `renew` a complete lock replaces that of this machine, unless it is for another folder.
    """
    options = options or LockOptions()
    resolver = this_resolver(progress, is_offline=options.is_offline)
    asked, request = request, for_this_machine(request)
    stack = resolve(request)
    for note in basis_of(request, stack, asked):
        progress.note(note)
    if options.renew:
        from npuenv.lock.make import make_lock

        found = make_lock(stack, resolver)
        if found.is_complete and options.out is None:
            path = put_lock(found, own_locks())
            progress.note(Message("cli.locked", {"path": str(path), "packages": len(found.packages)}))
    else:
        found = lock(stack, resolver, fill=options.fill, progress=progress)
    return LockedRequest(*for_chip(stack, found), resolver, request)
