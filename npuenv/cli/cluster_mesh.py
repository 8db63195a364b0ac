"""`npuenv cluster mesh`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv.app.mesh import PARALLEL, MeshOptions, ping_mesh
from npuenv.cli.common import FILE, HelpfulCommand, Ui, common_options
from npuenv.cli.progress import StepProgress, report_pending
from npuenv.cluster.mesh import FULL, SAMPLED
from npuenv.cluster.mesh.document import document
from npuenv.cluster.mesh.running import LIMIT_S
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.report.mesh import brief, lines, render_html
from npuenv.terminal.options import chosen_format
from npuenv.terminal.output import require_writable, write
from npuenv.terminal.run import as_json

if TYPE_CHECKING:
    from npuenv.cluster.mesh.document import MeshResult

_FORMATS = ("text", "json", "html")


@click.command("mesh", cls=HelpfulCommand)
@click.option("--hosts", metavar="FILE|-", required=True, help="Inventory file: one node or range of nodes per line.")
@click.option("--full", "is_full", is_flag=True, help="Ping every pair of devices (default up to 64 devices).")
@click.option("--sampled", "is_sampled", is_flag=True, help="At most 4 pings per device; finds any single dead one.")
@click.option("--resume", "state", type=FILE, metavar="FILE", help="Resume an interrupted run.")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt before a full mesh of more than 64 devices.")
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(1, 600),
    default=LIMIT_S,
    show_default=True,
    help="Timeout of one ping, in seconds.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, PARALLEL),
    default=None,
    metavar="N",
    help="Nodes to contact at once (default: all).",
)
@click.option("--ssh-config", metavar="FILE", help="ssh configuration to use instead of your own.")
@click.option("--format", "form", type=click.Choice(_FORMATS), help="Report format.")
@click.option(
    "-o", "--output", "out", metavar="FILE", help="Write the report to FILE; .html and .json select its format."
)
@common_options
def command(
    ui: Ui, *, is_full: bool, is_sampled: bool, form: str | None, out: str | None, yes: bool, **options: Any
) -> int:
    """Ping between the device addresses of all cards and report the smallest set of suspects.

    Each node reports the addresses of its cards over ssh and then runs hccn_tool, one ping at a time. The run time is
    estimated from the first pings. Results are saved, so an interrupted run can continue with --resume.

    Exit codes: 0 all pings succeeded, 1 pings failed, 2 invalid usage, 3 not everything could be tried, 130
    interrupted.
    """
    if is_full and is_sampled:
        raise BadInput(Message("mesh.two-modes"), Message("mesh.two-modes-hint"))
    form = chosen_format(ui, form, _format_of(out))
    ui = replace(ui, is_json=form == "json" and out is None)
    if out is not None:
        require_writable(out)
    mode = FULL if is_full else SAMPLED if is_sampled else None
    options["parallel"] = options["parallel"] or PARALLEL
    mesh = MeshOptions(mode=mode, report=report_words(form, out), **options)
    result = ping_mesh(mesh, StepProgress(ui, yes=yes), report_pending(ui))
    _report(ui, result, mesh.hosts, form, out)
    return int(result.code)


def _format_of(out: str | None) -> str:
    """The format of the report by the name of its file."""
    return {".html": "html", ".json": "json"}.get(Path(out).suffix if out else "", "text")


def report_words(form: str, out: str | None) -> tuple[str, ...]:
    """The options that give the same report."""
    words = ["--format", form] if form != _format_of(out) else []
    return (*words, *(["-o", out] if out is not None else []))


def _report(ui: Ui, result: MeshResult, hosts: str, form: str, out: str | None) -> None:
    """Prints the report, or writes it to `out` and summarizes it. Raises BadInput."""
    found = document(result, ui.lang)
    if form == "json":
        text = as_json(found, is_to_stdout=out in (None, "-"))
    elif form == "html":
        text = render_html(found, ui.lang, asked=shlex.join(["npuenv", "cluster", "mesh", "--hosts", hosts]))
    else:
        text = "".join(f"{line}\n" for line in lines(found, ui.lang, is_quiet=ui.is_quiet))
    if out is None or out == "-":
        print(text, end="", flush=True)
        return
    write(Path(out), text)
    for message in (*brief(found), Message("doctor.written", {"path": out})):
        ui.say(message, err=True)
