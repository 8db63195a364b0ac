"""`doctor --fix`: what the doctor found is fixed where that can be done, and a script is left that undoes it: `fix`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.app import checkup
from npuenv.app.examine import DoctorResult, recording, require_python
from npuenv.app.progress import SILENT, Progress
from npuenv.checks import Status
from npuenv.core.errors import ExitCode, StepFailed
from npuenv.core.messages import Message, say
from npuenv.core.plan import Plan
from npuenv.facts.conditions import unmet
from npuenv.facts.pip import UvSettings
from npuenv.host.local import LocalHost, sourced
from npuenv.host.recorded import load_capture
from npuenv.host.writing import cannot_save, write_whole
from npuenv.install.environments import data_folder
from npuenv.install.executor import Event, ExecutionContext, execute
from npuenv.install.fix_plan import SESSION_STEP, FixContext, FixPlan, plan_fixes, undo_script
from npuenv.report.doctor import in_order
from npuenv.report.fix import FixOutcome

if TYPE_CHECKING:
    from npuenv.app.examine import DoctorOptions
    from npuenv.checks import Finding
    from npuenv.core.plan import Step
    from npuenv.host import Host

Examine = Callable[["Host"], DoctorResult]
_FIXABLE = (Status.FAIL, Status.WARN)


@dataclass(frozen=True, slots=True)
class FixOptions:
    """How findings are fixed."""

    is_dry_run: bool = False  # only plan; always so for a capture
    again: tuple[str, ...] = ("npuenv", "doctor", "--fix")  # the command that resumes an interrupted step
    lang: str = "en"  # of the script that undoes it


@dataclass(frozen=True, slots=True)
class FixResult:
    """What was found, what is done about it, and what came of that."""

    before: DoctorResult
    outcome: FixOutcome
    exit_code: ExitCode
    is_dry_run: bool


def fix(doctor: DoctorOptions, options: FixOptions | None = None, progress: Progress = SILENT) -> FixResult:
    """Examines this machine, fixes what can be fixed, and examines it again; or plans it, as for a capture.

    Raises BadInput for options that contradict each other, and as `doctor`.
    """
    options = options or FixOptions()
    doctor.validate()
    require_python(doctor)
    python = checkup.active_python(doctor, progress.note)

    def examine(host: Host) -> DoctorResult:
        with progress.examining() as on_command:
            return checkup.doctor(doctor, recording(host, on_command), python=python)

    host = LocalHost()
    if doctor.capture is not None:
        before = checkup.doctor(doctor, load_capture(doctor.capture))
        return fix_findings(before, examine, replace(options, is_dry_run=True), progress, host)
    return fix_findings(examine(host), examine, options, progress, host)


def fix_findings(
    before: DoctorResult, examine: Examine, options: FixOptions, progress: Progress, host: Host
) -> FixResult:
    """Fixes what was found `before` on `host`, and has it examined again. One step does not keep the others from it."""
    run = _FixRun(host, options, progress)
    found = [finding for finding in in_order(before.findings) if finding.status in _FIXABLE]
    fixes = plan_fixes(found, run.place, before.restore)
    todo = [step for step in fixes.plan.steps if not step.done_when or unmet(step, host)]
    states = {step.id: "planned" if step in todo else "already" for step in fixes.plan.steps}
    session_file = run.place.session_file if fixes.session else None
    planned = FixOutcome(
        fixes, states, left=tuple(each.check for each in found), session_file=None if todo else session_file
    )
    result = FixResult(before, planned, before.exit_code, options.is_dry_run)
    if options.is_dry_run or not todo:
        return result
    progress.planned(result)
    progress.confirm()
    try:
        reasons = run.execute(fixes, todo)
    except KeyboardInterrupt:
        progress.note(Message("fix.undo", {"path": str(run.undo)}))
        raise
    states = {**states, **{step.id: "failed" if step.id in reasons else "done" for step in todo}}
    progress.note(Message("fix.checking"))
    after = examine(host)
    in_shell = sourced(LocalHost(), session_file) if session_file is not None else None
    outcome = _compared(planned, found, before, after, examine(in_shell) if in_shell is not None else None)
    outcome = replace(outcome, states=states, reasons=reasons, undo=str(run.undo), session_file=session_file)
    code = after.exit_code if after.exit_code is not ExitCode.FINE or not reasons else ExitCode.PROBLEMS
    return replace(result, outcome=outcome, exit_code=code)


def _compared(
    planned: FixOutcome, found: list[Finding], before: DoctorResult, after: DoctorResult, in_shell: DoctorResult | None
) -> FixOutcome:
    """What is well now, what will be in the user's shell, what is not, and what fails that did not."""
    now = {finding.check: finding.status for finding in after.findings}
    then = {finding.check: finding.status for finding in in_shell.findings} if in_shell else {}
    well = (Status.OK, Status.SKIP)
    checks = [each.check for each in found]
    mended = tuple(check for check in checks if now[check] in well)
    later = tuple(check for check in checks if check not in mended and then.get(check) in well)
    left = tuple(check for check in checks if check not in (*mended, *later))
    failed = {finding.check for finding in before.findings if finding.status is Status.FAIL}
    new = tuple(check for check, status in now.items() if status is Status.FAIL and check not in failed)
    return replace(planned, mended=mended, in_shell=later, left=left, new=new)


