"""How a run speaks: sentences, one document, or an error."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.errors import ExitCode, NpuenvError
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

_PIPE_WIDTH = 10_000  # columns


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
        print_document(document)

    def say(self, message: Message, *, err: bool = False) -> None:
        """One sentence for a person; silent with --json (stdout) and --quiet."""
        if not self.is_quiet and (err or not self.is_json):
            print(say(message, self.lang), file=sys.stderr if err else sys.stdout, flush=True)


class Interrupted(NpuenvError):
    """Ctrl-C, or a signal that is treated like it."""

    kind = "interrupted"
    exit_code = ExitCode.INTERRUPTED


def print_document(document: Mapping[str, object]) -> None:
    """A JSON document on stdout, in characters that its encoding has."""
    is_ascii = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    print(json.dumps(document, ensure_ascii=is_ascii, indent=2), flush=True)


def report_error(error: NpuenvError, *, lang: str, is_json: bool) -> None:
    """Says an error: one sentence and one hint on stderr, or the `npuenv.error/1` document on stdout."""
    if is_json:
        hint = say(error.hint, lang) if error.hint else None
        body = {"kind": error.kind, "message": say(error.message, lang), "hint": hint}
        document = {"schema": "npuenv.error/1", "exit": int(error.exit_code), "error": body}
        print_document(document)
        return
    print(say(Message("cli.error", {"message": error.message}), lang), file=sys.stderr, flush=True)
    if error.hint:
        print(say(Message("cli.hint", {"hint": error.hint}), lang), file=sys.stderr, flush=True)
