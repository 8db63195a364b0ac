"""`npuenv up`: doctor, install, smoke-train, each stopping the next if it must not go on."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

import click

from npuenv import app
from npuenv.cli.common import HelpfulCommand, Ui, common_options, request_options
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from npuenv.resolve.types import Request


@click.command("up", cls=HelpfulCommand)
@request_options
@click.option("-y", "--yes", is_flag=True, help="Do not prompt before installing.")
@functools.partial(common_options, has_document=False)
def command(ui: Ui, *, request: Request, yes: bool) -> int:
    """Run doctor, install and smoke-train in one go.

    `npuenv up --for cpu --yes` works on any Linux machine, without cards.
    """
    from npuenv.cli import doctor, smoke_train  # each with its options, which the help of this one does not wait for
    from npuenv.cli.install import run_install
    from npuenv.terminal.options import DoctorCommand

    if not (request.stack or request.framework):
        raise BadInput(Message("cli.up-what"), Message("cli.up-what-hint"))
    _heading(ui, "doctor")
    stack = app.resolve(app.resolution.for_this_machine(request))
    # The Python that trains; before there is one, the running one, which is not judged for what is about to come.
    python = app.training.installed_python(stack.name) or sys.executable
    framework = stack.framework if stack.framework in app.examine.FRAMEWORKS else None
    judged = doctor.run(ui, DoctorCommand(framework=framework, is_installing=True), python)
    if judged is not ExitCode.FINE:
        ui.say(Message("cli.up-doctor-stops"), err=True)
        return int(judged)
    _heading(ui, "install")
    target = run_install(ui, request, app.InstallOptions(fill=yes, again=("npuenv", *sys.argv[1:])), yes=yes)
    _heading(ui, "smoke-train")
    return int(smoke_train.run(ui, app.training.installed_in(target)))


def _heading(ui: Ui, name: str) -> None:
    if not ui.is_quiet:
        click.echo(click.style(f"── {name} ", bold=True) if ui.has_color else f"-- {name}")
