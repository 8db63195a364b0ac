"""Finds the environment of a command that names none."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.messages import Message
from npuenv.facts.manifest import MARKER, describe
from npuenv.install.environments import CURRENT, data_folder, environments

if TYPE_CHECKING:
    from npuenv.host import Host
    from npuenv.install.environments import EnvironmentEntry


class Environment(NamedTuple):
    """A Python with its packages, and how it was chosen."""

    python: str  # absolute
    name: str  # the stack's name if npuenv made it, else the name of its folder
    origin: str  # named | activated | newest | session

    @property
    def says(self) -> Message:
        """One sentence: which environment it is and why it was chosen."""
        return Message(f"store.environment-{self.origin}", {"name": self.name, "python": self.python})


def active_environment(host: Host, framework: str | None = None) -> Environment:
    """The activated environment, else the most recent active one that npuenv made, else the Python of the session.

    `framework`: consider only active environments for this framework.
    """
    activated = _activated(host)
    if activated is not None:
        return environment_at(host, activated, "activated")
    found = [each for each in environments(host, Path(data_folder(host.environ()))) if _is_active(each, framework)]
    if found:
        return environment_at(host, max(found, key=_since).described.root, "newest")
    python = shutil.which("python3", path=host.environ().get("PATH")) or sys.executable
    return Environment(python, python, "session")


def environment_at(host: Host, root: str, origin: str = "named") -> Environment:
    """The environment in a folder."""
    made = describe(host, root)
    return Environment(f"{root}/bin/python", made.stack if made else root, origin)


def _activated(host: Host) -> str | None:
    """The folder of the environment that the session has activated.

    npuenv's own environment is activated to have the command, and conda activates its base by itself. Without torch,
    neither of them is used for training.
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


def _is_active(entry: EnvironmentEntry, framework: str | None) -> bool:
    own = entry.described
    is_used = entry.role in (CURRENT, "elsewhere") and own.status != "building"
    return is_used and framework in (None, own.framework)


def _since(entry: EnvironmentEntry) -> float:
    """The time of activation: that of its link, or in a folder of the user's choice the time of installation."""
    root = Path(entry.described.root)
    return (root.with_name(CURRENT) if entry.role == CURRENT else root / MARKER).lstat().st_mtime
