"""`npuenv cluster mesh`."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv.cli.common import Ui, common_options
from npuenv.cli.help import Command
from npuenv.cli.progress import ProgressBar, report_pending
from npuenv.cli.prompt import confirm
from npuenv.cluster.inventory import Inventory, read
from npuenv.cluster.mesh import (
    FULL,
    SAMPLED,
    Outcome,
    Results,
    load_results,
    planning,
    require_same_devices,
    running,
    save_results,
)
from npuenv.cluster.mesh.document import MeshResult, document, estimate
from npuenv.cluster.mesh.planning import Survey, find_devices, vanished_devices
from npuenv.cluster.mesh.running import Run, survey
from npuenv.cluster.ssh import Options
from npuenv.cluster.transport import Transport
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.install.locations import data_folder
from npuenv.report.mesh import brief, lines, render_html
from npuenv.terminal.output import as_json, require_writable, write

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import ProgressColumn


_LIMIT_S = 15.0  # of one ping
_PARALLEL = 512  # the most nodes at once
_FORMS = ("text", "json", "html")


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """What was asked for."""

    hosts: str
    mode: str | None  # full, sampled; None: by the number of devices
    state: Path | None  # of a run to go on with
    form: str
    out: str | None
    yes: bool
    limit_s: float
    parallel: int
    ssh_config: str | None

    def again(self, mode: str, state: Path) -> str:
        """The command line that goes on, and gives the same report."""
        words = ["npuenv", "cluster", "mesh", "--hosts", self.hosts, f"--{mode}", "--resume", str(state)]
        words += ["--ssh-config", self.ssh_config] if self.ssh_config else []
        words += ["--limit", f"{self.limit_s:g}"] if self.limit_s != _LIMIT_S else []
        words += ["--parallel", str(self.parallel)] if self.parallel != _PARALLEL else []
        words += ["--format", self.form] if self.form != _form_of(self.out) else []
        words += ["-o", self.out] if self.out is not None else []
        return shlex.join(words)


def _form_of(out: str | None) -> str:
    """The form of the report where only its place was said."""
    return {".html": "html", ".json": "json"}.get(Path(out).suffix if out else "", "text")


@click.command("mesh", cls=Command)
@click.option("--hosts", metavar="FILE|-", required=True, help="Inventory file: one node or range of nodes per line.")
@click.option("--full", "is_full", is_flag=True, help="Ping every pair of devices (default up to 64 devices).")
@click.option("--sampled", "is_sampled", is_flag=True, help="At most 4 pings per device; finds any single dead one.")
@click.option("--resume", "state", type=click.Path(path_type=Path), metavar="FILE", help="Resume an interrupted run.")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt before a full mesh of more than 64 devices.")
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(1, 600),
    default=_LIMIT_S,
    show_default=True,
    help="Timeout of one ping, in seconds.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, _PARALLEL),
    default=None,
    metavar="N",
    help="Nodes to contact at once (default: all).",
)
@click.option("--ssh-config", metavar="FILE", help="ssh configuration to use instead of your own.")
@click.option("--format", "form", type=click.Choice(_FORMS), help="Report format.")
@click.option(
    "-o", "--output", "out", metavar="FILE", help="Write the report to FILE; .html and .json select its format."
)
@common_options
def command(ui: Ui, *, is_full: bool, is_sampled: bool, form: str | None, **options: Any) -> int:
    """Ping between the device addresses of all cards and report the smallest set of suspects.

    Each node reports the addresses of its cards over ssh and then runs hccn_tool, one ping at a time. The run time is
    estimated from the first pings. Results are saved, so an interrupted run can continue with --resume.

    Exit codes: 0 all pings succeeded, 1 pings failed, 2 invalid usage, 3 not everything could be tried, 130
    interrupted.
    """
    if is_full and is_sampled:
        raise BadInput(Message("mesh.two-modes"), Message("mesh.two-modes-hint"))
    mode = FULL if is_full else SAMPLED if is_sampled else None
    out = options["out"]
    if ui.is_json and form not in (None, "json"):
        raise BadInput(Message("doctor.two-formats", {"format": form}), Message("doctor.two-formats-hint"))
    form = form or ("json" if ui.is_json else _form_of(out))
    options["parallel"] = options["parallel"] or _PARALLEL
    return _run(replace(ui, is_json=form == "json" and out is None), MeshOptions(mode=mode, form=form, **options))


def _run(ui: Ui, options: MeshOptions) -> int:
    began = time.monotonic()
    if options.out is not None:
        require_writable(options.out)
    inventory = read(options.hosts)
    # Those that are to have no cards have nothing to ping with, and nothing that could be pinged.
    inventory = replace(inventory, nodes=tuple(node for node in inventory.nodes if node.cards != 0))
    nodes = {node.name: node for node in inventory.nodes}
    transport = Transport(options=Options(config=options.ssh_config), parallel=options.parallel)
    runner = running.SshRunner(nodes, transport)
    ui.say(Message("mesh.asking", {"count": len(nodes)}), err=True)
    heard = survey(inventory.nodes, running.SshRunner(nodes, replace(transport, ask=report_pending(ui))))
    surveyed = find_devices(inventory.nodes, heard)
    run, state = _prepared(options, inventory, surveyed, runner)
    with _Kept(ui, options, run, state) as kept:
        _tell_time(ui, options, run)
        _go_on(ui, run, kept)
    missing = (*surveyed.missing, *vanished_devices(run.plan.devices, surveyed))
    finished = MeshResult(run.plan, run.results, missing, run.lost, time.monotonic() - began)
    _report(ui, options, finished)
    return int(finished.code)


def _prepared(
    options: MeshOptions, inventory: Inventory, surveyed: Survey, runner: running.SshRunner
) -> tuple[Run, Path]:
    """The run, from the start or from where it was broken off, and where its state is kept. Raises BadInput."""
    if options.state is not None:
        results, mode = load_results(options.state)
        if options.mode not in (None, mode):
            args = {"path": str(options.state), "mode": Message(f"mesh.mode-{mode}")}
            raise BadInput(Message("mesh.other-mode", args), Message("mesh.other-mode-hint"))
        require_same_devices(results.devices, surveyed.devices, {node.name for node in inventory.nodes}, options.state)
    else:
        results = Results.empty(surveyed.devices)
        mode = options.mode or (FULL if len(surveyed.devices) <= planning.MOST_FOR_FULL else SAMPLED)
    plan = (planning.full if mode == FULL else planning.sampled)(results.devices)
    return Run(plan, results, runner, limit_s=options.limit_s), options.state or _new_state(results)


def _new_state(results: Results) -> Path:
    import hashlib

    named = hashlib.sha256(repr(results.devices).encode()).hexdigest()[:8]
    return Path(data_folder(os.environ), "mesh", f"{time.strftime('%Y%m%d-%H%M%S')}-{named}.json")


def _tell_time(ui: Ui, options: MeshOptions, run: Run) -> None:
    """Says how long it takes, measured on the first pings, and asks where that is much. Raises BadInput."""
    is_resumed = run.results.num_timed > 0
    each_s = run.measure()
    if each_s is None:
        return
    ui.say(Message("mesh.estimate", estimate(run.plan, each_s, run.expected_s(run.plan))), err=True)
    if is_resumed:
        left = estimate(run.left, each_s, run.expected_s(run.left))
        args = {"left": left["pings"], "pings": run.plan.num_pings, "time": left["time"]}
        ui.say(Message("mesh.estimate-left", args), err=True)
    elif run.plan.mode == FULL and len(run.plan.devices) > planning.MOST_FOR_FULL and not options.yes:
        ui.say(Message("mesh.large", {"most": planning.MOST_FOR_FULL}), err=True)
        ui.say(Message("mesh.large-hint"), err=True)
        confirm(ui)


class _Kept:
    """Keeps what is done in a file while the block runs, so that the run can be gone on with whatever ends it."""

    def __init__(self, ui: Ui, options: MeshOptions, run: Run, path: Path) -> None:
        self._ui, self._options, self._run, self._path = ui, options, run, path

    def save(self) -> None:
        """Writes what is done by now. Raises BadInput."""
        try:
            save_results(self._path, self._run.results, self._run.plan.mode)
        except OSError as error:
            args = {"path": str(self._path), "reason": error.strerror or str(error)}
            raise BadInput(Message("cli.cannot-save", args), Message("cli.cannot-save-hint")) from error

    def __enter__(self) -> _Kept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and self._run.results.num_timed:
            self.save()
            self._say_how("go-on")
        elif error is None:
            if any(True for _ in self._run.results.pairs(Outcome.UNTRIED, Outcome.SILENT)):
                self.save()
                self._say_how("retry")
            elif self._options.state is None:
                self._path.unlink(missing_ok=True)

    def _say_how(self, key: str) -> None:
        again = self._options.again(self._run.plan.mode, self._path)
        key += "-input" if self._options.hosts == "-" else ""
        self._ui.say(Message(f"mesh.{key}", {"command": again}), err=True)


class _Progress(ProgressBar):
    """Counts pings: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, ui: Ui, total: int) -> None:
        super().__init__(ui, total)
        self._lang, self._shown_s = ui.lang, time.monotonic()

    def show(self, done: int, says: Message) -> None:
        """Shows how far it is, where it is time for that."""
        every_s = 0.2 if self._bar else 10.0
        if time.monotonic() - self._shown_s >= every_s:
            self._shown_s = time.monotonic()
            line = say(says, self._lang)
            self._show(line, completed=done, description=line)

    def _columns(self) -> tuple[ProgressColumn, ...]:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        return BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}")


