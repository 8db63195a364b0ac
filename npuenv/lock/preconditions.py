"""Checks whether a lock can be installed on this machine."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.errors import NothingFits
from npuenv.core.messages import Message
from npuenv.facts.pip import without_secrets
from npuenv.lock.file import IMPOSSIBLE, Lock, Missing, Proof
from npuenv.lock.uv import Resolver, is_out_of_reach, probe
from npuenv.lock.wheels import wheels_in_links
from npuenv.resolve.suggestions import command
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from npuenv.resolve.types import Stack


def require_complete(lock: Lock, resolver: Resolver, request: Request | None = None) -> None:
    """Raises NothingFits for an incomplete lock: the missing hashes and where they were searched for, or the clash.

    `request`: the request that the lock's stack was resolved from, for the command that completes the lock.
    """
    if lock.status == IMPOSSIBLE:
        args = {
            "stack": lock.stack,
            "platform": lock.platform,
            "why": why_impossible(lock.proof, lock.missing[0].detail),
        }
        raise NothingFits(Message("lock.impossible", args), Message("lock.impossible-hint"))
    if lock.missing:
        why = tuple(why_missing(each, resolver) for each in lock.missing)
        raise NothingFits(
            Message("lock.partial", {"stack": lock.stack, "platform": lock.platform, "why": why}),
            Message("lock.fill-it", {"command": fill_command(lock, request)}),
        )


def fill_command(lock: Lock, request: Request | None = None) -> str:
    """The command that completes a lock.

    It names architecture and Python even if they are this machine's, because the index may be reachable from another
    machine only.
    """
    arch, tag = lock.platform.split("-")[:2]
    python = f"{tag[2]}.{tag[3:]}"  # cp311
    argv = command(replace(request or Request(), stack=lock.stack, arch=arch, python=python))
    return shlex.join(("npuenv", "lock", lock.stack, "--fill", *argv[3:]))


def why_impossible(proof: Sequence[Proof], detail: str) -> tuple[Message, ...]:
    """Each clashing requirement with its source; without a proof, the resolver's own message."""
    if not proof:
        return (Message("lock.lacks-does-not-resolve", {"detail": detail}),)
    return tuple(Message("lock.proof-row", {"requirement": p.requirement, "source": p.source}) for p in proof)


def require_sources(
    stack: Stack, lock: Lock, resolver: Resolver, *, only: Collection[str] | None = None
) -> dict[str, str]:
    """Name -> find-links folder, for packages with an index of their own that are in one.

    The others are looked up on their index; raises NothingFits if it is unreachable or does not have the version. The
    default index is no replacement: it has a torch of the same version that requires CUDA packages. `only`: the names
    of the packages to look up; None: all.
    """
    labelled = [package for package in lock.packages if package.index and (only is None or package.name in only)]
    found = wheels_in_links(resolver.host, resolver.settings, [(p.name, p.version) for p in labelled], stack.platform)
    for package in labelled:
        if package.name in found:
            continue
        assert package.index is not None
        ran = probe(package.name, package.version, package.index, stack, resolver)
        if ran.code != 0:
            reason = "index-out-of-reach" if is_out_of_reach(ran) else "not-on-index"
            missing = Missing(package.name, package.version, reason, package.index)
            raise NothingFits(why_missing(missing, resolver), Message("lock.provide-wheel", {"name": package.name}))
    return found


def why_missing(missing: Missing, resolver: Resolver) -> Message:
    """The message for one row of `missing`, with the index's label and address and the find-links folders."""
    links = tuple(without_secrets(item.value) for item in resolver.settings.find_links) or (Message("lock.no-links"),)
    args = {
        "name": missing.name,
        "version": missing.version,
        "index": missing.index or "",
        "url": without_secrets(resolver.indexes.get(missing.index or "", "")),
        "links": links,
        "detail": missing.detail,
    }
    return Message(f"lock.reason-{missing.reason}", args)
