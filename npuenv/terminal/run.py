"""One command line from its words to its exit code, whatever happens on the way: how it speaks (`Ui`), the options
that every command has (`COMMON`), and `run_command`.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from npuenv.core.errors import BadInput, ExitCode, NpuenvError, StepFailed
from npuenv.core.messages import LANGUAGES, Message, language_from_environment, say
from npuenv.terminal.signals import install_handlers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console


_PIPE_WIDTH = 10_000  # columns
# The commands that go on where they were interrupted; the others begin anew.
_KEEPING = (["up"], ["install"], ["bundle"], ["lock"], ["smoke-train"], ["cluster"])


@dataclass(frozen=True, slots=True)
class Ui:
    """How this run speaks: language, JSON or prose, how much of it, with or without colour."""

    lang: str
    is_json: bool = False
    is_quiet: bool = False
    is_verbose: bool = False
    has_color: bool = True

    def console(self, *, stderr: bool = False) -> Console:
        """A rich console: plain where the stream is no terminal; NO_COLOR and --no-color are honoured."""
        from rich.console import Console

        class Pipe(Console):
            """rich ends the process with 1 when the reader goes away; here `main` decides."""

            def on_broken_pipe(self) -> None:
                raise BrokenPipeError

        stream = sys.stderr if stderr else sys.stdout
        # A pipe has no width of its own, and what is broken over lines cannot be searched for.
        width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
        return Pipe(
            stderr=stderr,
            no_color=not self.has_color,
            markup=False,  # a bracket in a path is no tag
            highlight=False,
            emoji=False,
            width=width,
            soft_wrap=False,
        )

    def print_json(self, document: Mapping[str, object]) -> None:
        """The one document of a --json run."""
        print(as_json(document, is_to_stdout=True), end="", flush=True)

    def say(self, message: Message, *, err: bool = False) -> None:
        """One sentence for a person; silent with --json (stdout) and --quiet."""
        if not self.is_quiet and (err or not self.is_json):
            print(say(message, self.lang), file=sys.stderr if err else sys.stdout, flush=True)


class Interrupted(NpuenvError):
    """Ctrl-C, or a signal that is treated like it."""

    kind = "interrupted"
    exit_code = ExitCode.INTERRUPTED


def as_json(content: Mapping[str, object], *, is_to_stdout: bool) -> str:
    """A document in characters that the encoding of stdout has, where it goes there."""
    is_ascii = is_to_stdout and (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    return json.dumps(content, ensure_ascii=is_ascii, indent=2) + "\n"


def report_error(error: NpuenvError, *, lang: str, is_json: bool) -> None:
    """Says an error: one sentence and one hint on stderr, or the `npuenv.error/1` document on stdout."""
    if is_json:
        hint = say(error.hint, lang) if error.hint else None
        body = {"kind": error.kind, "message": say(error.message, lang), "hint": hint}
        document = {"schema": "npuenv.error/1", "exit": int(error.exit_code), "error": body}
        print(as_json(document, is_to_stdout=True), end="", flush=True)
        return
    print(say(Message("cli.error", {"message": error.message}), lang), file=sys.stderr, flush=True)
    if error.hint:
        print(say(Message("cli.hint", {"hint": error.hint}), lang), file=sys.stderr, flush=True)


class Option(NamedTuple):
    """An option for click and argparse."""

    flags: str
    name: str  # of the field that takes the value
    help: str
    metavar: str | None = None
    type: type = str  # bool: a flag
    choices: Sequence[Any] | None = None
    default: Any = None
    is_portable: bool = True  # False: the single file does not have it


COMMON = (
    Option("--lang", "lang", "Language of messages (default: the locale's).", choices=LANGUAGES),
    Option("--json", "as_json", "Print one JSON document on stdout.", type=bool),
    Option("-q --quiet", "quiet", "Show only what went wrong.", type=bool),
    Option("-v --verbose", "verbose", "Show everything, not only what needs attention.", type=bool),
    Option("--no-color", "no_color", "Disable colours (same as NO_COLOR).", type=bool),
)


def take_ui(values: dict[str, Any]) -> Ui:
    """Takes the values of COMMON out of those of a command line."""
    return Ui(
        values.pop("lang") or language_from_environment(),
        is_json=values.pop("as_json", False),
        is_quiet=values.pop("quiet"),
        is_verbose=values.pop("verbose"),
        has_color=not (values.pop("no_color") or os.environ.get("NO_COLOR")),
    )


def run_command(argv: list[str] | None, act: Callable[[list[str]], int]) -> int:
    """What `act` gives for these words; `argv` None: the process's own. Said is everything when it comes back.

    `act` may raise our errors, KeyboardInterrupt and OSError: each becomes a sentence, or a document where one was
    asked for, and its exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if argv is None:
            _prepare_streams()
            install_handlers()
        code = _act(words, act)
        sys.stdout.flush()
        if argv is None:
            _ignore_interrupts()
        return code
    except KeyboardInterrupt:
        return report_interrupt(argv)
    except BrokenPipeError:
        # The reader went away (`| head`). Python would complain once more when it flushes stdout at exit.
        _silence_stdout()
        return 128 + 13
    except OSError as error:
        code = _report_os_error(error, lang=_lang_of(words), is_json=_wants_json(words))
        try:
            sys.stdout.flush()
        except OSError:  # Python would complain at exit about what it does not take
            _silence_stdout()
        return code


