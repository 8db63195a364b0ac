"""The doctor of the single file: `npuenv doctor` for machines on which nothing is installed.

It takes the same options, with argparse of the standard library, and gives the same findings and exit codes. What
needs more than the file holds is answered with what to do instead: see `LEFT_OUT`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import NoReturn

from npuenv import __version__
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.terminal.options import DOCTOR, DOCTOR_OUTPUT, doctor_command
from npuenv.terminal.run import COMMON, Option, report_interrupt, run_command, take_ui

# Each with the key of what to do instead: a capture can be judged against a stack, but it cannot be fixed.
_INSTEAD = {"--stack": "stack", "--fix": "fix", "--hosts": "hosts"}
LEFT_OUT = tuple(_INSTEAD)
_FOLLOWERS = ("--dry-run", "-y", "--yes")  # have a meaning beside --fix alone
_ABOUT = """\
Find what prevents training on Ascend NPUs on this machine, with causes and the commands that fix them.

Changes nothing. The report is complete even if torch cannot be imported. What cannot be checked is "unknown", never
"ok".
"""
_END = f"""\
Left out in the single file: {", ".join(LEFT_OUT)}. They need npuenv itself; for --stack take a capture with
--save here, and use `npuenv doctor --from FILE --stack NAME` where npuenv is installed.

Exit codes: 0 success, 1 problems found, 2 invalid usage or input, 3 unknown, 130 interrupted.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and gives its exit code; `argv` None: the process's own."""
    try:
        return run_command(argv, _run)
    except KeyboardInterrupt:  # before the words were looked at, or a second one
        return report_interrupt(argv)


def _run(words: list[str]) -> int:
    from npuenv.app.examine import examine
    from npuenv.terminal.output import run_doctor

    _require_inside(words)
    try:
        values = vars(_parser().parse_args(words))
    except SystemExit as end:  # --help and --version
        return int(end.code or 0)
    ui, command = doctor_command(take_ui(values), values, program=("python3", _program()), can_fix=False)
    code = run_doctor(ui, command, examine)
    if command.report is None:
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
    for option in (*DOCTOR, *DOCTOR_OUTPUT, *COMMON):
        if option.is_portable:
            _add(parser, option)
    parser.add_argument("--version", action="version", version=f"npuenv, version {__version__}")
    return parser


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
    flags = option.flags.split()
    if option.type is bool:
        parser.add_argument(*flags, dest=option.name, help=option.help, action="store_true")
        return
    text = option.help if option.default is None else f"{option.help} (default: {option.default})"
    parser.add_argument(
        *flags,
        dest=option.name,
        help=text,
        type=option.type,
        metavar=option.metavar,
        choices=option.choices,
        default=option.default,
    )


def _program() -> str:
    """The name that this file has here."""
    return sys.argv[0] or "npuenv-doctor.pyz"
