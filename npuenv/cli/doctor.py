"""`npuenv doctor`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from npuenv import app
from npuenv.cli.common import HelpfulCommand, Ui, common_options, show_conflict, with_options
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.terminal.options import DOCTOR, DOCTOR_OUTPUT, doctor_command
from npuenv.terminal.output import run_doctor

if TYPE_CHECKING:
    from npuenv.core.errors import ExitCode
    from npuenv.terminal.options import DoctorCommand


@click.command("doctor", cls=HelpfulCommand, context_settings={"allow_extra_args": True})
@partial(with_options, DOCTOR)
@click.option("--hosts", metavar="FILE|-", help="Check all nodes of an inventory over ssh.")
@click.option("--ssh-config", metavar="FILE", help="With --hosts: ssh configuration to use instead of your own.")
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="With --hosts: time limit per node (default: 60, 120, 600 or 1800, by level).",
)
@click.option(
    "--parallel", type=click.IntRange(1, 512), metavar="N", help="With --hosts: nodes to check at once (default: 32)."
)
@click.option(
    "--shared",
    metavar="DIR",
    help="With --hosts: check that DIR is the same folder on all nodes (writes and removes a small file there).",
)
@click.option(
    "--fix", "is_fixing", is_flag=True, help="Fix what can be fixed, after showing a plan and asking; then check again."
)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="With --fix: only show the plan.")
@click.option("-y", "--yes", is_flag=True, help="With --fix: do not prompt.")
@partial(with_options, DOCTOR_OUTPUT)
@common_options
def command(ui: Ui, **values: Any) -> int:
    """Find what prevents training on Ascend NPUs on this machine, with causes and the commands that fix them.

    Changes nothing, except with --fix, which prompts first. The report is complete even if torch cannot be imported.
    What cannot be checked is "unknown", never "ok".

    With --hosts, checks every node of an inventory over ssh, and what must be consistent between them. A line of the
    file looks like `node[01-64] user=root port=22 jump=bastion cards=8`; --save and --from then take a folder.
    """
    extra = click.get_current_context().args
    if extra:
        args = {"word": extra[0]}
        raise BadInput(Message("doctor.extra-argument", args), Message("doctor.extra-argument-hint", args))
    many = {name: values.pop(name) for name in ("hosts", "ssh_config", "limit_s", "parallel", "shared")}
    ui, asked = doctor_command(ui, values)
    if many["hosts"] is not None or (asked.capture is not None and asked.capture.is_dir()):
        from npuenv.cli import cluster_doctor

        # What to run next asks the nodes again: after a folder of captures, whatever their inventory is called.
        given = {**many, "hosts": many["hosts"] or "FILE"}
        words = [word for name, value in given.items() if value is not None for word in (_flag(name), str(value))]
        return int(cluster_doctor.run(ui, replace(asked, program=(*asked.program, *words)), many))
    alone = next((name for name, value in many.items() if value is not None), None)
    if alone is not None:
        args = {"option": _flag(alone)}
        raise BadInput(Message("cluster.only-with-hosts", args), Message("cluster.only-with-hosts-hint", args))
    try:
        if asked.is_fixing:
            from npuenv.cli.fix import run_fix

            return int(run_fix(ui, asked))
        return int(run(ui, asked))
    except app.ConflictError as error:
        show_conflict(ui, error)  # with --format and -o taken into account
        return int(error.exit_code)


def _flag(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def run(ui: Ui, asked: DoctorCommand, python: str | None = None) -> ExitCode:
    """Examines this machine or a capture and reports; `python`: the interpreter where none is named."""
    return run_doctor(ui, asked, partial(app.doctor, python=python, notify=partial(ui.say, err=True)))
