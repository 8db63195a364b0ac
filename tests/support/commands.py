"""All commands of a click program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator


def contexts(
    command: click.Command, name: str = "npuenv", parent: click.Context | None = None
) -> Iterator[click.Context]:
    """A command and all below it, each in the context of its name."""
    ctx = click.Context(command, info_name=name, parent=parent)
    yield ctx
    if isinstance(command, click.Group):
        for below in command.list_commands(ctx):
            found = command.get_command(ctx, below)
            assert found is not None
            yield from contexts(found, below, ctx)
