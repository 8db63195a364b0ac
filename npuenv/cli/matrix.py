"""`npuenv matrix`: the tables of what fits together, checked, held against a checkout, and against the indexes."""

from __future__ import annotations

from pathlib import Path

import click

from npuenv.cli.common import Ui, common_options
from npuenv.cli.help import Group
from npuenv.core.errors import ExitCode
from npuenv.core.messages import Message
from npuenv.facts.pip import pip_settings
from npuenv.host.local import LocalHost
from npuenv.maintain.check import check, tables_of
from npuenv.maintain.contradict import find_contradictions
from npuenv.maintain.lint.paths import lint_paths
from npuenv.matrix import load_matrix
from npuenv.report.matrix import Checked, check_json, lint_json, refresh_json, show_check, show_lint


@click.group("matrix", cls=Group)
def command() -> None:
    """Check the tables of what fits together, hold a checkout against them, or them against the indexes."""


_folder = click.option(
    "--tables",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Take the tables of this folder (default: those that come with npuenv).",
)


@command.command("check")
@_folder
@common_options
def check_command(ui: Ui, *, folder: Path | None) -> int:
    """Say whether the tables are valid, where their sources contradict each other, and which side is believed.

    Exit 0: valid, and every contradiction is written down. 1: one that nobody has written down. 2: not valid.
    """
    checked = _checked(folder)
    code = ExitCode.PROBLEMS if checked.has_unsettled else ExitCode.FINE
    if ui.is_json:
        ui.print_json({**check_json(checked, ui.lang), "exit": int(code)})
    else:
        show_check(checked, ui.console(), ui.lang, is_quiet=ui.is_quiet, is_verbose=ui.is_verbose)
    return int(code)


def _checked(folder: Path | None) -> Checked:
    matrix = load_matrix(folder)
    check(matrix)
    tables = {name: len(rows) for name, rows in tables_of(matrix)}
    return Checked(tables, matrix.contradictions, find_contradictions(matrix))


@command.command("lint")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@_folder
@common_options
def lint_command(ui: Ui, *, paths: tuple[Path, ...], folder: Path | None) -> int:
    """Say what in a checkout's requirements, Dockerfiles and scripts cannot hold together, or will bite.

    PATH is a file or the root of a checkout. Nothing of it is run. Exit 0: no error (warnings alone included).
    1: errors. 2: no such path.
    """
    complaints = lint_paths(paths, load_matrix(folder))
    code = ExitCode.PROBLEMS if any(each.severity == "error" for each in complaints) else ExitCode.FINE
    if ui.is_json:
        ui.print_json({**lint_json(complaints, ui.lang), "exit": int(code)})
    else:
        show_lint(complaints, ui.console(), ui.lang, is_quiet=ui.is_quiet)
    return int(code)


@command.command("refresh")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--thorough", is_flag=True, help="Read again what is older than its row, too (0.5 GB of archives).")
@_folder
@common_options
def refresh_command(ui: Ui, *, names: tuple[str, ...], thorough: bool, folder: Path | None) -> int:
    """Propose, as a diff for `patch -p1`, what the package indexes say now and the tables do not; nothing is changed.

    NAME is torch-npu, triton-ascend, vllm-ascend or vllm (default: all). Exit 0: nothing new. 1: there are proposals.
    3: an index was out of reach. Needs npuenv's extra `matrix`.
    """
    import sys

    from npuenv.maintain.refresh import as_diff, propose

    tables = load_matrix(folder).folder
    settings = pip_settings(LocalHost(), prefix=sys.prefix)
    proposals = propose(load_matrix(folder), settings, names, lambda step: ui.say(step, err=True), is_thorough=thorough)
    code = ExitCode.PROBLEMS if proposals else ExitCode.FINE
    if ui.is_json:
        ui.print_json({**refresh_json(proposals, as_diff(proposals, tables)), "exit": int(code)})
    else:
        click.echo(as_diff(proposals, tables), nl=False)
        said = (
            Message("matrix.refresh-summary", {"count": len(proposals), "folder": str(tables)}) if proposals else None
        )
        ui.say(said or Message("matrix.refresh-nothing"), err=True)
    return int(code)
