"""Validates sources that the user supplies instead of a repository."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.host.base import Host, PathState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.resolve.types import Stack

ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
_TIMEOUT_S = 600.0


def digests_of(host: Host, given: Mapping[str, str], stack: Stack, python: str) -> dict[str, str]:
    """Normalised source name -> digest of the supplied archive (`sha256:HEX`) or folder (`tree:HEX`).

    Raises: BadInput for a name the stack does not build from source, and for a path that is no archive and no folder.
    """
    known = {str(canonicalize_name(source.name)) for source in stack.git_sources}
    found = {}
    for name, path in given.items():
        if canonicalize_name(name) not in known:
            args = {"name": name, "stack": stack.name, "known": tuple(sorted(known)) or (Message("plan.none"),)}
            hint = Message("plan.source-unknown-hint", args) if known else Message("plan.no-sources-hint", args)
            raise BadInput(Message("plan.source-unknown", args), hint)
        found[str(canonicalize_name(name))] = _digest(host, name, path, python)
    return found


def is_folder(path: str, digest: str) -> bool:
    """Whether a supplied source is a folder; without a digest, judged by its name."""
    return digest.startswith("tree:") if digest else not path.endswith(ARCHIVES)


def unpacker() -> str:
    """The text of the program that unpacks supplied sources."""
    text = pkgutil.get_data("npuenv.install", "unpacker.py")
    assert text is not None
    return text.decode()


def _digest(host: Host, name: str, path: str, python: str) -> str:
    looked = host.look(path)
    args = {"name": name, "path": path}
    if looked.state is PathState.UNREADABLE:
        raise BadInput(Message("plan.source-unreadable", {**args, "why": looked.error}))
    is_archive = looked.state is PathState.FILE and path.endswith(ARCHIVES)
    if not (is_archive or looked.state is PathState.FOLDER):
        raise BadInput(Message("plan.source-no-archive", {**args, "kinds": ARCHIVES}))
    ran = host.run((python, "-I", "-B", "-c", unpacker(), "digest", path), timeout_s=_TIMEOUT_S)
    if ran.code != 0:
        lines = (ran.out + ran.err).strip().splitlines() or [""]
        raise BadInput(Message("plan.source-unreadable", {**args, "why": lines[-1]}))
    return ran.out.strip()
