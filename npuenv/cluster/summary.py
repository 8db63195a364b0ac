"""The report on a cluster: the findings of each node and between nodes, and the exit codes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.checks import exit_code
from npuenv.cluster.nodeset import grouped
from npuenv.cluster.ssh import NodeFailure
from npuenv.core.errors import ExitCode
from npuenv.core.finding import PROBLEMS, Status
from npuenv.core.messages import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npuenv.checks import Finding
    from npuenv.cluster.inventory import Node
    from npuenv.core.messages import Message

# The node may be healthy: it could not be examined.
NOT_ASKED = frozenset(
    {
        NodeFailure.DENIED,
        NodeFailure.FORBIDDEN,
        NodeFailure.HOST_KEY,
        NodeFailure.CHANGED_KEY,
        NodeFailure.NO_KEYS,
        NodeFailure.NO_PYTHON,
        NodeFailure.TOO_OLD,
        NodeFailure.CLIENT,
    }
)
_PRECEDENCE = (ExitCode.INPUT, ExitCode.NOTHING_FITS, ExitCode.PROBLEMS, ExitCode.UNKNOWN)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The findings of one node, or why there are none."""

    node: Node
    findings: tuple[Finding, ...] = ()
    framework: str | None = None  # that it was checked for; None: any
    failure: NodeFailure | None = None
    line: str = ""  # with a failure: the line that decides
    at: str = ""  # the jump host that failed; "": the node itself
    seconds: float = 0.0
    is_unfit: bool = False  # the requested stack does not fit the machine

    @property
    def code(self) -> ExitCode:
        """The exit code of this node alone."""
        if self.failure is not None:
            return ExitCode.UNKNOWN if self.failure in NOT_ASKED else ExitCode.PROBLEMS
        return ExitCode.NOTHING_FITS if self.is_unfit else exit_code(self.findings, framework=self.framework)


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """All nodes in the order of the inventory, and the findings between them."""

    nodes: tuple[NodeReport, ...]
    agreement: tuple[Finding, ...] = ()
    why_no_agreement: Message | None = None  # None: the nodes were compared
    source: str = ""  # the inventory
    asked: frozenset[str] = frozenset()  # ids of findings between nodes that the user requested

    @property
    def code(self) -> ExitCode:
        """The worst of all, in the order of precedence."""
        codes = {node.code for node in self.nodes} | {self._code_of(finding) for finding in self.agreement}
        return next((code for code in _PRECEDENCE if code in codes), ExitCode.FINE)

    @property
    def silent(self) -> tuple[NodeReport, ...]:
        """The nodes that gave no capture."""
        return tuple(node for node in self.nodes if node.failure is not None)

    def _code_of(self, finding: Finding) -> ExitCode:
        """Unknown between nodes counts only if the user requested it: nodes without an answer have their own code."""
        if finding.status is Status.UNKNOWN and finding.check in self.asked:
            return ExitCode.UNKNOWN
        return ExitCode.PROBLEMS if finding.status is Status.FAIL else ExitCode.FINE


def merge_findings(nodes: Iterable[NodeReport], statuses: Sequence[Status] = PROBLEMS) -> list[Finding]:
    """The findings with these statuses; those with the same sentence are one, with all their nodes."""
    groups = grouped(
        ((finding.check, finding.status, say(finding.says, "en")), (finding, report.node.name))
        for report in nodes
        for finding in report.findings
        if finding.status in statuses
    )
    return [replace(group[0][0], nodes=tuple(name for _, name in group)) for group in groups.values()]


def group_nodes(nodes: Iterable[NodeReport]) -> list[tuple[NodeReport, ...]]:
    """The nodes grouped by result: the same failure, or the same number of findings of each status."""

    def result(report: NodeReport) -> tuple[object, ...]:
        numbers = tuple(sum(finding.status is status for finding in report.findings) for status in PROBLEMS)
        return report.failure, report.at, report.is_unfit, report.code, numbers

    return [tuple(group) for group in grouped((result(report), report) for report in nodes).values()]
