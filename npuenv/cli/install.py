"""`npuenv install`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv import app, report
from npuenv.cli.common import (
    FILE,
    HelpfulCommand,
    Ui,
    absolute,
    common_options,
    options_of,
    refuse_with,
    request_options,
    require_one,
)
from npuenv.cli.progress import StepProgress, list_plan, show_changes, tell_notes
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from npuenv.app import InstallOptions, InstallResult
    from npuenv.resolve.types import Request


@click.command("install", cls=HelpfulCommand)
@request_options
@click.option("--target", metavar="DIR", help="Folder of the environment (default: in the user's data folder).")
@click.option("--as", "kind", type=click.Choice(["venv", "conda"]), default="venv", help="Type of environment.")
@click.option("--into", metavar="EXE", help="Install into the existing environment of this Python.")
@click.option("--dry-run", is_flag=True, help="Only print the plan.")
@click.option("--script", is_flag=True, help="Only print the plan, as a POSIX shell script.")
@click.option("--offline", type=FILE, metavar="BUNDLE", help="Install from a bundle, without using the network.")
@click.option("--update", is_flag=True, help="Build the current lock beside the old environment, then switch.")
@click.option("--repair", is_flag=True, help="Restore changed or missing files from the environment's own lock.")
@click.option("--rollback", is_flag=True, help="Go back to the environment before the last update.")
@click.option("--base-python", metavar="EXE", help="Python interpreter to create the environment with.")
@click.option(
    "--cann-file", "cann_files", type=FILE, multiple=True, metavar="FILE", help="CANN file to install; repeatable."
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="NAME=PATH",
    help="Use an archive or folder instead of git; repeatable.",
)
@click.option("--with-system", is_flag=True, help="Also install missing system packages (apt, dnf).")
@click.option("--replace", "is_replacing", is_flag=True, help="Overwrite another environment in the target folder.")
@click.option("--only-step", metavar="ID", help="Run only this step.")
@click.option("--from-step", metavar="ID", help="Run this step and all later ones.")
@click.option("--fill", is_flag=True, help="First complete a partial lock from its indexes.")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt.")
@common_options
def command(
    ui: Ui,
    *,
    request: Request,
    dry_run: bool,
    script: bool,
    offline: Path | None,
    update: bool,
    repair: bool,
    rollback: bool,
    target: str | None,
    cann_files: tuple[Path, ...],
    sources: tuple[str, ...],
    yes: bool,
    **options: Any,
) -> int:
    """Install a stack from its lock into a new environment, and verify it.

    After an interruption, the same command continues where it stopped: every step first checks whether it is already
    done. A complete environment is verified again, and packages with damaged or missing files are reinstalled.
    """
    require_one(**{"--only-step": options["only_step"], "--from-step": options["from_step"]})
    verb = require_one(**{"--update": update, "--repair": repair, "--rollback": rollback})
    require_one(**{"--into": options["into"], "--target": target})
    if script and ui.is_json:
        raise BadInput(Message("cli.script-json"), Message("cli.script-json-hint"))
    chosen = app.InstallOptions(
        target=str(absolute(Path(target))) if target else None,
        bundle=str(absolute(offline)) if offline else None,
        cann_files=tuple(str(absolute(path)) for path in cann_files),
        given=_given(sources),
        again=("npuenv", *sys.argv[1:]),
        **options,
    )
    if verb == "--repair":
        return int(_repair(ui, request, chosen, yes=yes, is_shown=dry_run or script, as_script=script))
    if verb:
        require_one(**{"--script": script, verb: True})
        act = _update if verb == "--update" else _roll_back
        return int(act(ui, request, chosen, yes=yes, is_dry_run=dry_run))
    if dry_run or script:
        return int(_show_plan(ui, request, chosen, as_script=script))
    run_install(ui, request, chosen, yes=yes)
    return int(ExitCode.FINE)


def run_install(ui: Ui, request: Request, options: InstallOptions, *, yes: bool) -> Path:
    """Installs with progress shown, and reports; the environment's folder."""
    result = app.install(request, options, StepProgress(ui, yes=yes))
    _report(ui, result)
    return Path(result.job.target.root)


def _show_plan(ui: Ui, request: Request, options: InstallOptions, *, as_script: bool) -> ExitCode:
    """Prints what an installation lacks and then the plan, as a list or as a script; the exit code it would have."""
    if as_script:
        click.echo(app.installation.script_of(request, options, StepProgress(ui), lang=ui.lang), nl=False)
        return ExitCode.FINE
    found = app.preview(request, options, StepProgress(ui))
    job, lacks = found.job, found.lacks
    code = ExitCode.NOTHING_FITS if lacks else ExitCode.FINE
    for error in lacks:
        ui.say(Message("cli.would-fail", {"why": error.message}), err=True)
        if error.hint:
            ui.say(Message("cli.hint", {"hint": error.hint}), err=True)
    if ui.is_json:
        document = report.plan.as_json(job.part, job.request.stack, job.target.root, ui.lang)
        ui.print_json({**document, "exit": int(code), "lacks": [say(error.message, ui.lang) for error in lacks]})
        tell_notes(ui, job)
    else:
        list_plan(ui, job, job.part)
    return code


