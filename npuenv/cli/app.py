"""The group of all commands. Start from `run`: whatever happens in a command becomes sentences and an exit code."""

from __future__ import annotations

import importlib
from typing import Any

import click

from npuenv import __version__
from npuenv.app.entry import run_to_code
from npuenv.cli.common import Stop
from npuenv.cli.help import Group
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message

# In the order of `npuenv --help`: the road first, then what hangs on it. Each names the module of its command.
_COMMANDS = {
    "up": "up",
    "doctor": "doctor",
    "install": "install",
    "env": "env",
    "bundle": "bundle",
    "render-docker": "render_docker",
    "render-launch": "render_launch",
    "preflight": "preflight",
    "smoke-train": "smoke_train",
    "resolve": "resolve",
    "lock": "lock",
    "matrix": "matrix",
    "cluster": "cluster",
    "pack-doctor": "pack_doctor",
    "completion": "completion",
    "man": "man",
}


class _ReaderGone(Exception):
    """A broken pipe. click would end the process with 1 for an OSError of that kind; here `run` decides."""


class _Commands(Group):
    """Imports a command's module only when it is asked for, and suggests the nearest name for a misspelt one."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"npuenv.cli.{_COMMANDS[cmd_name]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, n=1, cutoff=0.4)
            hint = Message("cli.did-you-mean", {"name": near[0]}) if near else None
            raise BadInput(Message("cli.no-command", {"name": args[0], "accepted": tuple(_COMMANDS)}), hint)
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="npuenv")
def npuenv() -> None:
    """Set up and verify reinforcement-learning training environments on Ascend NPU hosts.

    Start with `npuenv up --for cpu --yes` to try everything on any machine. On a machine with cards: `npuenv doctor`,
    `npuenv resolve --for verl` (or roll), `npuenv install --for verl`, `npuenv smoke-train`.

    Exit codes: 0 success, 1 problems found or a step failed, 2 invalid usage or input, 3 unknown, 4 no compatible
    versions, 130 interrupted.
    """


def run(argv: list[str] | None) -> int:
    """One command line to its exit code; `argv` None: the process's own. Said is everything when it comes back."""
    return run_to_code(argv, _run)


def _run(words: list[str]) -> int:
    try:
        result = npuenv.main(args=words, prog_name="npuenv", standalone_mode=False)
        return int(result) if isinstance(result, int) else int(ExitCode.FINE)
    except Stop as stop:
        return int(stop.code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return int(ExitCode.INPUT)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "npuenv"
        hint = Message("cli.usage-hint", {"command": command})
        raise BadInput(Message("cli.usage", {"message": error.format_message()}), hint) from error
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except _ReaderGone as error:
        raise BrokenPipeError from error
