"""`npuenv up`: doctor, install, smoke-train, each stopping the next if it must not go on."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

import click

from npuenv import app
from npuenv.app.examine import FRAMEWORKS
from npuenv.app.job import InstallOptions
from npuenv.cli import doctor, smoke_train
from npuenv.cli.common import Ui, common_options, request_options
from npuenv.cli.help import HelpfulCommand
from npuenv.cli.install import run_install
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message
from npuenv.host.local import LocalHost
from npuenv.install.active import environment_at
from npuenv.install.locations import default_environment
from npuenv.terminal.options import DoctorCommand

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
    if not (request.stack or request.framework):
        raise BadInput(Message("cli.up-what"), Message("cli.up-what-hint"))
    _heading(ui, "doctor")
    stack = app.resolve(app.resolution.for_this_machine(request))
    environment = default_environment(stack.name) / "bin" / "python"
    # The Python that trains; before there is one, the running one, which is not judged for what is about to come.
    python = str(environment) if environment.exists() else sys.executable
    framework = stack.framework if stack.framework in FRAMEWORKS else None
    judged = doctor.run(ui, DoctorCommand(framework=framework, is_installing=True), python)
    if judged is not ExitCode.FINE:
        ui.say(Message("cli.up-doctor-stops"), err=True)
        return int(judged)
    _heading(ui, "install")
    target = run_install(ui, request, InstallOptions(fill=yes, again=("npuenv", *sys.argv[1:])), yes=yes)
    _heading(ui, "smoke-train")
    return int(smoke_train.run(ui, environment_at(LocalHost(), str(target), "installed")))


def _heading(ui: Ui, name: str) -> None:
    if not ui.is_quiet:
        click.echo(click.style(f"── {name} ", bold=True) if ui.has_color else f"-- {name}")
