"""The command line: arguments to one call per command to an exit code. The only package that prints and exits."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import TYPE_CHECKING

import click

from npuenv import __version__
from npuenv.cli.common import Stop, report_error
from npuenv.errors import BadInput, ExitCode, NpuenvError, StepFailed
from npuenv.messages import LANGUAGES, Message, language_from_environment, say

if TYPE_CHECKING:
    from collections.abc import Sequence

# In the order of `npuenv --help`: the road first, then what hangs on it. Each names the module of its command.
_COMMANDS = {
    "up": "up",
    "doctor": "doctor",
    "install": "install",
    "render-docker": "render_docker",
    "smoke-train": "smoke_train",
    "resolve": "resolve",
    "lock": "lock",
}


class _Commands(click.Group):
    """Imports a command's module only when it is asked for, and suggests the nearest name for a misspelt one."""

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
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1, cutoff=0.4)
            hint = Message("cli.did-you-mean", {"name": near[0]}) if near else None
            raise BadInput(Message("cli.no-command", {"name": args[0], "accepted": tuple(_COMMANDS)}), hint)
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="npuenv")
def npuenv() -> None:
    """From a bare Ascend NPU host to a proven reinforcement-learning training environment.

    Start with `npuenv up --for cpu --yes` to see the whole road on any machine, or with `npuenv doctor` on a machine
    that has cards.

    Exit codes: 0 fine, 1 problems found or a step failed, 2 wrong usage or input, 3 could not tell, 4 nothing fits
    together, 130 interrupted.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and exits the process with its code; with `argv` given, returns the code instead."""
    words = list(sys.argv[1:] if argv is None else argv)
    code = _run(words)
    if argv is None:
        sys.exit(int(code))
    return int(code)


def _run(words: list[str]) -> int:
    lang, is_json = _lang_of(words), "--json" in words
    try:
        result = npuenv.main(args=words, prog_name="npuenv", standalone_mode=False)
        return int(result) if isinstance(result, int) else int(ExitCode.FINE)
    except Stop as stop:
        return int(stop.code)
    except NpuenvError as error:
        report_error(error, lang=lang, is_json=is_json)
        return int(error.exit_code)
    except click.UsageError as error:
        return _report_usage(error, lang=lang, is_json=is_json)
    except (KeyboardInterrupt, click.Abort):
        click.echo(say(Message("cli.interrupted"), lang), err=True)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader went away (`| head`). Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as error:
        return _report_os_error(error, lang=lang, is_json=is_json)


def _lang_of(words: list[str]) -> str:
    """The language, read ahead of click so that usage errors speak it too."""
    for index, word in enumerate(words):
        value = word[7:] if word.startswith("--lang=") else words[index + 1 : index + 2] if word == "--lang" else None
        value = value[0] if isinstance(value, list) and value else value
        if value in LANGUAGES:
            return str(value)
    return language_from_environment()


def _report_usage(error: click.UsageError, *, lang: str, is_json: bool) -> int:
    command = error.ctx.command_path if error.ctx else "npuenv"
    wrapped = BadInput(
        Message("cli.usage", {"message": error.format_message()}), Message("cli.usage-hint", {"command": command})
    )
    report_error(wrapped, lang=lang, is_json=is_json)
    return int(ExitCode.INPUT)


def _report_os_error(error: OSError, *, lang: str, is_json: bool) -> int:
    """A file system error that no command foresaw: still one sentence with the path and the system's reason."""
    args = {"reason": error.strerror or str(error), "path": error.filename or "-"}
    report_error(StepFailed(Message("cli.os-error", args), Message("cli.os-error-hint")), lang=lang, is_json=is_json)
    return int(ExitCode.PROBLEMS)
