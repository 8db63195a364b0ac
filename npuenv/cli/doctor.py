"""`npuenv doctor`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv.cli.common import Ui, common_options
from npuenv.cli.judging import judge
from npuenv.errors import BadInput
from npuenv.front import doctor as front
from npuenv.front.wish import FORMATS, FRAMEWORKS, HELP, Wish, form_of, require_sense
from npuenv.messages import Message

if TYPE_CHECKING:
    from npuenv.errors import ExitCode


@click.command("doctor")
@click.option("--for", "framework", type=click.Choice(FRAMEWORKS), help=HELP["for"])
@click.option("--stack", metavar="NAME", help="Judge against the versions and settings of a published stack.")
@click.option(
    "--level",
    type=click.IntRange(0, 3),
    default=1,
    show_default=True,
    help=HELP["level"],
)
@click.option("--python", metavar="EXE", help=HELP["python"])
@click.option("--hash", "hashes", is_flag=True, help=HELP["hash"])
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help=HELP["save"])
@click.option("--from", "capture", type=click.Path(path_type=Path), metavar="FILE", help=HELP["from"])
@click.option("--from-report", "report", metavar="FILE|-", help=HELP["from-report"])
@click.option("--fix", "is_fixing", is_flag=True, help="Show what can be mended, ask, do it, and look again.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="With --fix: show the plan only.")
@click.option("-y", "--yes", is_flag=True, help="With --fix: do not ask.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help=HELP["format"],
)
@click.option("-o", "--output", "out", metavar="FILE", help=HELP["output"])
@common_options
def command(ui: Ui, *, form: str | None, **options: Any) -> int:
    """Say what is wrong on this machine for training on Ascend NPUs, why, and which command mends it.

    Nothing on the machine is changed, except with --fix, which asks first. The report is complete even where torch
    cannot be imported. What could not be looked at is "unknown", never "fine".
    """
    is_json = ui.is_json
    wish = Wish(format=form or ("json" if is_json else form_of(options["out"])), **options)
    ui = replace(ui, is_json=wish.format == "json" and wish.out is None)
    if is_json and wish.format != "json":
        raise BadInput(Message("doctor.two-formats", {"format": wish.format}), Message("doctor.two-formats-hint"))
    if wish.is_fixing:
        from npuenv.cli.fix import run_fix

        require_sense(wish)
        return int(run_fix(ui, wish))
    return int(front.run_doctor(ui, wish, lambda host: judge(wish, ui, host)))


def run_doctor(ui: Ui, *, framework: str | None) -> ExitCode:
    """A look at this machine, reported as text; the exit code of the findings."""
    wish = Wish(framework=framework, format="json" if ui.is_json else "text")
    return front.run_doctor(ui, wish, lambda host: judge(wish, ui, host))
