"""`doctor` for many nodes: each is examined like a single machine, then they are compared with each other."""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.app import checkup
from npuenv.app.progress import SILENT, Progress
from npuenv.bundle.zipapp import content
from npuenv.cluster import parallel_ssh
from npuenv.cluster.consistency import check_consistency, check_identities
from npuenv.cluster.consistency.cards import check_card_count
from npuenv.cluster.inventory import read
from npuenv.cluster.node_results import (
    LIMITS_S,
    CaptureWriter,
    ClusterReport,
    NodeReport,
    collect_captures,
    load_captures,
)
from npuenv.cluster.parallel_ssh import Ask, Transport
from npuenv.cluster.ports import has_dynamic_ports, ports_of, sets_hccl_ports
from npuenv.cluster.probing import ProbeReport, identify_nodes, probe, skipped_findings
from npuenv.cluster.ssh import Options, describe_failure, require_config
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.resolve.types import ConflictError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from npuenv.app.examine import DoctorOptions
    from npuenv.cluster.inventory import Inventory, Node
    from npuenv.cluster.node_results import NodeCapture
    from npuenv.facts.collect import Facts
    from npuenv.host import Host

_NETWORK_LEVEL = 2  # from which on the nodes may use the network


@dataclass(frozen=True, slots=True)
class NodesOptions:
    """Which nodes are examined, and how they are reached. None: the default."""

    hosts: str | None = None  # the inventory; None: the folder of captures that the doctor's options name
    ssh_config: str | None = None
    limit_s: float | None = None
    parallel: int | None = None
    shared: str | None = None  # a folder that ought to be the same one on all nodes; None: nothing is written anywhere
    save: Path | None = None  # the folder for the captures

    def validate(self, doctor: DoctorOptions) -> None:
        """Raises BadInput for options that contradict each other, before any node is contacted."""
        if self.hosts is not None and doctor.capture is not None:
            raise BadInput(Message("cluster.two-sources"), Message("cluster.two-sources-hint"))
        doctor.validate()
        if self.shared is not None and not self.shared.startswith("/"):
            args = {"path": self.shared}
            raise BadInput(Message("cluster.shared-relative", args), Message("cluster.shared-relative-hint", args))
        require_config(self.ssh_config)


def doctor_nodes(
    options: NodesOptions, doctor: DoctorOptions, progress: Progress = SILENT, ask: Ask = parallel_ssh.ask
) -> ClusterReport:
    """What is wrong with each node of an inventory, or of a folder of captures, and between them. Raises BadInput.

    `ask` is for the rounds after the captures, whose answers `progress` does not show one by one.
    """
    options.validate(doctor)
    if options.hosts is not None:
        return _examine_nodes(options, doctor, progress, ask)
    assert doctor.capture is not None
    inventory, captures = load_captures(doctor.capture)
    examination = _Examination(doctor, str(doctor.capture), progress)
    for capture in captures:
        examination.add(capture)
    return examination.report(inventory)


def _examine_nodes(options: NodesOptions, doctor: DoctorOptions, progress: Progress, ask: Ask) -> ClusterReport:
    """Collects a capture of every node and examines each as it arrives, then has the nodes probe each other."""
    assert options.hosts is not None
    inventory = read(options.hosts)
    examination = _Examination(doctor, inventory.source, progress)
    limit_s = options.limit_s or LIMITS_S[doctor.level]
    parallel = options.parallel or parallel_ssh.PARALLEL
    args = {"count": len(inventory.nodes), "parallel": parallel, "limit": f"{limit_s:g}"}
    progress.note(Message("cluster.asking", args))
    transport = Transport(options=Options(config=options.ssh_config), parallel=parallel)
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(CaptureWriter(options.save, inventory)) if options.save else None
        captures = collect_captures(inventory.nodes, content(), examination.words, limit_s=limit_s, transport=transport)
        stack.enter_context(contextlib.closing(captures))
        show = stack.enter_context(progress.counting(len(inventory.nodes)))
        for capture in captures:
            if writer:
                writer.add(capture)
            examination.add(capture)
            show(_line(capture))
    if writer:
        progress.note(Message("cluster.saved", {"count": writer.count, "path": str(options.save)}))
    examination.probe(inventory, replace(transport, ask=ask), options.shared)
    asked = {"agree.ports", "agree.packets"} if doctor.level >= _NETWORK_LEVEL else set()
    return examination.report(inventory, asked=frozenset(asked | ({"agree.storage"} if options.shared else set())))


