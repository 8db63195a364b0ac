"""What is shown of an installation before it begins, and the question whether to go on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, say
from npuenv.core.messages.visible import clean

if TYPE_CHECKING:
    from npuenv.app.job import InstallJob
    from npuenv.cli.common import Ui
    from npuenv.core.plan import Plan
    from npuenv.install.environments import PackageChange


def approve(ui: Ui, job: InstallJob, changes: tuple[PackageChange, ...], *, yes: bool) -> None:
    """Shows what of the plan is not done yet and asks, where there is something to agree to.

    Of an update the changes say enough; -v shows its plan too. Raises BadInput where nobody can be asked, Stop on no.
    """
    if changes:
        show_changes(ui, job, changes)
    is_asking = not yes and job.needs_consent()
    if is_asking and (ui.is_verbose or not changes):
        list_plan(ui, job, job.part if changes else job.unfinished)
    else:
        tell_notes(ui, job)
    if is_asking:
        confirm(ui)


def show_changes(ui: Ui, job: InstallJob, changes: tuple[PackageChange, ...]) -> None:
    """The packages that an update changes."""
    args = {"stack": job.request.stack.name, "count": len(changes), "path": job.target.root}
    ui.say(Message("install.changes-head", args), err=ui.is_json)
    for each in changes if not ui.is_quiet else ():
        click.echo(clean(f"  {each.name}: {each.before or '-'} -> {each.after or '-'}"), err=ui.is_json)


def confirm(ui: Ui, *, is_yes_usual: bool = True) -> None:
    """Asks whether to go on; Enter alone means what is usual. Raises BadInput where nobody can be asked, Stop on no."""
    from npuenv.cli.common import Stop

    if ui.is_json or not sys.stdin.isatty():
        raise BadInput(Message("cli.cannot-ask"), Message("cli.cannot-ask-hint"))
    if not click.confirm(say(Message("cli.go-on"), ui.lang), default=is_yes_usual):
        ui.say(Message("cli.declined"), err=True)
        raise Stop(ExitCode.INTERRUPTED)


def list_plan(ui: Ui, job: InstallJob, part: Plan) -> None:
    """A part of the plan as text, with pip's settings in force, and what it leaves to the user."""
    from npuenv.report.plan import list_plan as as_text

    stack, settings = job.request.stack, job.request.resolver.settings
    args = {"stack": stack.name, "platform": stack.platform.tag, "path": job.target.root}
    ui.say(Message("cli.plan-head", args), err=ui.is_json)
    if not ui.is_verbose:  # with -v they were said when the settings were read
        for warning in settings.warnings:
            ui.say(warning, err=True)
    click.echo(as_text(part, settings, lang=ui.lang), nl=False, err=ui.is_json)
    tell_notes(ui, job)


def tell_notes(ui: Ui, job: InstallJob) -> None:
    """Says what the plan cannot do itself: system packages without consent, parts of CANN that nobody supplied."""
    for note in job.notes:
        ui.say(note, err=True)
