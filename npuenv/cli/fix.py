"""`npuenv doctor --fix`: shows what can be mended, asks, does it, looks again, and leaves a script that undoes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npuenv import app
from npuenv.app.examine import DoctorResult, recording, require_python
from npuenv.checks import Status
from npuenv.cli.progress import StepProgress
from npuenv.cli.prompt import confirm
from npuenv.core.errors import BadInput, ExitCode, StepFailed
from npuenv.core.messages import Message, say
from npuenv.core.plan import Plan
from npuenv.facts.pip import UvSettings
from npuenv.host.local import LocalHost
from npuenv.host.recorded import load_capture
from npuenv.host.sourced_env import sourced
from npuenv.host.writing import write_whole
from npuenv.install.executor import Event, Session, execute, unmet
from npuenv.install.locations import data_folder
from npuenv.install.plan.fix import SESSION_STEP, FixContext, FixPlan, plan_fixes, undo_script
from npuenv.report.doctor import in_order
from npuenv.report.fix import Mended, fix_document, outcome_lines, plan_lines
from npuenv.terminal.spinner import Spinner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npuenv.checks import Finding
    from npuenv.cli.common import Ui
    from npuenv.core.plan import Step
    from npuenv.host.base import Host
    from npuenv.terminal.options import DoctorCommand

Look = Callable[["Host"], DoctorResult]
_ILL = (Status.FAIL, Status.WARN)


def run_fix(ui: Ui, command: DoctorCommand) -> ExitCode:
    """Mends this machine, or with a dry run shows how it, or the machine of a capture, would be mended."""
    command.validate()
    require_python(command)
    python = app.checkup.active_python(command, partial(ui.say, err=True))

    def look(host: Host) -> DoctorResult:
        with Spinner(ui) as spinner:
            return app.doctor(command, recording(host, spinner.on_command), python=python)

    if command.capture is not None:
        judged = app.doctor(command, load_capture(command.capture))
        return mend(ui, LocalHost(), look, judged, is_dry_run=True, yes=False)
    return mend(ui, LocalHost(), look, look(LocalHost()), is_dry_run=command.is_dry_run, yes=command.yes)


def mend(ui: Ui, host: Host, look: Look, judged: DoctorResult, *, is_dry_run: bool, yes: bool) -> ExitCode:
    """Plans the cures of what was found, asks, runs them on `host`, and has it looked at again.

    Raises BadInput where there is nobody to ask, Stop on no.
    """
    work = _Work(host)
    ills = [finding for finding in in_order(judged.findings) if finding.status in _ILL]
    cures = plan_fixes(ills, work.place, judged.restore)
    todo = work.unmet(cures)
    states = {step.id: "planned" if step in todo else "already" for step in cures.plan.steps}
    if is_dry_run or not todo:
        session = None if todo else work.session_of(cures)
        result = Mended(states, left=tuple(ill.check for ill in ills), session_file=session)
        _tell(ui, judged, cures, result, judged.exit_code, is_dry_run=is_dry_run)
        return judged.exit_code
    if not yes:
        _ask(ui, cures, states, judged.restore)
    elif not (ui.is_json or ui.is_quiet):
        _print(plan_lines(cures, ui.lang, states, judged.restore))
    reasons = _run(ui, work, cures, todo, states)
    ui.say(Message("fix.checking"), err=True)
    after = look(host)
    result = _compared(ills, judged, after, _in_shell(cures, work, look))
    result = replace(result, states=states, reasons=reasons, undo=str(work.undo), session_file=work.session_of(cures))
    code = after.exit_code if after.exit_code is not ExitCode.FINE or not reasons else ExitCode.PROBLEMS
    _tell(ui, judged, cures, result, code, is_dry_run=False)
    return code


def _run(ui: Ui, work: _Work, cures: FixPlan, todo: list[Step], states: dict[str, str]) -> dict[str, Message]:
    """Runs the steps; an interruption still says how to take back what was begun."""
    try:
        return work.run(ui, cures, todo, states)
    except KeyboardInterrupt:
        ui.say(Message("fix.undo", {"path": str(work.undo)}), err=True)
        raise


class _Work:
    """Where cures are run: a folder of its own for each run below the user's data folder, made when it is needed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._data = Path(data_folder(host.environ()))
        homes = self._data / "fixes"
        taken = [int(path.name) for path in homes.glob("*") if path.name.isdigit()] if homes.is_dir() else []
        self._root = homes / str(max(taken, default=0) + 1)
        file = self._data / "session.sh"
        self._before = file.read_text(encoding="utf-8") if file.is_file() else ""
        backup = str(self._root / "session.before.sh")
        self.place = FixContext(str(file), self._before, backup, is_root=os.geteuid() == 0)

    @property
    def undo(self) -> Path:
        return self._root / "undo.sh"

    def unmet(self, cures: FixPlan) -> list[Step]:
        """The steps that are not done already."""
        return [step for step in cures.plan.steps if not step.done_when or unmet(step, self._host)]

    def session_of(self, cures: FixPlan) -> str | None:
        """The file for the user's shell, where there is something in it."""
        return self.place.session_file if cures.session else None

    def run(self, ui: Ui, cures: FixPlan, todo: list[Step], states: dict[str, str]) -> dict[str, Message]:
        """Runs the steps and notes their states; why each one failed that did. One does not keep the others from it.

        The script that undoes them names each step before it begins, so that an interruption leaves a true one.
        """
        reasons: dict[str, Message] = {}
        begun: list[str] = []
        with StepProgress(ui) as progress:
            for number, step in enumerate(todo, 1):
                begun.append(step.id)
                self._write_undo(cures, begun, ui.lang)

                def tell(event: Event, number: int = number) -> None:
                    progress.step(replace(event, number=number, total=len(todo)))

                try:
                    execute(Plan((replace(step, after=()),)), self._session(tell))
                    states[step.id] = "done"
                except StepFailed as error:
                    states[step.id], reasons[step.id] = "failed", error.message
        return reasons

    def _session(self, tell: Callable[[Event], None]) -> Session:
        environ = self._host.environ()
        # The user's own settings of pip and uv, which steps do not inherit otherwise; they may hold passwords.
        own = {name: value for name, value in environ.items() if name.startswith(("PIP_", "UV_"))}
        return Session(self._host, str(self._root), UvSettings(secret=own), tell, ("npuenv", *sys.argv[1:]))

    def _write_undo(self, cures: FixPlan, begun: list[str], lang: str) -> None:
        try:
            if self._before and SESSION_STEP in begun:
                write_whole(self.place.backup, self._before)
            never, head = (say(Message(f"fix.{name}"), lang) for name in ("plan-once", "undo-head"))
            write_whole(str(self.undo), undo_script(cures, begun, head=head, never=never), 0o755)
        except OSError as error:
            args = {"path": str(self.undo), "reason": error.strerror or str(error)}
            raise BadInput(Message("cli.cannot-save", args), Message("cli.cannot-save-hint")) from error


