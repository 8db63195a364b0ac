"""Prerequisites of a plan: steps that come before its own."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.core.plan import Run, WriteFile
from npuenv.host.base import Host, PathState

if TYPE_CHECKING:
    from npuenv.core.messages import Message
    from npuenv.core.plan import Action, Step

ROOT, SUDO, NONE = "root", "sudo", "none"


@dataclass(frozen=True, slots=True)
class Prerequisites:
    """Steps before the environment's own, and notes for the user about missing ones."""

    steps: tuple[Step, ...] = ()
    notes: tuple[Message, ...] = ()

    def __add__(self, other: Prerequisites) -> Prerequisites:
        return Prerequisites(self.steps + other.steps, self.notes + other.notes)


def privilege_of(host: Host) -> str:
    """How a command gets root privileges: it has them (`root`), through `sudo`, or not at all (`none`)."""
    ran = host.run(("id", "-u"))
    if ran.code == 0 and ran.out.strip() == "0":
        return ROOT
    folders = [folder for folder in host.environ().get("PATH", "").split(":") if folder.startswith("/")]
    paths = [f"{folder}/sudo" for folder in dict.fromkeys((*folders, "/usr/bin"))]
    return SUDO if any(host.look(path).state is PathState.FILE for path in paths) else NONE


def as_root(run: Run, privilege: str) -> Run:
    """The command with root privileges. sudo never asks for a password and passes no variables on."""
    if privilege != SUDO:
        return run
    env = ("env", *(f"{name}={value}" for name, value in run.env.items())) if run.env else ()
    return replace(run, argv=("sudo", "-n", *env, *run.argv), env={})


def as_lines(actions: tuple[Action, ...]) -> str:
    """The commands of a step as root would type them."""
    lines = []
    for action in actions:
        if isinstance(action, WriteFile):
            continue
        line = shlex.join(action.argv)
        env = " ".join(f"{name}={shlex.quote(value)}" for name, value in action.env.items())
        lines.append(f"env {env} {line}" if env else line)
    return " && ".join(lines)
