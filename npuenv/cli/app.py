"""The group of all commands. Start from `run`: whatever happens in a command becomes sentences and an exit code."""

from __future__ import annotations

from typing import Any

import click

from npuenv import __version__
from npuenv.cli.common import HelpfulGroup, Stop
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message
from npuenv.terminal.run import run_command

# In the order of `npuenv --help`: the main path first, then what belongs to it.
_COMMANDS = {
    "up": ("up", "Run doctor, install and smoke-train in one go"),
    "doctor": (
        "doctor",
        "Find what prevents training on Ascend NPUs on this machine, with causes and the commands that fix them",
    ),
    "install": ("install", "Install a stack from its lock into a new environment, and verify it"),
    "env": ("env", "Manage the environments made by npuenv"),
    "bundle": ("bundle", "Bundle everything an offline machine needs for a stack into one folder or archive"),
    "render-docker": (
        "render_docker",
        "Render the environment as a Dockerfile with hashed requirements, and files to run its container",
    ),
    "render-launch": (
        "render_launch",
        "Render the files that start a training run: verl overrides and YAML or ROLL YAML, and start scripts",
    ),
    "preflight": (
        "preflight",
        "Find what will not work in a launch of verl or ROLL before starting it, with corrected lines",
    ),
    "smoke-train": (
        "smoke_train",
        "Train a tiny model with GRPO in an environment to test whether training works there",
    ),
    "resolve": (
        "resolve",
        "Show which versions work together, on one screen; --why explains them, -v shows everything",
    ),
    "lock": ("lock", "Create the full hashed lock of a stack: every package with its version, hashes and dependents"),
    "matrix": (
        "matrix",
        "Check the compatibility tables, check a source tree against them, or compare them with the indexes",
    ),
    "cluster": ("cluster", "Manage all nodes of an inventory over ssh"),
    "pack-doctor": ("pack_doctor", "Pack the doctor into a single file for hosts where nothing can be installed"),
    "completion": ("completion", "Print the completion script for a shell"),
    "man": ("man", "Print the manual page with the help of all commands"),
}


class _ReaderGone(Exception):
    """A broken pipe. click would end the process with 1 for an OSError of that kind; here `run` decides."""


class _Root(HelpfulGroup):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error


@click.group(
    cls=_Root, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
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
