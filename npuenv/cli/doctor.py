"""`npuenv doctor`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from npuenv import app
from npuenv.cli.common import Ui, common_options, show_conflict, with_options
from npuenv.cli.help import Command
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.terminal.options import DOCTOR, DOCTOR_OUTPUT, doctor_command
from npuenv.terminal.output import run_doctor

if TYPE_CHECKING:
    from npuenv.core.errors import ExitCode
    from npuenv.terminal.options import DoctorCommand


@click.command("doctor", cls=Command)
@partial(with_options, DOCTOR)
@click.option("--hosts", metavar="FILE|-", help="Look at all nodes of an inventory, over ssh.")
@click.option("--ssh-config", metavar="FILE", help="With --hosts: an ssh configuration in place of your own.")
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="With --hosts: how long a node may take (default: 60, 120, 600 or 1800, by level).",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 512),
    metavar="N",
    help="With --hosts: how many nodes are asked at once (default: 32).",
)
@click.option(
    "--shared",
    metavar="DIR",
    help="With --hosts: try whether DIR is the same folder on all nodes (a small file is written there and removed).",
)
@click.option("--fix", "is_fixing", is_flag=True, help="Show what can be mended, ask, do it, and look again.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="With --fix: show the plan only.")
@click.option("-y", "--yes", is_flag=True, help="With --fix: do not ask.")
@partial(with_options, DOCTOR_OUTPUT)
@common_options
def command(ui: Ui, **values: Any) -> int:
    """Say what is wrong on this machine for training on Ascend NPUs, why, and which command mends it.

    Nothing on the machine is changed, except with --fix, which asks first. The report is complete even where torch
    cannot be imported. What could not be looked at is "unknown", never "fine".

    With --hosts it looks at every node of an inventory over the system's ssh, and at what must agree between them. A
    line of the file is like `node[01-64] user=root port=22 jump=bastion cards=8`; --save and --from then take a folder.
    """
    many = {name: values.pop(name) for name in ("hosts", "ssh_config", "limit_s", "parallel", "shared")}
    ui, asked = doctor_command(ui, values)
    if many["hosts"] is not None or (asked.capture is not None and asked.capture.is_dir()):
        from npuenv.cli import cluster_doctor

        return int(cluster_doctor.run(ui, asked, cluster_doctor.ClusterOptions(**many)))
    alone = next((name for name, value in many.items() if value is not None), None)
    if alone is not None:
        args = {"option": f"--{alone.removesuffix('_s').replace('_', '-')}"}
        raise BadInput(Message("cluster.only-with-hosts", args), Message("cluster.only-with-hosts-hint", args))
    try:
        if asked.is_fixing:
            from npuenv.cli.fix import run_fix

            return int(run_fix(ui, asked))
        return int(run(ui, asked))
    except app.ConflictError as error:
        show_conflict(ui, error)  # with --format and -o taken into account
        return int(error.exit_code)


def run(ui: Ui, asked: DoctorCommand, python: str | None = None) -> ExitCode:
    """Examines this machine or a capture and reports; `python`: the interpreter where none is named."""
    return run_doctor(ui, asked, partial(app.doctor, python=python, notify=partial(ui.say, err=True)))