def _line(capture: NodeCapture) -> str | Message:
    """A node that has answered, with its seconds, or why it has not."""
    if capture.failure is None:
        return f"{capture.node.name} ({capture.seconds:.1f} s)"
    says = describe_failure(capture.failure, capture.node.address, capture.at)
    return Message("cluster.silent-node", {"name": capture.node.name, "says": says})


class _Examination:
    """Examines nodes one by one as for a single machine, and then what lies between them."""

    def __init__(self, doctor: DoctorOptions, source: str, progress: Progress) -> None:
        self._doctor, self._source, self._progress = doctor, source, progress
        self._stack = checkup.find_stack(doctor)  # an unknown name is refused before any node is contacted
        self._reports: dict[str, NodeReport] = {}
        self._facts: dict[str, Facts] = {}
        self._can_probe: set[str] = set()
        self._probed: ProbeReport | None = None  # None: the nodes did not probe each other

    @property
    def words(self) -> list[str]:
        """The options for the doctor on a node, which only records: its capture is examined here.

        Not as JSON: it is asked for its reason on stderr if it gives no capture.
        """
        framework = self._doctor.framework or (self._stack.framework if self._stack else None)
        chosen = replace(self._doctor, framework=framework, stack=None).chosen()
        return ["--quiet", *itertools.chain.from_iterable(chosen)]

    def add(self, capture: NodeCapture) -> None:
        """Examines one node."""
        node = capture.node
        if capture.can_probe:
            self._can_probe.add(node.name)
        if capture.host is None:
            self._reports[node.name] = NodeReport.without(capture)
        else:
            self._reports[node.name] = self._examine(node, capture.host, capture.seconds)

    def _examine(self, node: Node, host: Host, seconds: float) -> NodeReport:
        # A node that is to have no cards does not train: neither the stack nor the framework is asked of it.
        doctor = replace(self._doctor, framework="cpu", stack=None) if node.cards == 0 else self._doctor
        try:
            result = checkup.doctor(doctor, host)
        except ConflictError as error:
            self._progress.conflict(error)
            return NodeReport(node, seconds=seconds, is_unfit=True)
        self._facts[node.name] = result.facts
        has_cards = result.framework != "cpu" or node.cards == 0
        count = check_card_count(node, result.facts, self._source) if has_cards else None
        return NodeReport(node, (*result.findings, *([count] if count else [])), result.framework, seconds=seconds)

    def probe(self, inventory: Inventory, transport: Transport, shared: str | None) -> None:
        """Has the nodes say who they are and, from the level on that uses the network, try each other.

        Those whose Python is too old for the doctor take part where it can run the programs for this.
        """
        nodes = [node for node in inventory.nodes if node.name in self._can_probe]
        level = self._doctor.level
        if len(nodes) < 2 or (level == 0 and shared is None):
            return
        self._progress.note(Message("cluster.meeting", {"count": len(nodes)}))
        if level < _NETWORK_LEVEL and shared is None:
            self._probed = ProbeReport(identify_nodes(nodes, transport)[0], skipped_findings())
            return
        sessions: list[Mapping[str, str]] = [facts.environment.value or {} for facts in self._facts.values()]
        if sets_hccl_ports(os.environ):
            sessions.append(os.environ)
        dynamic = has_dynamic_ports(sessions)
        self._probed = probe(nodes, transport, ports=ports_of(sessions), has_dynamic=dynamic, shared=shared)

    def report(self, inventory: Inventory, *, asked: frozenset[str] = frozenset()) -> ClusterReport:
        """All nodes in the order of the inventory; `asked` as in `ClusterReport`."""
        nodes = tuple(self._reports[node.name] for node in inventory.nodes)
        facts = {node.name: self._facts[node.name] for node in inventory.nodes if node.name in self._facts}
        identities, more = (self._probed.identities, self._probed.findings) if self._probed else (None, ())
        if len(facts) < 2 and identities is None:
            return ClusterReport(nodes, why_no_agreement=Message("cluster.one-node"), source=self._source)
        cardless = {node.name for node in inventory.nodes if node.cards == 0}
        head = inventory.nodes[0].name  # as `npuenv cluster up` takes it
        found = check_consistency(facts, identities=identities, cardless=cardless, head=head) or check_identities(
            facts, identities or {}
        )
        return ClusterReport(nodes, (*found, *more), source=self._source, asked=asked)
