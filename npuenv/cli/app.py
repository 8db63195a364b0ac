"""The group of all commands. Start from `run`: whatever happens in a command becomes sentences and an exit code."""

from __future__ import annotations

import codecs
import contextlib
import difflib
import importlib
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

from npuenv import __version__
from npuenv.cli.common import Interrupted, Stop, report_error
from npuenv.errors import BadInput, ExitCode, NpuenvError, StepFailed
from npuenv.messages import LANGUAGES, Message, language_from_environment, say

if TYPE_CHECKING:
    from types import FrameType

# In the order of `npuenv --help`: the road first, then what hangs on it. Each names the module of its command.
_COMMANDS = {
    "up": "up",
    "doctor": "doctor",
    "install": "install",
    "render-docker": "render_docker",
    "smoke-train": "smoke_train",
    "resolve": "resolve",
    "lock": "lock",
    "matrix": "matrix",
}


class _ReaderGone(Exception):
    """A broken pipe. click would end the process with 1 for an OSError of that kind; here `run` decides."""


class _Commands(click.Group):
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


def run(argv: list[str] | None) -> int:
    """One command line to its exit code; `argv` None: the process's own. Said is everything when it comes back."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if argv is None:
            _prepare_streams()
            _treat_as_interrupts(signal.SIGTERM, signal.SIGHUP)
        code = _run(words)
        sys.stdout.flush()
        if argv is None:
            _ignore_interrupts()
        return code
    except (KeyboardInterrupt, click.Abort):
        return report_interrupt(argv)
    except (BrokenPipeError, _ReaderGone):
        # The reader went away (`| head`). Python would complain once more when it flushes stdout at exit.
        _silence(sys.stdout)
        return 128 + 13
    except OSError as error:
        code = _report_os_error(error, lang=_lang_of(words), is_json="--json" in words)
        _silence_if_stuck(sys.stdout)
        return code


def _run(words: list[str]) -> int:
    lang, is_json = _lang_of(words), "--json" in words
    try:
        _require_text(words)
        result = npuenv.main(args=words, prog_name="npuenv", standalone_mode=False)
        return int(result) if isinstance(result, int) else int(ExitCode.FINE)
    except Stop as stop:
        return int(stop.code)
    except NpuenvError as error:
        report_error(error, lang=lang, is_json=is_json)
        return int(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return int(ExitCode.INPUT)
    except click.UsageError as error:
        return _report_usage(error, lang=lang, is_json=is_json)
    except UnicodeDecodeError as error:
        wrong = BadInput(Message("cli.not-utf8", {"start": ascii(error.object[:20])}), Message("cli.not-utf8-hint"))
        report_error(wrong, lang=lang, is_json=is_json)
        return int(wrong.exit_code)
    except UnicodeEncodeError as error:  # a name from the environment; those of the command line are looked at before
        wrong = BadInput(Message("cli.not-text", {"word": ascii(error.object)[:200]}), Message("cli.not-text-hint"))
        report_error(wrong, lang=lang, is_json=is_json)
        return int(wrong.exit_code)


def report_interrupt(argv: list[str] | None) -> int:
    """Says that the run was interrupted, where there is still somebody to hear it; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        _ignore_interrupts()
    with contextlib.suppress(OSError):  # the terminal may be what went away
        if "--json" in words:
            report_error(Interrupted(Message("cli.interrupted")), lang=_lang_of(words), is_json=True)
        else:
            click.echo(say(Message("cli.interrupted"), _lang_of(words)), err=True)
        sys.stdout.flush()
        return int(ExitCode.INTERRUPTED)
    _silence(sys.stdout)
    return int(ExitCode.INTERRUPTED)


def _treat_as_interrupts(*numbers: signal.Signals) -> None:
    """Lets these signals end the run as Ctrl-C does, so that no program it started is left behind.

    A signal that is ignored already stays so: that is what nohup does.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in numbers:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, interrupt)


def _ignore_interrupts() -> None:
    """From here on only the exit code is left to give: an impatient second Ctrl-C must not change it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _prepare_streams() -> None:
    """Gives the process the three streams it may have been started without, and ones that take every character.

    A closed descriptor would go to the next file that is opened, and what is printed into it. Where the locale is
    plain ASCII nothing is known about the terminal, and UTF-8 is the better guess.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if is_ascii else None, errors="backslashreplace")


def _silence(stream: TextIO) -> None:
    """Sends what is still to be flushed into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _silence_if_stuck(stream: TextIO) -> None:
    """Keeps Python from complaining at exit about what a stream did not take."""
    try:
        stream.flush()
    except OSError:
        _silence(stream)


def _require_text(words: list[str]) -> None:
    """Raises BadInput for an argument that no command can mean.

    An empty one is mostly an unset shell variable, and as a path it would be the working folder. One that is not text
    in this locale could not be named in any file that is written.
    """
    for word in words:
        if not word:
            raise BadInput(Message("cli.empty-argument"), Message("cli.empty-argument-hint"))
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise BadInput(Message("cli.not-text", {"word": ascii(word)}), Message("cli.not-text-hint"))


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
    reason = error.strerror or str(error)
    # Only opening a file tells which one it was; writing to it, or to stdout, does not.
    said = Message("cli.os-error", {"path": error.filename, "reason": reason})
    if not error.filename:
        said = Message("cli.os-error-nameless", {"reason": reason})
    failed = StepFailed(said, Message("cli.os-error-hint"))
    # What cannot take the document may be stdout itself, and stderr may lie on the same full disk.
    for as_json in (True, False) if is_json else (False,):
        with contextlib.suppress(OSError):
            report_error(failed, lang=lang, is_json=as_json)
            break
    return int(failed.exit_code)