def _go_on(ui: Ui, run: Run, kept: _Kept) -> None:
    """Makes the pings, shows how far it is, and keeps what is done after every batch."""
    total = run.plan.num_pings
    with _Progress(ui, total) as progress:
        done = total - run.left.num_pings

        def tell() -> None:
            nonlocal done
            done += 1
            progress.show(done, Message("mesh.progress", {"done": done, "total": total}))

        run.on_ping = tell
        for _ in run.run_remaining():
            kept.save()


def _report(ui: Ui, options: MeshOptions, finished: MeshResult) -> None:
    """Prints the report, or writes it where it was asked to go and says so. Raises BadInput."""
    found = document(finished, ui.lang)
    if options.form == "json":
        text = as_json(found, is_to_stdout=options.out in (None, "-"))
    elif options.form == "html":
        text = render_html(found, ui.lang, asked=shlex.join(["npuenv", "cluster", "mesh", "--hosts", options.hosts]))
    else:
        text = "".join(f"{line}\n" for line in lines(found, ui.lang, is_quiet=ui.is_quiet))
    if options.out is None or options.out == "-":
        print(text, end="", flush=True)
        return

    write(Path(options.out), text)
    for message in (*brief(found), Message("doctor.written", {"path": options.out})):
        ui.say(message, err=True)
