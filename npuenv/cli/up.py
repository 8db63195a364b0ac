"""`npuenv up`: doctor, install, smoke-train, each stopping the next if it must not go on."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

import click

from npuenv.cli.common import Ui, common_options, request_options
from npuenv.cli.help import Command
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from npuenv.resolve.types import Request


@click.command("up", cls=Command)
@request_options
@click.option("-y", "--yes", is_flag=True, help="Do not prompt before installing.")
@functools.partial(common_options, has_document=False)
def command(ui: Ui, *, request: Request, yes: bool) -> int:
    """Run doctor, install and smoke-train in one go.

    `npuenv up --for cpu --yes` works on any Linux machine, without cards.
    """
    from npuenv.app.options import FRAMEWORKS
    from npuenv.cli.doctor import run_doctor
    from npuenv.cli.installing import How, run_install
    from npuenv.cli.machine import for_this_machine, resolve_or_stop
    from npuenv.cli.smoke_train import run_smoke
    from npuenv.host.local import LocalHost
    from npuenv.install.active import environment_at
    from npuenv.install.locations import default_environment

    if not (request.stack or request.framework):
        raise BadInput(Message("cli.up-what"), Message("cli.up-what-hint"))
    _heading(ui, "doctor")
    stack = resolve_or_stop(ui, for_this_machine(request))
    environment = default_environment(stack.name) / "bin" / "python"
    # The Python that trains; before there is one, the running one, which is not judged for what is about to come.
    python = str(environment) if environment.exists() else sys.executable
    judged = run_doctor(ui, framework=stack.framework if stack.framework in FRAMEWORKS else None, python=python)
    if judged is not ExitCode.FINE:
        ui.say(Message("cli.up-doctor-stops"), err=True)
        return int(judged)
    _heading(ui, "install")
    target = run_install(ui, request, yes=yes, how=How(fill=yes))
    _heading(ui, "smoke-train")
    return int(run_smoke(ui, environment_at(LocalHost(), str(target), "installed"), out=None, settings={}))


def _heading(ui: Ui, name: str) -> None:
    if not ui.is_quiet:
        click.echo(click.style(f"── {name} ", bold=True) if ui.has_color else f"-- {name}")