class _FixRun:
    """One run: a folder of its own below the user's data folder, made when it is needed."""

    def __init__(self, host: Host, options: FixOptions, progress: Progress) -> None:
        self._host, self._options, self._progress = host, options, progress
        data = Path(data_folder(host.environ()))
        homes = data / "fixes"
        taken = [int(path.name) for path in homes.glob("*") if path.name.isdigit()] if homes.is_dir() else []
        self._root = homes / str(max(taken, default=0) + 1)
        file = data / "session.sh"
        self._before = file.read_text(encoding="utf-8") if file.is_file() else ""
        backup = str(self._root / "session.before.sh")
        self.place = FixContext(str(file), self._before, backup, is_root=os.geteuid() == 0)

    @property
    def undo(self) -> Path:
        """The script that undoes the run."""
        return self._root / "undo.sh"

    def execute(self, fixes: FixPlan, todo: list[Step]) -> dict[str, Message]:
        """Runs the steps; why each one failed that did.

        The script that undoes them names each step before it begins, so that an interruption leaves a true one.
        """
        reasons: dict[str, Message] = {}
        with self._progress.executing():
            for number, step in enumerate(todo, 1):
                self._write_undo(fixes, [each.id for each in todo[:number]])

                def tell_numbered(event: Event, number: int = number) -> None:
                    self._progress.step(replace(event, number=number, total=len(todo)))

                try:
                    execute(Plan((replace(step, after=()),)), self._session(tell_numbered))
                except StepFailed as error:
                    reasons[step.id] = error.message
        return reasons

    def _session(self, tell: Callable[[Event], None]) -> ExecutionContext:
        environ = self._host.environ()
        # The user's own settings of pip and uv, which steps do not inherit otherwise; they may hold passwords.
        own = {name: value for name, value in environ.items() if name.startswith(("PIP_", "UV_"))}
        return ExecutionContext(self._host, str(self._root), UvSettings(secret=own), tell, self._options.again)

    def _write_undo(self, fixes: FixPlan, begun: list[str]) -> None:
        try:
            if self._before and SESSION_STEP in begun:
                write_whole(self.place.backup, self._before)
            never, head = (say(Message(f"fix.{name}"), self._options.lang) for name in ("plan-once", "undo-head"))
            write_whole(str(self.undo), undo_script(fixes, begun, head=head, never=never), 0o755)
        except OSError as error:
            raise cannot_save(self.undo, error) from error
