"""`npuenv doctor --fix`."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from npuenv import app
from npuenv.app.fixes import FixProgress
from npuenv.cli.progress import StepProgress, confirm
from npuenv.core.messages import Message
from npuenv.report.fix import fix_document, outcome_lines, plan_lines
from npuenv.terminal.output import Spinner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from npuenv.app import FixResult
    from npuenv.cli.common import Ui
    from npuenv.core.errors import ExitCode
    from npuenv.install.executor import Event
    from npuenv.terminal.options import DoctorCommand


def run_fix(ui: Ui, command: DoctorCommand) -> ExitCode:
    """Fixes this machine, or with a dry run shows how it, or the machine of a capture, would be fixed."""
    options = app.FixOptions(command.is_dry_run, again=("npuenv", *sys.argv[1:]), lang=ui.lang)
    result = app.fix(command, options, ConsoleProgress(ui, yes=command.yes))
    report(ui, result)
    return result.exit_code


class ConsoleProgress(StepProgress, FixProgress):
    """Shows the plan, asks unless `yes`, and draws what runs."""

    @contextlib.contextmanager
    def examining(self) -> Iterator[Callable[[str], object] | None]:
        with Spinner(self._ui) as spinner:
            yield spinner.on_command

    def approve_fixes(self, planned: FixResult) -> None:
        lines = plan_lines(planned.outcome, self._ui.lang, planned.before.restore)
        if not self._yes:
            _print(lines, err=self._ui.is_json)
            confirm(self._ui)
        elif not (self._ui.is_json or self._ui.is_quiet):
            _print(lines)

    @contextlib.contextmanager
    def running(self) -> Iterator[Callable[[Event], object]]:
        with StepProgress(self._ui) as progress:
            yield progress.step

    def interrupted(self, undo: Path) -> None:
        self.note(Message("fix.undo", {"path": str(undo)}))


def report(ui: Ui, result: FixResult) -> None:
    """Prints the plan of a dry run, or what came of it."""
    outcome, before, is_dry_run = result.outcome, result.before, result.is_dry_run
    if ui.is_json:
        code, redact = int(result.exit_code), before.redact
        ui.print_json(fix_document(outcome, exit_code=code, is_dry_run=is_dry_run, lang=ui.lang, redact=redact))
        return
    if ui.is_quiet and not is_dry_run:
        _print(outcome_lines(replace(outcome, mended=(), session_file=None, undo=None), ui.lang))
        return
    if is_dry_run or not any(state in ("done", "failed") for state in outcome.states.values()):
        _print(plan_lines(outcome, ui.lang, before.restore))
    if not outcome.states:
        ui.say(Message("fix.nothing"))
    elif not is_dry_run and all(state == "already" for state in outcome.states.values()):
        ui.say(Message("fix.already"))
    if not is_dry_run:
        _print(outcome_lines(outcome, ui.lang))


def _print(lines: Iterable[str], *, err: bool = False) -> None:
    for line in lines:
        click.echo(line, err=err)
