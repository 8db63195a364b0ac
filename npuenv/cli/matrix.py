"""`npuenv matrix`: the tables of what fits together, checked, held against a checkout, and against the indexes."""

from __future__ import annotations

import time
from pathlib import Path

import click

from npuenv.cli.common import FILE, HelpfulGroup, Ui, common_options
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.finding import Status
from npuenv.core.messages import Message
from npuenv.facts.pip import pip_settings
from npuenv.host.local import LocalHost
from npuenv.maintain.check import check, tables_of
from npuenv.maintain.contradict import find_contradictions
from npuenv.maintain.lint import lint_paths
from npuenv.matrix import load_matrix
from npuenv.report.matrix import Checked, check_json, lint_json, refresh_json, show_check, show_lint


@click.group("matrix", cls=HelpfulGroup)
def command() -> None:
    """Check the compatibility tables, check a source tree against them, or compare them with the indexes."""


_folder = click.option(
    "--tables", "folder", type=FILE, metavar="DIR", help="Use the tables in this folder (default: npuenv's own)."
)


@command.command("check")
@_folder
@common_options
def check_command(ui: Ui, *, folder: Path | None) -> int:
    """Validate the tables, and show where their sources contradict each other and which side npuenv trusts.

    Exit codes: 0 valid, every contradiction is recorded; 1 unrecorded contradiction; 2 invalid.
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
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="PATH...")
@_folder
@common_options
def lint_command(ui: Ui, *, paths: tuple[Path, ...], folder: Path | None) -> int:
    """Find conflicts and pitfalls in the requirements, Dockerfiles and scripts of a checkout.

    PATH is a file or the root of a checkout. Nothing in it is executed. Exit codes: 0 no errors (warnings are allowed),
    1 errors, 2 no such path.
    """
    findings = lint_paths(paths, load_matrix(folder))
    code = ExitCode.PROBLEMS if any(each.status is Status.FAIL for each in findings) else ExitCode.FINE
    if ui.is_json:
        ui.print_json({**lint_json(findings, ui.lang), "exit": int(code)})
    else:
        show_lint(findings, ui.console(), ui.lang, is_quiet=ui.is_quiet)
    return int(code)


@command.command("refresh")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--thorough", is_flag=True, help="Also read again what is older than its row (0.5 GB of archives).")
@click.option(
    "--tree",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Read a checkout or .tar.gz of vllm-ascend or verl instead of the indexes.",
)
@click.option("--tag", metavar="TAG", help="The release that the tree is of, if neither it nor its name says.")
@_folder
@common_options
def refresh_command(
    ui: Ui, *, names: tuple[str, ...], thorough: bool, tree: Path | None, tag: str | None, folder: Path | None
) -> int:
    """Print what the package indexes have and the tables lack, as a diff for `patch -p1`; changes nothing.

    NAME is torch-npu, triton-ascend, vllm-ascend or vllm (default: all). Exit codes: 0 nothing new, 1 proposals,
    3 an index cannot be reached. Needs npuenv's extra `matrix`.
    """
    import sys

    from npuenv.maintain.refresh import as_diff, propose, propose_from_tree

    if (tree is not None and names) or (tree is None and tag):
        raise BadInput(Message("refresh.tree-or-names"))
    matrix, tables = load_matrix(folder), load_matrix(folder).folder
    if tree is None:
        settings = pip_settings(LocalHost(), prefix=sys.prefix)
        proposals = propose(matrix, settings, names, lambda step: ui.say(step, err=True), is_thorough=thorough)
    else:
        proposals = propose_from_tree(tree, matrix, lambda step: ui.say(step, err=True), tag=tag or "")
    code = ExitCode.PROBLEMS if proposals else ExitCode.FINE
    if ui.is_json:
        ui.print_json({**refresh_json(proposals, as_diff(proposals, tables)), "exit": int(code)})
    else:
        click.echo(as_diff(proposals, tables), nl=False)
        summary = Message("matrix.refresh-summary", {"count": len(proposals), "folder": str(tables)})
        ui.say(summary if proposals else Message("matrix.refresh-nothing"), err=True)
    return int(code)


@command.command("add-run")
@click.argument("path", type=FILE, metavar="FILE")
@click.option("--source", required=True, metavar="ADDRESS", help="Where the record is public.")
@_folder
@common_options
def add_run_command(ui: Ui, *, path: Path, source: str, folder: Path | None) -> int:
    """Print the row for a run on cards that somebody published, as a diff for `patch -p1`; changes nothing.

    FILE is a record of `npuenv smoke-train --attest`. Exit codes: 0 printed, 2 not such a record or already there.
    """
    from npuenv.maintain.refresh import as_diff
    from npuenv.maintain.refresh.from_files import run_proposal

    matrix = load_matrix(folder)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    proposals = (run_proposal(path, source, day, matrix),)
    difference = as_diff(proposals, matrix.folder)
    if ui.is_json:
        ui.print_json({**refresh_json(proposals, difference), "exit": 0})
    else:
        click.echo(difference, nl=False)
    return 0
