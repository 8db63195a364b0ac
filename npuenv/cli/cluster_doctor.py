"""`npuenv doctor --hosts`: many nodes, or the saved captures of many."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from npuenv.app.nodes import NodesOptions, doctor_nodes
from npuenv.checks import Status
from npuenv.cli.progress import StepProgress, report_pending
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message
from npuenv.report import cluster
from npuenv.report.doctor import Scope
from npuenv.report.terminal import Manner
from npuenv.terminal.output import page_of, require_writable, write_output
from npuenv.terminal.run import as_json

if TYPE_CHECKING:
    from npuenv.cluster.node_results import ClusterReport
    from npuenv.terminal.options import DoctorCommand
    from npuenv.terminal.run import Ui


def run(ui: Ui, command: DoctorCommand, nodes: dict[str, Any]) -> ExitCode:
    """Examines the nodes, reports, and gives the exit code. `nodes`: the values of `NodesOptions`. Raises BadInput."""
    refused = {"--fix": command.is_fixing, "--from-report": command.report is not None, "--dry-run": command.is_dry_run}
    many = "--hosts" if nodes["hosts"] is not None else f"--from {command.capture}"
    for option in (name for name, is_given in refused.items() if is_given):
        args = {"option": option, "many": many}
        raise BadInput(Message("cluster.not-with-hosts", args), Message("cluster.not-with-hosts-hint", args))
    options = NodesOptions(save=command.save, **nodes)
    options.validate(command)
    if command.out is not None:
        require_writable(command.out)
    report = doctor_nodes(options, command, StepProgress(ui), report_pending(ui))
    is_well = report.code is ExitCode.FINE and not any(each.status is Status.UNKNOWN for each in report.agreement)
    if command.format != "text" or command.out or not ui.is_quiet or not is_well:
        write_output(ui, command, _render(ui, command, report))
    return report.code


def _render(ui: Ui, command: DoctorCommand, report: ClusterReport) -> str:
    """The report in the format that was asked for."""
    if command.format == "text":
        page = page_of(ui, is_terminal=command.out is None and sys.stdout.isatty())
        manner = Manner(
            lang=ui.lang, is_verbose=ui.is_verbose, is_quiet=ui.is_quiet, again=command.again, can_fix=False
        )
        return cluster.render(report, page, manner)
    if command.format == "json":
        scope = Scope(command.level, command.framework, command.stack)
        return as_json(cluster.document(report, scope, ui.lang), is_to_stdout=command.out in (None, "-"))
    return cluster.formed(command.format, report, lang=ui.lang, again=command.again)
