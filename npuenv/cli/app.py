"""The group of all commands. Start from `run`: whatever happens in a command becomes sentences and an exit code."""

from __future__ import annotations

from typing import Any

import click

from npuenv import __version__
from npuenv.cli.common import Stop
from npuenv.cli.help import Group
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message
from npuenv.terminal.entry import run_command

# In the order of `npuenv --help`: the main path first, then what belongs to it.
_COMMANDS = {
    "up": ("up", "Walk the whole road: doctor, install, smoke-train"),
    "doctor": (
        "doctor",
        "Say what is wrong on this machine for training on Ascend NPUs, why, and which command mends it",
    ),
    "install": ("install", "Install a stack into an environment of its own, from its lock, and verify it"),
    "env": ("env", "See and tidy the environments that npuenv made"),
    "bundle": (
        "bundle",
        "Put everything that a machine without a network needs for a stack into one folder or archive",
    ),
    "render-docker": (
        "render_docker",
        "Render the same environment as a Dockerfile with its hashed requirements, and files that run its container",
    ),
    "render-launch": (
        "render_launch",
        "Render the files that start a training run: verl's overrides and YAML, or ROLL's YAML, and start scripts",
    ),
    "preflight": (
        "preflight",
        "Say what will not work in a launch of verl or ROLL before it is started, with the corrected lines",
    ),
    "smoke-train": (
        "smoke_train",
        "Train a tiny model with GRPO in an environment and say whether training works there",
    ),
    "resolve": ("resolve", "Say which versions fit together, on one screen; --why gives the reasons, -v everything"),
    "lock": ("lock", "Give the full hashed lock of a stack: every package with version, hashes and who needs it"),
    "matrix": (
        "matrix",
        "Check the tables of what fits together, hold a checkout against them, or them against the indexes",
    ),
    "cluster": ("cluster", "Work with all nodes of an inventory at once, over the system's ssh"),
    "pack-doctor": ("pack_doctor", "Write the doctor as one file, to carry to a host where nothing can be installed"),
    "completion": ("completion", "Print the script that completes commands and options in a shell"),
    "man": ("man", "Print the manual page: the help of all commands"),
}


class _ReaderGone(Exception):
    """A broken pipe. click would end the process with 1 for an OSError of that kind; here `run` decides."""


class _Root(Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error


@click.group(
    cls=_Root,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
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
    return run_command(argv, _run)


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
