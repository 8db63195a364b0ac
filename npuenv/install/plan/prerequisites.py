"""What a plan stands on and what comes before its own steps."""

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
    """Steps that come before the environment's own, and what the user is to be told where there can be none."""

    steps: tuple[Step, ...] = ()
    notes: tuple[Message, ...] = ()

    def __add__(self, other: Prerequisites) -> Prerequisites:
        return Prerequisites(self.steps + other.steps, self.notes + other.notes)


def privilege_of(host: Host) -> str:
    """How a command gets root's rights here: it has them (`root`), through `sudo`, or not at all (`none`)."""
    said = host.run(("id", "-u"))
    if said.code == 0 and said.out.strip() == "0":
        return ROOT
    folders = [folder for folder in host.environ().get("PATH", "").split(":") if folder.startswith("/")]
    places = [f"{folder}/sudo" for folder in dict.fromkeys((*folders, "/usr/bin"))]
    return SUDO if any(host.look(place).state is PathState.FILE for place in places) else NONE


def as_root(run: Run, privilege: str) -> Run:
    """The same command with root's rights. sudo never asks for a password, and hands no variables on by itself."""
    if privilege != SUDO:
        return run
    env = ("env", *(f"{name}={value}" for name, value in run.env.items())) if run.env else ()
    return replace(run, argv=("sudo", "-n", *env, *run.argv), env={})


def as_lines(actions: tuple[Action, ...]) -> str:
    """The commands of a step as somebody with root's rights would type them."""
    lines = []
    for action in actions:
        if isinstance(action, WriteFile):
            continue
        words = shlex.join(action.argv)
        env = " ".join(f"{name}={shlex.quote(value)}" for name, value in action.env.items())
        lines.append(f"env {env} {words}" if env else words)
    return " && ".join(lines)
