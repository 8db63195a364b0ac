"""`npuenv cluster`: what is done with all nodes of an inventory together."""

from __future__ import annotations

import importlib

import click

from npuenv.cli.help import Group

# Each names the module of its command, and the command in it.
_COMMANDS = {
    "up": ("cluster_ray", "up"),
    "status": ("cluster_ray", "status"),
    "down": ("cluster_ray", "down"),
    "mesh": ("cluster_mesh", "command"),
}


class _Commands(Group):
    """Imports a command's module only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"npuenv.cli.{module}"), name)
        return command


@click.group("cluster", cls=_Commands)
def command() -> None:
    """Manage all nodes of an inventory over ssh."""
