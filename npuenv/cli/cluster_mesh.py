"""`npuenv cluster mesh`."""

from __future__ import annotations

import contextlib
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv.app.mesh import PARALLEL, MeshOptions, ping_mesh
from npuenv.app.progress import MeshProgress
from npuenv.cli.common import FILE, HelpfulCommand, Ui, common_options
from npuenv.cli.progress import ProgressBar, StepProgress, confirm, report_pending
from npuenv.cluster.mesh import FULL, SAMPLED
from npuenv.cluster.mesh.document import document
from npuenv.cluster.mesh.running import LIMIT_S
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.report.mesh import brief, lines, render_html
from npuenv.terminal.options import chosen_format
from npuenv.terminal.output import require_writable, write
from npuenv.terminal.run import as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import ProgressColumn

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
    mesh = MeshOptions(mode=mode, **options)
    result = ping_mesh(mesh, _MeshProgress(ui, mesh, form, out, yes=yes), report_pending(ui))
    _report(ui, result, mesh.hosts, form, out)
    return int(result.code)


def _format_of(out: str | None) -> str:
    """The format of the report by the name of its file."""
    return {".html": "html", ".json": "json"}.get(Path(out).suffix if out else "", "text")


def resume_command(options: MeshOptions, mode: str, state: Path, form: str, out: str | None) -> str:
    """The command line that resumes a run, and gives the same report."""
    words = ["npuenv", "cluster", "mesh", "--hosts", options.hosts, f"--{mode}", "--resume", str(state)]
    words += ["--ssh-config", options.ssh_config] if options.ssh_config else []
    words += ["--limit", f"{options.limit_s:g}"] if options.limit_s != LIMIT_S else []
    words += ["--parallel", str(options.parallel)] if options.parallel != PARALLEL else []
    words += ["--format", form] if form != _format_of(out) else []
    words += ["-o", out] if out is not None else []
    return shlex.join(words)


class _PingBar(ProgressBar):
    """Counts pings: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, ui: Ui, total: int) -> None:
        super().__init__(ui, total)
        self._lang, self._shown_s = ui.lang, time.monotonic()

    def show(self, done: int) -> None:
        """Shows how many are done, if some time has passed since it last did."""
        every_s = 0.2 if self._bar else 10.0
        if time.monotonic() - self._shown_s >= every_s:
            self._shown_s = time.monotonic()
            line = say(Message("mesh.progress", {"done": done, "total": self._total}), self._lang)
            self._show(line, completed=done, description=line)

    def _columns(self) -> tuple[ProgressColumn, ...]:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        return BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}")


class _MeshProgress(StepProgress, MeshProgress):
    def __init__(self, ui: Ui, options: MeshOptions, form: str, out: str | None, *, yes: bool) -> None:
        super().__init__(ui, yes=yes)
        self._options, self._form, self._out = options, form, out

    def confirm(self, most: int) -> None:
        if not self._yes:
            self.note(Message("mesh.large", {"most": most}))
            self.note(Message("mesh.large-hint"))
            confirm(self._ui)

    @contextlib.contextmanager
    def pings(self, total: int) -> Iterator[Callable[[int], object]]:
        with _PingBar(self._ui, total) as bar:
            yield bar.show

    def unfinished(self, mode: str, state: Path, *, is_interrupted: bool) -> None:
        command = resume_command(self._options, mode, state, self._form, self._out)
        key = ("go-on" if is_interrupted else "retry") + ("-input" if self._options.hosts == "-" else "")
        self.note(Message(f"mesh.{key}", {"command": command}))


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
