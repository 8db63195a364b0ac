"""`npuenv doctor`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv.app import doctor as front
from npuenv.app.options import FORMATS, FRAMEWORKS, HELP, Wish, form_of, require_sense
from npuenv.cli.common import Ui, common_options
from npuenv.cli.help import Command
from npuenv.cli.judging import judge, usual_python
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from npuenv.core.errors import ExitCode


@click.command("doctor", cls=Command)
@click.option("--for", "framework", type=click.Choice(FRAMEWORKS), help=HELP["for"])
@click.option("--stack", metavar="NAME", help="Check against the versions and settings of a published stack.")
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
    "--parallel",
    type=click.IntRange(1, 512),
    metavar="N",
    help="With --hosts: nodes to check at once (default: 32).",
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
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help=HELP["format"],
)
@click.option("-o", "--output", "out", metavar="FILE", help=HELP["output"])
@common_options
def command(ui: Ui, *, form: str | None, **options: Any) -> int:
    """Find what prevents training on Ascend NPUs on this machine, with causes and the commands that fix them.

    Changes nothing, except with --fix, which prompts first. The report is complete even if torch cannot be imported.
    What cannot be checked is "unknown", never "ok".

    With --hosts, checks every node of an inventory over ssh, and what must be consistent between them. A line of the
    file looks like `node[01-64] user=root port=22 jump=bastion cards=8`; --save and --from then take a folder.
    """
    is_json = ui.is_json
    asking = {name: options.pop(name) for name in ("hosts", "ssh_config", "limit_s", "parallel", "shared")}
    wish = Wish(format=form or ("json" if is_json else form_of(options["out"])), **options)
    ui = replace(ui, is_json=wish.format == "json" and wish.out is None)
    if is_json and wish.format != "json":
        raise BadInput(Message("doctor.two-formats", {"format": wish.format}), Message("doctor.two-formats-hint"))
    if asking["hosts"] is not None or (wish.capture is not None and wish.capture.is_dir()):
        from npuenv.cli.cluster_doctor import Asking, run

        return int(run(ui, wish, Asking(**asking)))
    alone = next((name for name, value in asking.items() if value is not None), None)
    if alone is not None:
        args = {"option": f"--{alone.removesuffix('_s').replace('_', '-')}"}
        raise BadInput(Message("cluster.only-with-hosts", args), Message("cluster.only-with-hosts-hint", args))
    if wish.is_fixing:
        from npuenv.cli.fix import run_fix

        require_sense(wish)
        return int(run_fix(ui, wish))
    require_sense(wish)
    python = usual_python(wish, ui)
    return int(front.run_doctor(ui, wish, lambda host: judge(wish, ui, host, python=python)))


def run_doctor(ui: Ui, *, framework: str | None, python: str) -> ExitCode:
    """A look at this machine and an interpreter before an installation; the exit code of the findings."""
    wish = Wish(framework=framework, format="json" if ui.is_json else "text", is_installing=True)
    return front.run_doctor(ui, wish, lambda host: judge(wish, ui, host, python=python))
