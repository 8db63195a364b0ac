"""The lock of a stack, what locks and installs on this machine, and whether a folder holds what a lock says."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.app.progress import SILENT, Progress
from npuenv.app.resolution import basis_of, for_this_machine, own_locks, resolve
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.lock.store import LockedRequest, find_lock, for_chip, put_lock

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.lock.file import Lock
    from npuenv.lock.uv import Resolver
    from npuenv.resolve.types import Request, Stack


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
    from npuenv.host.local import LocalHost
    from npuenv.lock.uv import Resolver, find_uv
    from npuenv.matrix import load_matrix

    host = LocalHost()
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
    if not options.renew:
        found = lock(stack, resolver, fill=options.fill, progress=progress)
        return LockedRequest(*for_chip(stack, found), resolver, request)
    from npuenv.lock.make import make_lock

    made = make_lock(stack, resolver)
    if made.is_complete and options.out is None:
        path = put_lock(made, own_locks())
        progress.note(Message("cli.locked", {"path": str(path), "packages": len(made.packages)}))
    return LockedRequest(*for_chip(stack, made), resolver, request)


def packages_below(folder: Path) -> Path:
    """The packages of an environment; a folder that is none holds them itself. Raises BadInput for no folder."""
    if not folder.is_dir():
        raise BadInput(Message("consistent.no-folder", {"path": str(folder)}))
    return min(folder.glob("lib/python3.*/site-packages"), default=folder)
