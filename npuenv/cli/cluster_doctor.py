"""`npuenv doctor --hosts`: many nodes, or the saved captures of many. Start from `run`."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv import app
from npuenv.bundle.zipapp import content
from npuenv.checks import Status
from npuenv.cli.common import show_conflict
from npuenv.cli.progress import CountBar, report_pending
from npuenv.cluster.captures import LIMITS_S, CaptureWriter, NodeCapture, collect_captures, load_captures
from npuenv.cluster.consistency import check_consistency, check_identities
from npuenv.cluster.consistency.cards import check_card_count
from npuenv.cluster.inventory import Inventory, Node, read
from npuenv.cluster.parallel_ssh import PARALLEL
from npuenv.cluster.probing import ProbeReport, Transport, identify_nodes, probe, skipped_findings
from npuenv.cluster.probing.ports import has_dynamic_ports, ports_of, sets_hccl_ports
from npuenv.cluster.ssh import Options, describe_failure
from npuenv.cluster.summary import ClusterReport, NodeReport
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, say
from npuenv.report import cluster, cluster_forms
from npuenv.report.doctor import Scope
from npuenv.report.terminal import Manner
from npuenv.terminal.output import as_json, page_of, require_writable, write_output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.facts.collect import Facts
    from npuenv.host.base import Host
    from npuenv.terminal.options import DoctorCommand
    from npuenv.terminal.ui import Ui


_NETWORK_LEVEL = 2  # from which on a look may use the network


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How nodes are asked. None: as is usual."""

    hosts: str | None = None  # the inventory; None: what was saved is judged again
    ssh_config: str | None = None
    limit_s: float | None = None
    parallel: int | None = None
    shared: str | None = None  # a folder that ought to be the same one on all nodes; None: nothing is written anywhere


def run(ui: Ui, command: DoctorCommand, options: ClusterOptions) -> ExitCode:
    """Looks, tells, and gives the exit code of what was found. Raises BadInput."""
    _require_sense(command, options)
    if command.out is not None:
        require_writable(command.out)
    verdict = _look(ui, command, options) if options.hosts is not None else _look_again(ui, command)
    is_well = verdict.code is ExitCode.FINE and not any(each.status is Status.UNKNOWN for each in verdict.agreement)
    if command.format != "text" or command.out or not ui.is_quiet or not is_well:
        write_output(ui, command, _formed(ui, command, verdict))
    return verdict.code


def _require_sense(command: DoctorCommand, options: ClusterOptions) -> None:
    """Raises BadInput for options that have no meaning for many nodes, before any of them is asked."""
    others = {"--fix": command.is_fixing, "--from-report": command.report is not None, "--dry-run": command.is_dry_run}
    for option in (name for name, is_given in others.items() if is_given):
        args = {"option": option}
        raise BadInput(Message("cluster.not-with-hosts", args), Message("cluster.not-with-hosts-hint", args))
    if options.hosts is not None and command.capture is not None:
        raise BadInput(Message("cluster.two-sources"), Message("cluster.two-sources-hint"))
    if command.hashes and command.level == 0:
        raise BadInput(Message("doctor.hash-level"), Message("doctor.hash-level-hint"))
    if options.shared is not None and not options.shared.startswith("/"):
        args = {"path": options.shared}
        raise BadInput(Message("cluster.shared-relative", args), Message("cluster.shared-relative-hint", args))
    if options.ssh_config is not None and not Path(options.ssh_config).is_file():
        args = {"path": options.ssh_config}
        raise BadInput(Message("cluster.no-ssh-config", args), Message("cluster.no-ssh-config-hint"))


def _look(ui: Ui, command: DoctorCommand, options: ClusterOptions) -> ClusterReport:
    """Asks all nodes of the inventory, and judges each as its answer comes."""
    assert options.hosts is not None
    inventory = read(options.hosts)
    judge = _Judge(ui, command, inventory.source)
    limit_s = options.limit_s or LIMITS_S[command.level]
    parallel = options.parallel or PARALLEL
    args = {"count": len(inventory.nodes), "parallel": parallel, "limit": f"{limit_s:g}"}
    ui.say(Message("cluster.asking", args), err=True)
    way = Transport(options=Options(config=options.ssh_config), parallel=parallel)
    _collect(ui, command, inventory, judge, way, limit_s)
    _try_each_other(ui, command, inventory, judge, way, options.shared)
    asked = {"agree.ports", "agree.packets"} if command.level >= _NETWORK_LEVEL else set()
    return judge.verdict(inventory, asked=frozenset(asked | ({"agree.storage"} if options.shared else set())))


def _collect(
    ui: Ui, command: DoctorCommand, inventory: Inventory, judge: _Judge, way: Transport, limit_s: float
) -> None:
    """A capture of each node, judged as it comes; kept where that was asked for."""
    with contextlib.ExitStack() as stack:
        keeper = stack.enter_context(CaptureWriter(command.save, inventory)) if command.save else None
        answers = collect_captures(inventory.nodes, _program(), judge.words, limit_s=limit_s, transport=way)
        stack.enter_context(contextlib.closing(answers))
        meter = stack.enter_context(CountBar(ui, len(inventory.nodes)))
        for got in answers:
            if keeper:
                keeper.add(got)
            judge.take(got)
            meter.tick(_line(ui, got))
    if keeper:
        ui.say(Message("cluster.saved", {"count": keeper.count, "path": str(command.save)}), err=True)


