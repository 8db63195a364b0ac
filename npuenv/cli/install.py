"""`npuenv install`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from npuenv.cli.common import Ui, absolute, common_options, request_options
from npuenv.cli.help import Command
from npuenv.cli.installing import How, run_install, show_plan
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from npuenv.resolve.types import Request

_FILE = click.Path(path_type=Path)


@click.command("install", cls=Command)
@request_options
@click.option("--target", metavar="DIR", help="Folder of the environment (default: in the user's data folder).")
@click.option("--as", "kind", type=click.Choice(["venv", "conda"]), default="venv", help="Type of environment.")
@click.option("--into", metavar="EXE", help="Install into the existing environment of this Python.")
@click.option("--dry-run", is_flag=True, help="Only print the plan.")
@click.option("--script", is_flag=True, help="Only print the plan, as a POSIX shell script.")
@click.option("--offline", type=_FILE, metavar="BUNDLE", help="Install from a bundle, without using the network.")
@click.option("--update", is_flag=True, help="Build the current lock beside the old environment, then switch.")
@click.option("--repair", is_flag=True, help="Restore changed or missing files from the environment's own lock.")
@click.option("--rollback", is_flag=True, help="Go back to the environment before the last update.")
@click.option("--base-python", metavar="EXE", help="Python interpreter to create the environment with.")
@click.option(
    "--cann-file", "cann_files", type=_FILE, multiple=True, metavar="FILE", help="CANN file to install; repeatable."
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
    target: str | None,
    kind: str,
    into: str | None,
    dry_run: bool,
    script: bool,
    offline: Path | None,
    update: bool,
    repair: bool,
    rollback: bool,
    base_python: str | None,
    cann_files: tuple[Path, ...],
    sources: tuple[str, ...],
    with_system: bool,
    is_replacing: bool,
    only_step: str | None,
    from_step: str | None,
    fill: bool,
    yes: bool,
) -> int:
    """Install a stack from its lock into a new environment, and verify it.

    After an interruption, the same command continues where it stopped: every step first checks whether it is already
    done. A complete environment is verified again, and packages with damaged or missing files are reinstalled.
    """
    _require_one(**{"--only-step": only_step, "--from-step": from_step})
    verb = _require_one(**{"--update": update, "--repair": repair, "--rollback": rollback})
    _require_one(**{"--into": into, "--target": target})
    if script and ui.is_json:
        raise BadInput(Message("cli.script-json"), Message("cli.script-json-hint"))
    how = How(
        target=str(absolute(Path(target))) if target else None,
        kind=kind,
        into=into,
        base_python=base_python,
        bundle=str(absolute(offline)) if offline else None,
        cann_files=tuple(str(absolute(path)) for path in cann_files),
        given=_given(sources),
        with_system=with_system,
        is_replacing=is_replacing,
        only_step=only_step,
        from_step=from_step,
        fill=fill,
    )
    if verb:
        from npuenv.cli import update as upkeep

        if verb == "--repair":
            is_shown = dry_run or script
            return int(upkeep.repair(ui, request, how, yes=yes, is_shown=is_shown, as_script=script))
        _require_one(**{"--script": script, verb: True})
        act = upkeep.update if verb == "--update" else upkeep.roll_back
        return int(act(ui, request, how, yes=yes, is_dry_run=dry_run))
    if dry_run or script:
        return int(show_plan(ui, request, how, as_script=script))
    run_install(ui, request, yes=yes, how=how)
    return int(ExitCode.FINE)


def _require_one(**options: object) -> str | None:
    """The one option that was given, or None. Raises BadInput for two: they exclude each other."""
    named = [name for name, value in options.items() if value]
    if len(named) > 1:
        said = {"one": named[0], "other": named[1]}
        raise BadInput(Message("install.one-of", said), Message("install.one-of-hint", said))
    return named[0] if named else None


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
