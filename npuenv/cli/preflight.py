"""`npuenv preflight`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from npuenv import app, report
from npuenv.cli.common import FILE, HelpfulCommand, Ui, card_memory_option, common_options
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.terminal.options import chosen_format

if TYPE_CHECKING:
    from npuenv.app import PreflightResult


@click.command("preflight", cls=HelpfulCommand)
@click.argument("words", nargs=-1, required=True, metavar="FILE | -- COMMAND...")
@click.option(
    "--for",
    "framework",
    metavar="RELEASE",
    help="Framework and release that will run it, e.g. verl==0.7.1 or roll==0.3.0.",
)
@click.option("--stack", metavar="NAME", help="Take release and packages from a published stack.")
@click.option("--target", type=FILE, metavar="ENV", help="Take release and packages from an environment.")
@click.option(
    "--hardware", metavar="NAME", help="310p, a2, a3, 950, or a chip or product name, e.g. 910B3 or 'Atlas 800T A3'."
)
@click.option("--cards-per-node", type=click.IntRange(1, 4096), metavar="N", help="Cards per node.")
@click.option("--nodes", type=click.IntRange(1, 100_000), metavar="N", help="Number of nodes.")
@card_memory_option()
@click.option(
    "--here/--elsewhere", "is_here", default=False, help="The launch runs on this machine: also check its paths."
)
@click.option("--fix", "is_fixing", is_flag=True, help="Write a corrected copy and show what changed.")
@click.option("-o", "--out", type=FILE, metavar="FILE", help="File of the corrected copy.")
@click.option("--force", "is_forced", is_flag=True, help="Overwrite the output file.")
@click.option("--format", "form", type=click.Choice(("text", "json", "sarif", "junit")), help="Report format.")
@common_options
def command(ui: Ui, *, words: tuple[str, ...], form: str | None, **options: Any) -> int:
    """Find what will not work in a launch of verl or ROLL before starting it, with corrected lines.

    FILE is a verl or ROLL YAML, or a shell script that starts one of them; or pass the command itself after --.
    Nothing is executed.

    Exit codes: 0 no errors (warnings are allowed), 1 errors, 2 unreadable, 3 no errors found but the release is
    unknown, so most rules did not apply.
    """
    form = chosen_format(ui, form)
    asked = app.PreflightOptions(**options)
    if asked.is_fixing and form in ("sarif", "junit"):
        raise BadInput(Message("preflight.fix-no-sarif"))
    result = app.preflight(words, asked)
    _report(replace(ui, is_json=form != "text"), result, form)
    return int(result.exit_code)


def _report(ui: Ui, result: PreflightResult, form: str) -> None:
    if form == "junit":
        print(report.launch.preflight_junit(result, ui.lang), end="", flush=True)
    elif form == "sarif":
        ui.print_json(report.launch.preflight_sarif(result, ui.lang))
    elif form == "json":
        ui.print_json(report.launch.preflight_json(result, ui.lang))
    else:
        report.launch.show_preflight(result, ui.console(), ui.lang, is_quiet=ui.is_quiet)
