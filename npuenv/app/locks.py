"""The lock of a stack, and what locks and installs on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from npuenv.app.job import SILENT, Progress
from npuenv.app.resolution import own_locks
from npuenv.core.messages import Message
from npuenv.lock.store import find_lock, put_lock

if TYPE_CHECKING:
    from npuenv.lock import Lock
    from npuenv.lock.make import Resolver
    from npuenv.resolve.types import Stack


def this_resolver(progress: Progress) -> Resolver:
    """uv with the indexes of the tables and the settings that the user made for pip on this machine."""
    from npuenv.facts.pip import pip_settings
    from npuenv.host.local import LocalHost
    from npuenv.lock.make import Resolver, find_uv
    from npuenv.matrix import load_matrix

    host = LocalHost()
    settings = pip_settings(host, prefix=sys.prefix)
    for warning in settings.warnings:
        progress.warning(warning)
    indexes = {row.label: row.url for row in load_matrix().indexes if row.url}
    return Resolver(host, find_uv(), settings, indexes, warn=progress.note)


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