def _try_each_other(
    ui: Ui, command: DoctorCommand, inventory: Inventory, judge: _Judge, way: Transport, shared: str | None
) -> None:
    """Lets the nodes that answered say who they are and, from the level on that uses the network, try each other.

    Those whose Python is too old for the doctor take part where it can run what nodes say of each other.
    """
    here = [node for node in inventory.nodes if judge.can_probe(node)]
    if len(here) < 2 or (command.level == 0 and shared is None):
        return
    ui.say(Message("cluster.meeting", {"count": len(here)}), err=True)
    way = replace(way, ask=report_pending(ui))
    if command.level >= _NETWORK_LEVEL or shared is not None:
        ports, has_dynamic = ports_of(judge.sessions), has_dynamic_ports(judge.sessions)
        judge.probed = probe(here, way, ports=ports, has_dynamic=has_dynamic, shared=shared)
    else:
        judge.probed = ProbeReport(identify_nodes(here, way)[0], skipped_findings(), {})


def _look_again(ui: Ui, command: DoctorCommand) -> ClusterReport:
    """Judges a folder of captures as if they had just come in."""
    assert command.capture is not None
    inventory, answers = load_captures(command.capture)
    judge = _Judge(ui, command, str(command.capture))
    for got in answers:
        judge.take(got)
    return judge.verdict(inventory)


@functools.cache
def _program() -> bytes:
    """The doctor as one file; packing it takes a second."""
    return content()


class _Judge:
    """Judges nodes one by one as for a single machine, and then what is between them."""

    def __init__(self, ui: Ui, command: DoctorCommand, source: str) -> None:
        self._ui, self._command, self._source = ui, command, source
        self._stack = app.checkup.find_stack(command)  # an unknown name is said before any node is asked
        self._judged: dict[str, NodeReport] = {}
        self._facts: dict[str, Facts] = {}
        self._meeting: set[str] = set()
        self.probed: ProbeReport | None = None  # what the nodes said of each other; None: not asked

    def can_probe(self, node: Node) -> bool:
        """Whether the node can say what there is between it and others."""
        return node.name in self._meeting

    @property
    def sessions(self) -> list[Mapping[str, str]]:
        """The variables of each node that was heard, and of this session where it says where HCCL's ports are."""
        here = [os.environ] if sets_hccl_ports(os.environ) else []
        return [*(facts.environment.value or {} for facts in self._facts.values()), *here]

    @property
    def words(self) -> list[str]:
        """The options for the doctor on a node, which only looks: what it saw is judged here."""
        command = self._command
        framework = command.framework or (self._stack.framework if self._stack else None)
        options = {"--level": str(command.level), "--for": framework, "--python": command.python}
        words = [word for name, value in options.items() if value is not None for word in (name, value)]
        return ["--quiet", "--json", *words, *(["--hash"] if command.hashes else [])]

    def take(self, got: NodeCapture) -> None:
        """Judges what a node gave."""
        if got.can_probe:
            self._meeting.add(got.node.name)
        if got.host is None:
            judged = NodeReport(got.node, failure=got.failure, line=got.line, at=got.at, seconds=got.seconds)
            self._judged[got.node.name] = judged
        else:
            self._judged[got.node.name] = self._judge(got.node, got.host, got.seconds)

    def verdict(self, inventory: Inventory, *, asked: frozenset[str] = frozenset()) -> ClusterReport:
        """What all came to, in the order of the inventory; `asked` as in `ClusterReport`."""
        nodes = tuple(self._judged[node.name] for node in inventory.nodes)
        facts = {node.name: self._facts[node.name] for node in inventory.nodes if node.name in self._facts}
        identities, more = (self.probed.identities, self.probed.findings) if self.probed else (None, ())
        if len(facts) < 2 and identities is None:
            return ClusterReport(nodes, why_no_agreement=Message("cluster.one-node"), source=self._source)
        cardless = {node.name for node in inventory.nodes if node.cards == 0}
        head = inventory.nodes[0].name  # as `npuenv cluster up` takes it
        found = check_consistency(facts, identities=identities, cardless=cardless, head=head) or check_identities(
            facts, identities or {}
        )
        return ClusterReport(nodes, (*found, *more), source=self._source, asked=asked)

    def _judge(self, node: Node, host: Host, seconds: float) -> NodeReport:

        # What it is for without cards is not training: neither the stack nor the framework is asked of it.
        command = replace(self._command, framework="cpu", stack=None) if node.cards == 0 else self._command
        try:
            judged = app.doctor(command, host)
        except app.ConflictError as error:
            show_conflict(replace(self._ui, is_json=False), error)  # on stderr, never as a second document
            return NodeReport(node, seconds=seconds, is_unfit=True)
        self._facts[node.name] = judged.facts
        is_asked = judged.framework != "cpu" or node.cards == 0
        number = check_card_count(node, judged.facts, self._source) if is_asked else None
        findings = (*judged.findings, *([number] if number else []))
        return NodeReport(node, findings, judged.framework, seconds=seconds)


def _line(ui: Ui, got: NodeCapture) -> str:
    """A node in the progress; with its trouble where it has one."""
    if got.failure is None:
        return f"{got.node.name} ({got.seconds:.1f} s)"
    says = describe_failure(got.failure, got.node.address, got.at)
    return say(Message("cluster.silent-node", {"name": got.node.name, "says": says}), ui.lang)


def _formed(ui: Ui, command: DoctorCommand, verdict: ClusterReport) -> str:
    """The report in the form that was asked for."""
    asked = Scope(command.level, command.framework, command.stack)
    if command.format == "text":
        page = page_of(ui, is_terminal=command.out is None and sys.stdout.isatty())
        manner = Manner(
            lang=ui.lang, is_verbose=ui.is_verbose, is_quiet=ui.is_quiet, again=command.again, can_fix=False
        )
        return cluster.render(verdict, page, manner)
    if command.format == "json":
        return as_json(cluster.document(verdict, asked, ui.lang), is_to_stdout=command.out in (None, "-"))

    return cluster_forms.formed(command.format, verdict, lang=ui.lang, again=command.again)