def _report(ui: Ui, result: InstallResult) -> None:
    job = result.job
    stack, target, done = job.request.stack, job.target, result.outcome.done
    args = {"stack": stack.name, "path": target.root, "steps": len(done)}
    if ui.is_json:
        ui.print_json(
            {
                "schema": "npuenv.install/1",
                "exit": 0,
                "stack": stack.name,
                "target": target.root,
                "python": target.python,
                "is_proven": result.is_proven,
                "activate": f"{target.root}/activate.sh" if result.is_proven else None,
                "steps_done": len(done),
                "notes": [say(note, ui.lang) for note in job.notes],
            }
        )
    if not result.is_proven:
        steps = done or (Message("plan.none"),)
        ui.say(Message("install.part-done", {"path": target.root, "steps": steps}))
        return
    ui.say(Message("cli.installed" if done else "cli.was-installed", args))
    if result.foreign:
        ui.say(Message("install.strangers", {"names": result.foreign}), err=True)
    ui.say(Message("cli.activate", args))
    if stack.cann_root:
        ui.say(Message("install.needs-cann", args))


def _update(ui: Ui, request: Request, options: InstallOptions, *, yes: bool, is_dry_run: bool) -> ExitCode:
    found = app.update(request, options, StepProgress(ui, yes=yes), is_dry_run=is_dry_run)
    own = found.environment.described
    if found.result is not None:
        _report(ui, found.result)
        if found.is_active:
            ui.say(Message("install.can-roll-back", {"stack": own.stack}))
        return ExitCode.FINE
    if found.job is not None:
        show_changes(ui, found.job, found.changes)
    if ui.is_json:
        root = found.job.target.root if found.job else own.root
        rows = [each._asdict() for each in found.changes]
        ui.print_json({"schema": "npuenv.update/1", "exit": 0, "stack": own.stack, "target": root, "changes": rows})
    if found.job is None:
        ui.say(Message("install.up-to-date", {"stack": own.stack, "path": own.root}))
        if pins := own.request.get("pins"):
            words = tuple(f"{name}=={version}" for name, version in sorted(pins.items()))
            ui.say(Message("install.keeps-pins", {"stack": own.stack, "pins": words}))
    return ExitCode.FINE


def _repair(
    ui: Ui, request: Request, options: InstallOptions, *, yes: bool, is_shown: bool, as_script: bool
) -> ExitCode:
    """`is_shown`: the plan is only printed, as a list or `as_script`."""
    # What is there is restored: a request for something else would be written down and not met.
    refuse_with("--repair", options_of(replace(request, stack=None, framework=None)))
    progress = StepProgress(ui, yes=yes)
    if is_shown:
        return _show_plan(ui, *app.updates.repair_request(request, options, progress), as_script=as_script)
    _report(ui, app.repair(request, options, progress))
    return ExitCode.FINE


def _roll_back(ui: Ui, request: Request, options: InstallOptions, *, yes: bool, is_dry_run: bool) -> ExitCode:
    found = app.roll_back(request, options, is_dry_run=is_dry_run)
    now, before = str(found.path), str(found.before) if found.before else None
    if ui.is_json:
        document = {"dry_run": is_dry_run, "target": now, "before": before}
        ui.print_json({"schema": "npuenv.rollback/1", "exit": 0, **document})
    done = Message("install.rolled-back", {"path": now, "before": before or Message("plan.none")})
    ui.say(Message("install.would-roll-back", {"path": now}) if is_dry_run else done)
    return ExitCode.FINE


def _given(words: tuple[str, ...]) -> dict[str, str]:
    """`("vllm=./vllm.tar.gz",)` -> name and absolute path. Raises BadInput for another form or no such place."""
    from packaging.utils import canonicalize_name

    found: dict[str, str] = {}
    for word in words:
        name, sign, place = word.partition("=")
        if not (name and sign and place):
            raise BadInput(Message("install.bad-source", {"word": word}), Message("install.bad-source-hint"))
        path = absolute(Path(place))
        if not path.exists():
            raise BadInput(Message("install.no-source", {"path": str(path)}), Message("install.bad-source-hint"))
        found[canonicalize_name(name)] = str(path)
    return found
