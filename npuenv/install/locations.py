"""The locations of environments and the layout of their folders."""

from __future__ import annotations

import json
import os
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.core.seal import seal_of, text_hash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.lock.file import Lock


class EnvironmentPlace(NamedTuple):
    """An environment's folder, and the link to a stack's current one (None in a folder of the user's choice)."""

    root: str
    link: str | None = None
    kind: str = "venv"  # venv | conda | existing: an environment that the user already had

    @property
    def python(self) -> str:
        return posixpath.join(self.root, "bin/python")

    def own(self, *parts: str) -> str:
        """A path below the folder of the installation's own files."""
        return posixpath.join(self.root, ".npuenv", *parts)


def data_folder(environ: Mapping[str, str]) -> str:
    """The default folder of environments."""
    return _own_folder(environ, "XDG_DATA_HOME", ".local/share")


def state_folder(environ: Mapping[str, str]) -> str:
    """The folder of records of runs."""
    return _own_folder(environ, "XDG_STATE_HOME", ".local/state")


def _own_folder(environ: Mapping[str, str], variable: str, usual: str) -> str:
    """npuenv's folder in one of the user's. XDG requires that a relative path is ignored.

    Raises: BadInput if HOME names no folder: nobody would look below the root or the working folder.
    """
    base = environ.get(variable, "")
    if not posixpath.isabs(base):
        home = environ["HOME"] if "HOME" in environ else os.path.expanduser("~")
        if not posixpath.isabs(home):
            hint = Message("store.no-home-hint", {"variable": variable})
            raise BadInput(Message("store.no-home", {"home": home}), hint)
        base = posixpath.join(home, usual)
    return posixpath.join(base, "npuenv")


def default_environment(stack: str, environ: Mapping[str, str] | None = None) -> Path:
    """The environment of a stack that was finished last; the path need not exist."""
    return Path(data_folder(os.environ if environ is None else environ), "envs", stack, "current")


def target_for(lock: Lock, environ: Mapping[str, str], chosen: str | None = None) -> EnvironmentPlace:
    """The folder of a lock's environment: `chosen` itself, or `<data>/envs/STACK/<lock hash>` with a `current` link."""
    if chosen is not None:
        return EnvironmentPlace(posixpath.normpath(chosen))
    home = posixpath.join(data_folder(environ), "envs", lock.stack)
    return EnvironmentPlace(posixpath.join(home, lock.hash), posixpath.join(home, "current"))


def marker_text(lock: Lock, status: str, kind: str = "", manifest: str = "") -> str:
    """The marker file of an environment. `status`: building, complete; `kind`: as in its target; `manifest`: the text
    of the manifest, once it is complete.

    It records from the start that a folder is the user's own, so that it is never deleted.
    """
    values = {"schema": 1, "stack": lock.stack, "platform": lock.platform, "lock": lock.hash, "status": status}
    values |= {"kind": kind} if kind == "existing" else {}
    if manifest:
        values["manifest"] = text_hash(manifest)
        values["seal"] = seal_of(values)
    return json.dumps(values, sort_keys=True) + "\n"