def _in_shell(cures: FixPlan, work: _Work, look: Look) -> DoctorResult | None:
    """The machine as a shell sees it that has read the session file; None where there is none."""
    file = work.session_of(cures)
    if file is None:
        return None

    host = sourced(LocalHost(), file)
    return look(host) if host is not None else None


def _compared(ills: list[Finding], before: DoctorResult, after: DoctorResult, in_shell: DoctorResult | None) -> Mended:
    """What is well now, what will be in the user's shell, what is not, and what fails that did not."""
    now = {finding.check: finding.status for finding in after.findings}
    then = {finding.check: finding.status for finding in in_shell.findings} if in_shell else {}
    well = (Status.OK, Status.SKIP)
    mended = tuple(ill.check for ill in ills if now[ill.check] in well)
    later = tuple(ill.check for ill in ills if ill.check not in mended and then.get(ill.check) in well)
    left = tuple(ill.check for ill in ills if ill.check not in (*mended, *later))
    failed = {finding.check for finding in before.findings if finding.status is Status.FAIL}
    new = tuple(check for check, status in now.items() if status is Status.FAIL and check not in failed)
    return Mended(mended=mended, in_shell=later, left=left, new=new)


def _ask(ui: Ui, cures: FixPlan, states: Mapping[str, str], restore: Callable[[str], str]) -> None:
    _print(plan_lines(cures, ui.lang, states, restore), err=ui.is_json)
    confirm(ui)


def _tell(ui: Ui, judged: DoctorResult, cures: FixPlan, result: Mended, code: ExitCode, *, is_dry_run: bool) -> None:
    if ui.is_json:
        ui.print_json(
            fix_document(cures, result, exit_code=int(code), is_dry_run=is_dry_run, lang=ui.lang, redact=judged.redact)
        )
        return
    if ui.is_quiet and not is_dry_run:
        _print(outcome_lines(replace(result, mended=(), session_file=None, undo=None), ui.lang))
        return
    if is_dry_run or not any(state in ("done", "failed") for state in result.states.values()):
        _print(plan_lines(cures, ui.lang, result.states, judged.restore))
    if not cures.plan.steps:
        ui.say(Message("fix.nothing"))
    elif not is_dry_run and all(state == "already" for state in result.states.values()):
        ui.say(Message("fix.already"))
    if not is_dry_run:
        _print(outcome_lines(result, ui.lang))


def _print(lines: Iterable[str], *, err: bool = False) -> None:
    for line in lines:
        click.echo(line, err=err)