def _act(words: list[str], act: Callable[[list[str]], int]) -> int:
    lang, is_json = _lang_of(words), _wants_json(words)
    try:
        _require_text(words)
        return act(words)
    except NpuenvError as error:
        report_error(error, lang=lang, is_json=is_json)
        if error.message.key != "cli.no-cwd":
            _tell_lost_folder(lang)
        return int(error.exit_code)
    except UnicodeDecodeError as error:
        wrong = BadInput(Message("cli.not-utf8", {"start": ascii(error.object[:20])}), Message("cli.not-utf8-hint"))
    except UnicodeEncodeError as error:  # a name from the environment; those of the command line are looked at before
        wrong = BadInput(Message("cli.not-text", {"word": ascii(error.object)[:200]}), Message("cli.not-text-hint"))
    report_error(wrong, lang=lang, is_json=is_json)
    return int(wrong.exit_code)


def report_interrupt(argv: list[str] | None) -> int:
    """Says that the run was interrupted, where there is still somebody to hear it; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        _ignore_interrupts()
    says = Message("cli.interrupted-kept" if "--fix" in words or words[:1] in _KEEPING else "cli.interrupted")
    with contextlib.suppress(OSError):  # the terminal may be what went away
        if _wants_json(words):
            report_error(Interrupted(says), lang=_lang_of(words), is_json=True)
        else:
            print(say(says, _lang_of(words)), file=sys.stderr, flush=True)
        sys.stdout.flush()
        return int(ExitCode.INTERRUPTED)
    _silence_stdout()
    return int(ExitCode.INTERRUPTED)


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


def _silence_stdout() -> None:
    """Sends what is still to be flushed into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _require_text(words: list[str]) -> None:
    """Raises BadInput for an argument that no command can mean.

    An empty one is mostly an unset shell variable, and as a path it would be the working folder. One that is not text
    in this locale could not be named in any file that is written.
    """
    for at, word in enumerate(words):
        if not word and at and words[at - 1].startswith("--") and "=" not in words[at - 1] and len(words[at - 1]) > 2:
            args = {"option": words[at - 1]}
            raise BadInput(Message("cli.empty-value", args), Message("cli.empty-value-hint", args))
        if not word:
            raise BadInput(Message("cli.empty-argument"), Message("cli.empty-argument-hint"))
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise BadInput(Message("cli.not-text", {"word": ascii(word)}), Message("cli.not-text-hint"))


def _wants_json(words: list[str]) -> bool:
    """Whether one document is asked for, under either of its names; read ahead of the parser for usage errors."""
    return "--json" in words or "json" in _values(words, "--format")


def _lang_of(words: list[str]) -> str:
    """The language, read ahead of the parser so that usage errors speak it too."""
    asked = [value for value in _values(words, "--lang") if value in LANGUAGES]
    return asked[0] if asked else language_from_environment()


def _values(words: list[str], option: str) -> list[str]:
    """What is given for an option in either of its spellings, in order."""
    return [
        word if before == option else word.partition("=")[2]
        for before, word in zip(["", *words], words)  # itertools.pairwise came with Python 3.10
        if before == option or word.startswith(f"{option}=")
    ]


def _tell_lost_folder(lang: str) -> None:
    """Why no relative path leads anywhere, where that is so: the system says only that there is no such file."""
    try:
        os.getcwd()
    except OSError:
        print(say(Message("cli.lost-folder"), lang), file=sys.stderr)


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
            _tell_lost_folder(lang)
            break
    return int(failed.exit_code)
