"""Pings between the device addresses of all cards of an inventory: `ping_mesh`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.app.progress import SILENT, Progress
from npuenv.cluster import mesh, parallel_ssh
from npuenv.cluster.inventory import read
from npuenv.cluster.mesh import FULL, SAMPLED, PingOutcome, Results, running
from npuenv.cluster.mesh.document import MeshResult, estimate
from npuenv.cluster.parallel_ssh import Ask, Transport
from npuenv.cluster.ssh import Options
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.host.writing import cannot_save
from npuenv.install.environments import data_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.cluster.inventory import Inventory
    from npuenv.cluster.mesh import MeshDevices
    from npuenv.cluster.mesh.running import MeshRun

PARALLEL = 512  # the most nodes at once


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """Which cards are pinged, and how."""

    hosts: str  # the inventory
    mode: str | None = None  # full, sampled; None: by the number of devices
    state: Path | None = None  # of an interrupted run that is resumed
    limit_s: float = running.LIMIT_S  # of one ping
    parallel: int = PARALLEL
    ssh_config: str | None = None
    report: tuple[str, ...] = ()  # options of the command line about the report, for the command that resumes


def ping_mesh(options: MeshOptions, progress: Progress = SILENT, ask: Ask = parallel_ssh.ask) -> MeshResult:
    """What all pings came to. `ask` is for the survey of the nodes before them. Raises BadInput."""
    began = time.monotonic()
    inventory = read(options.hosts)
    # Nodes that are to have no cards have nothing to ping with, and nothing that could be pinged.
    inventory = replace(inventory, nodes=tuple(node for node in inventory.nodes if node.cards != 0))
    nodes = {node.name: node for node in inventory.nodes}
    transport = Transport(options=Options(config=options.ssh_config), parallel=options.parallel)
    progress.note(Message("mesh.asking", {"count": len(nodes)}))
    outputs = running.survey(inventory.nodes, running.SshRunner(nodes, replace(transport, ask=ask)))
    survey = mesh.find_devices(inventory.nodes, outputs)
    run, state = _open_run(options, inventory, survey, running.SshRunner(nodes, transport))
    with _saved(options, progress, run, state):
        _estimate(progress, run)
        _run_pings(progress, run, state)
    missing = (*survey.missing, *mesh.vanished_devices(run.plan.devices, survey))
    return MeshResult(run.plan, run.results, missing, run.lost, time.monotonic() - began)


def _open_run(
    options: MeshOptions, inventory: Inventory, survey: MeshDevices, runner: running.SshRunner
) -> tuple[MeshRun, Path]:
    """The run, new or resumed, and the file of its state. Raises BadInput."""
    if options.state is not None:
        results, mode = running.load_results(options.state)
        if options.mode not in (None, mode):
            args = {"path": str(options.state), "mode": Message(f"mesh.mode-{mode}")}
            raise BadInput(Message("mesh.other-mode", args), Message("mesh.other-mode-hint"))
        running.require_same_devices(
            results.devices, survey.devices, {node.name for node in inventory.nodes}, options.state
        )
    else:
        results = Results.empty(survey.devices)
        mode = options.mode or (FULL if len(survey.devices) <= mesh.MOST_FOR_FULL else SAMPLED)
    plan = (mesh.full if mode == FULL else mesh.sampled)(results.devices)
    return running.MeshRun(plan, results, runner, limit_s=options.limit_s), options.state or _new_state(results)


def _new_state(results: Results) -> Path:
    digest = hashlib.sha256(repr(results.devices).encode()).hexdigest()[:8]
    return Path(data_folder(os.environ), "mesh", f"{time.strftime('%Y%m%d-%H%M%S')}-{digest}.json")


def _estimate(progress: Progress, run: MeshRun) -> None:
    """Reports how long the run takes, measured on the first pings, and asks if that is much."""
    is_resumed = run.results.num_timed > 0
    each_s = run.measure()
    if each_s is None:
        return
    progress.note(Message("mesh.estimate", estimate(run.plan, each_s, run.expected_s(run.plan))))
    if is_resumed:
        left = estimate(run.left, each_s, run.expected_s(run.left))
        args = {"left": left["pings"], "pings": run.plan.num_pings, "time": left["time"]}
        progress.note(Message("mesh.estimate-left", args))
    elif run.plan.mode == FULL and len(run.plan.devices) > mesh.MOST_FOR_FULL:
        progress.confirm(Message("mesh.large", {"most": mesh.MOST_FOR_FULL}), Message("mesh.large-hint"))


def _run_pings(progress: Progress, run: MeshRun, state: Path) -> None:
    """Makes the pings that are left, and saves the results after every batch."""
    total = run.plan.num_pings
    with progress.pings(total) as show:
        done = total - run.left.num_pings

        def count() -> None:
            nonlocal done
            done += 1
            show(done)

        run.on_ping = count
        for _ in run.run_remaining():
            _save(run, state)


@contextlib.contextmanager
def _saved(options: MeshOptions, progress: Progress, run: MeshRun, state: Path) -> Iterator[None]:
    """Saves what is done if the block is interrupted or leaves pings without an answer; else removes the file."""
    try:
        yield
    except KeyboardInterrupt:
        if run.results.num_timed:
            _save(run, state)
            progress.note(_how_to_resume("go-on", options, run.plan.mode, state))
        raise
    if any(True for _ in run.results.pairs(PingOutcome.UNTRIED, PingOutcome.SILENT)):
        _save(run, state)
        progress.note(_how_to_resume("retry", options, run.plan.mode, state))
    elif options.state is None:
        state.unlink(missing_ok=True)


def _how_to_resume(key: str, options: MeshOptions, mode: str, state: Path) -> Message:
    key += "-input" if options.hosts == "-" else ""
    return Message(f"mesh.{key}", {"command": resume_command(options, mode, state)})


def resume_command(options: MeshOptions, mode: str, state: Path) -> str:
    """The command line that resumes a run, and gives the same report."""
    words = ["npuenv", "cluster", "mesh", "--hosts", options.hosts, f"--{mode}", "--resume", str(state)]
    words += ["--ssh-config", options.ssh_config] if options.ssh_config else []
    words += ["--limit", f"{options.limit_s:g}"] if options.limit_s != running.LIMIT_S else []
    words += ["--parallel", str(options.parallel)] if options.parallel != PARALLEL else []
    return shlex.join([*words, *options.report])


def _save(run: MeshRun, state: Path) -> None:
    try:
        running.save_results(state, run.results, run.plan.mode)
    except OSError as error:
        raise cannot_save(state, error) from error
