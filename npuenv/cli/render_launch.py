"""`npuenv render-launch`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from npuenv import app, report
from npuenv.cli.common import FILE, HelpfulCommand, Ui, card_memory_option, common_options, request_options
from npuenv.cli.progress import StepProgress
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.render.files import WrittenFiles
    from npuenv.render.launch.job import LaunchFiles
    from npuenv.resolve.types import Request


@click.command("render-launch", cls=HelpfulCommand)
@request_options
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-o", "--out", type=FILE, metavar="DIR", help="Output folder.")
@click.option("--recipe", default="", metavar="NAME", help="Published run to start from; see --list.")
@click.option("--list", "is_list", is_flag=True, help="With --for: list the recipes and exit.")
@click.option("--release", default="", metavar="V", help="Framework release or commit (default: the stack's).")
@click.option("--model", metavar="PATH|NAME", help="Model folder, or its name on a hub.")
@click.option(
    "--cards-per-node", type=int, metavar="N", help="Cards per node (default: the recipe's, at most the host's)."
)
@click.option("--nodes", type=int, metavar="N", help="Number of nodes (default: the recipe's).")
@click.option("--train-cards", "train", metavar="L", help="Training cards, e.g. 0-3,8-11.")
@click.option("--infer-cards", "infer", metavar="L", help="Generating cards.")
@click.option("--reference-cards", "reference", metavar="L", help="Reference model cards.")
@click.option(
    "--layout", type=click.Choice(("split", "colocated")), help="Train and generate on separate or on the same cards."
)
@card_memory_option(" (default: 64)")
@click.option("--head", default="", metavar="ADDR", help="Address of the head node.")
@click.option(
    "--allow-local-code", "allows_local_code", is_flag=True, help="Let rewards run model-written code on the nodes."
)
@click.option("--force", is_flag=True, help="Write even if it does not fit; overwrite files that differ.")
@common_options
def command(
    ui: Ui, *, request: Request, settings: tuple[str, ...], out: Path | None, is_list: bool, force: bool, **said: Any
) -> int:
    """Render the files that start a training run: verl overrides and YAML or ROLL YAML, and start scripts.

    A recipe is a published run; KEY=VALUE changes its values. Cards are assigned as published, as listed, or as
    planned. The memory is estimated, and a run that does not fit is not written (exit 1).
    """
    from npuenv.render.files import WrittenFiles
    from npuenv.render.launch.job import parse_overrides

    if request.stack is not None and "=" in request.stack:
        settings = (request.stack, *settings)
        request = replace(request, stack=None)
    framework = app.launches.framework_of(request)
    if is_list:
        return _list(ui, framework)
    if out is None:
        raise BadInput(Message("launch_roll.no-out"), Message("launch_roll.no-out-hint"))
    options = app.LaunchOptions(overrides=parse_overrides(settings), **said)
    host = click.get_current_context().params["host"]
    made = app.render_launch(request, options, StepProgress(ui), host=host, lang=ui.lang)
    is_refused = not (made.fits or force)
    written = WrittenFiles() if is_refused else app.write_launch(made.files, out, is_forced=force)
    code = ExitCode.PROBLEMS if is_refused else ExitCode.FINE
    if ui.is_json:
        ui.print_json(report.launch.files_json(made, written, ui.lang, int(code)))
    else:
        _show(ui, made, written, out, is_refused=is_refused)
    return int(code)


def _list(ui: Ui, framework: str) -> int:
    from npuenv.render.launch.generate import recipes

    found = {
        name: about if isinstance(about, str) else say(about, ui.lang) for name, about in recipes(framework).items()
    }
    if ui.is_json:
        document = {"schema": "npuenv.launch-recipes/1", "exit": 0, "framework": framework, "recipes": found}
        ui.print_json(document)
    for name, about in found.items():
        ui.say(Message("launch_roll.listed", {"name": name, "about": about}))
    return int(ExitCode.FINE)


def _show(ui: Ui, made: LaunchFiles, written: WrittenFiles, out: Path, *, is_refused: bool) -> None:
    for message in report.launch.files_head(made):
        ui.say(message)
    for message in report.launch.files_estimate(made, is_whole=is_refused or ui.is_verbose):
        ui.say(message, err=is_refused)
    if is_refused:
        ui.say(Message("launch_roll.refused"), err=True)
        return
    key = "launch_roll.written" if written.files else "launch_roll.was-written"
    ui.say(Message(key, {"folder": str(out), "files": tuple(sorted(written.files or made.files))}))
    if written.removed:
        ui.say(Message("launch_roll.removed", {"folder": str(out), "files": written.removed}))
