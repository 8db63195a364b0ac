"""The environment that a command is about where none is named."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.facts.manifest import MARKER, describe
from npuenv.install.environments import CURRENT, environments
from npuenv.install.locations import data_folder

if TYPE_CHECKING:
    from npuenv.host.base import Host
    from npuenv.install.environments import Kept


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python with its packages, and how it came to be chosen."""

    python: str  # absolute
    name: str  # the stack's name where npuenv made it, else its folder
    origin: str  # named | activated | newest | session

    @property
    def says(self) -> Message:
        """Which one it is and why, in one sentence."""
        return Message(f"store.environment-{self.origin}", {"name": self.name, "python": self.python})


def active_environment(host: Host, framework: str | None = None) -> Environment:
    """The activated environment, else the newest one in force that npuenv made, else the Python of the session.

    `framework`: of those in force only one that is for this use.
    """
    activated = _activated(host)
    if activated is not None:
        return environment_at(host, activated, "activated")
    kept = [each for each in environments(host, Path(data_folder(host.environ()))) if _is_in_force(each, framework)]
    if kept:
        return environment_at(host, max(kept, key=_since).described.root, "newest")
    python = shutil.which("python3", path=host.environ().get("PATH")) or sys.executable
    return Environment(python, python, "session")


def environment_at(host: Host, root: str, origin: str = "named") -> Environment:
    """The environment in a folder."""
    made = describe(host, root)
    return Environment(f"{root}/bin/python", made.stack if made else root, origin)


def _activated(host: Host) -> str | None:
    """The folder that the session has activated to work in.

    The one that npuenv runs from is activated to have the command, and conda activates its base by itself: without
    torch these two are not what anybody trains in.
    """
    environ = host.environ()
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        root = environ.get(variable)
        if not root:
            continue
        is_by_the_way = os.path.realpath(root) == os.path.realpath(sys.prefix) or (
            variable == "CONDA_PREFIX" and environ.get("CONDA_DEFAULT_ENV") == "base"
        )
        if not is_by_the_way or any(Path(root).glob("lib/python*/site-packages/torch")):
            return os.path.abspath(root)
    return None


def _is_in_force(kept: Kept, framework: str | None) -> bool:
    own = kept.described
    is_used = kept.role in (CURRENT, "elsewhere") and own.status != "building"
    return is_used and framework in (None, own.framework)


def _since(kept: Kept) -> float:
    """When it came into force: its link was made then; one in a folder of the user's choice was finished then."""
    root = Path(kept.described.root)
    return (root.with_name(CURRENT) if kept.role == CURRENT else root / MARKER).lstat().st_mtime
