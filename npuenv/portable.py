"""The doctor of the single file: `npuenv doctor` for machines on which nothing is installed. Start from `main`.

It takes the same options, with argparse of the standard library, and gives the same findings and exit codes. What
needs more than the file holds is answered with what to do instead: see `LEFT_OUT`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn

from npuenv import __version__
from npuenv.app.entry import report_interrupt, run_to_code
from npuenv.app.options import FORMATS, FRAMEWORKS, HELP, Wish, form_of
from npuenv.app.ui import Ui
from npuenv.core.errors import BadInput
from npuenv.core.messages import LANGUAGES, Message, language_from_environment

# Each with the key of what to do instead: a capture can be held against a stack, but it is nothing that can be mended.
_INSTEAD = {"--stack": "stack", "--fix": "fix", "--hosts": "hosts"}
LEFT_OUT = tuple(_INSTEAD)
_FOLLOWERS = ("--dry-run", "-y", "--yes")  # have a meaning beside --fix alone
_ABOUT = """\
Say what is wrong on this machine for training on Ascend NPUs, why, and which command mends it.

Nothing on the machine is changed. The report is complete even where torch cannot be imported. What could not be looked
at is "unknown", never "fine".
"""
_END = f"""\
Left out in the single file: {", ".join(LEFT_OUT)}. They need npuenv itself; for --stack take a capture with
--save here, and use `npuenv doctor --from FILE --stack NAME` where npuenv is installed.

Exit codes: 0 fine, 1 problems found, 2 wrong usage or input, 3 could not tell, 130 interrupted.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and gives its exit code; `argv` None: the process's own."""
    try:
        return run_to_code(argv, _run)
    except KeyboardInterrupt:  # before the words were looked at, or a second one
        return report_interrupt(argv)


def _run(words: list[str]) -> int:
    _require_inside(words)
    try:
        asked = vars(_parser().parse_args(words))
    except SystemExit as end:  # --help and --version
        return int(end.code or 0)
    is_json = asked.pop("is_json")
    ui = Ui(
        asked.pop("lang") or language_from_environment(),
        is_quiet=asked.pop("is_quiet"),
        is_verbose=asked.pop("is_verbose"),
        has_color=not (asked.pop("no_color") or os.environ.get("NO_COLOR")),
    )
    form = asked.pop("form") or ("json" if is_json else form_of(asked["out"]))
    if is_json and form != "json":
        raise BadInput(Message("doctor.two-formats", {"format": form}), Message("doctor.two-formats-hint"))
    wish = Wish(**asked, format=form, program=("python3", _program()), can_fix=False)
    return _look(ui, wish)


def _look(ui: Ui, wish: Wish) -> int:
    from dataclasses import replace

    from npuenv.app.doctor import run_doctor
    from npuenv.app.examine import look

    ui = replace(ui, is_json=wish.format == "json" and wish.out is None)
    code = run_doctor(ui, wish, lambda host: look(wish, host))
    if wish.report is None:
        ui.say(Message("doctor.single-file", {"options": LEFT_OUT, "program": shlex.quote(_program())}), err=True)
    return int(code)


def _require_inside(words: list[str]) -> None:
    """Raises BadInput for an option that only the installed npuenv has."""
    for word in words:
        name = word.partition("=")[0]
        if name in (*LEFT_OUT, *_FOLLOWERS):
            args = {"option": name, "program": shlex.quote(_program())}
            hint = Message(f"doctor.left-out-{_INSTEAD.get(name, 'fix')}-hint", args)
            raise BadInput(Message("doctor.left-out", args), hint)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = Message("cli.usage-hint", {"command": self.prog})
        raise BadInput(Message("cli.usage", {"message": message}), hint)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"python3 {shlex.quote(_program())}",
        description=_ABOUT,
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--for", dest="framework", choices=FRAMEWORKS, help=HELP["for"])
    parser.add_argument("--level", type=int, choices=range(4), default=1, help=f"{HELP['level']} (default: 1)")
    parser.add_argument("--python", metavar="EXE", help=HELP["python"])
    parser.add_argument("--hash", dest="hashes", help=HELP["hash"], action="store_true")
    parser.add_argument("--save", type=Path, metavar="FILE", help=HELP["save"])
    parser.add_argument("--from", dest="capture", type=Path, metavar="FILE", help=HELP["from"])
    parser.add_argument("--from-report", dest="report", metavar="FILE|-", help=HELP["from-report"])
    parser.add_argument("--format", dest="form", choices=FORMATS, help=HELP["format"])
    parser.add_argument("-o", "--output", dest="out", metavar="FILE", help=HELP["output"])
    parser.add_argument("--lang", choices=LANGUAGES, help=HELP["lang"])
    parser.add_argument("--json", dest="is_json", help=HELP["json"], action="store_true")
    parser.add_argument("-q", "--quiet", dest="is_quiet", help=HELP["quiet"], action="store_true")
    parser.add_argument("-v", "--verbose", dest="is_verbose", help=HELP["verbose"], action="store_true")
    parser.add_argument("--no-color", help=HELP["no-color"], action="store_true")
    parser.add_argument("--version", action="version", version=f"npuenv, version {__version__}")
    return parser


def _program() -> str:
    """The name that this file has here."""
    return sys.argv[0] or "npuenv-doctor.pyz"
