"""`npuenv doctor --fix`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from npuenv import app
from npuenv.cli.progress import StepProgress
from npuenv.core.messages import Message
from npuenv.report.fix import fix_document, outcome_lines, plan_lines
from npuenv.report.lines import for_capture

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npuenv.app import FixResult
    from npuenv.cli.common import Ui
    from npuenv.core.errors import ExitCode
    from npuenv.terminal.options import DoctorCommand


def run_fix(ui: Ui, command: DoctorCommand) -> ExitCode:
    """Fixes this machine, or with a dry run shows how it, or the machine of a capture, would be fixed."""
    options = app.FixOptions(command.is_dry_run, again=("npuenv", *sys.argv[1:]), lang=ui.lang)
    result = app.fix(command, options, ConsoleProgress(ui, yes=command.yes))
    report(ui, result, str(command.capture or ""))
    return result.exit_code


class ConsoleProgress(StepProgress):
    """Shows the plan: always where there is a question about it."""

    def planned(self, plan: FixResult) -> None:
        if not self._yes or not (self._ui.is_json or self._ui.is_quiet):
            _print(plan_lines(plan.outcome, self._ui.lang, plan.before.restore), err=self._ui.is_json)


def report(ui: Ui, result: FixResult, capture: str = "") -> None:
    """Prints the plan of a dry run (of a `capture`, if one is named), or what came of it."""
    outcome, before, is_dry_run = result.outcome, result.before, result.is_dry_run
    if ui.is_json:
        code, redact = int(result.exit_code), before.redact
        ui.print_json(fix_document(outcome, exit_code=code, is_dry_run=is_dry_run, lang=ui.lang, redact=redact))
        return
    if ui.is_quiet and not is_dry_run:
        _print(outcome_lines(replace(outcome, mended=(), session_file=None, undo=None), ui.lang))
        return
    if is_dry_run or not any(state in ("done", "failed") for state in outcome.states.values()):
        _print(for_capture(line, capture) for line in plan_lines(outcome, ui.lang, before.restore))
    if not outcome.states:
        ui.say(Message("fix.nothing"))
    elif not is_dry_run and all(state == "already" for state in outcome.states.values()):
        ui.say(Message("fix.already"))
    if not is_dry_run:
        _print(outcome_lines(outcome, ui.lang))


def _print(lines: Iterable[str], *, err: bool = False) -> None:
    for line in lines:
        click.echo(line, err=err)
