"""What is wrong in a cluster, node by node and between them. Start from `Verdict`; `told_together` folds what is alike.

Nothing is judged here: findings come from the ordinary checks and from `npuenv.cluster.consistency`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npuenv.checks import Status, exit_code
from npuenv.cluster.types import Trouble
from npuenv.core.errors import ExitCode
from npuenv.core.messages import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npuenv.checks import Finding
    from npuenv.cluster.types import Node
    from npuenv.core.messages import Message

PROBLEMS = (Status.FAIL, Status.UNKNOWN, Status.WARN)
# The node may be well: it is we who are not let in, or have nothing there to ask with.
NOT_ASKED = frozenset(
    {
        Trouble.DENIED,
        Trouble.FORBIDDEN,
        Trouble.HOST_KEY,
        Trouble.CHANGED_KEY,
        Trouble.NO_KEYS,
        Trouble.NO_PYTHON,
        Trouble.TOO_OLD,
        Trouble.CLIENT,
    }
)
_PRECEDENCE = (ExitCode.INPUT, ExitCode.NOTHING_FITS, ExitCode.PROBLEMS, ExitCode.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Judged:
    """One node: what the checks say of it, or why it could not be asked."""

    node: Node
    findings: tuple[Finding, ...] = ()
    framework: str | None = None  # that it was judged for; None: not said
    trouble: Trouble | None = None
    line: str = ""  # with a trouble: the line that decides
    at: str = ""  # with a trouble of a host on the way there: that host
    seconds: float = 0.0
    is_unfit: bool = False  # the stack that was asked for fits no machine like it

    @property
    def code(self) -> ExitCode:
        """The exit code of this node alone."""
        if self.trouble is not None:
            return ExitCode.UNKNOWN if self.trouble in NOT_ASKED else ExitCode.PROBLEMS
        return ExitCode.NOTHING_FITS if self.is_unfit else exit_code(self.findings, framework=self.framework)


@dataclass(frozen=True, slots=True)
class Verdict:
    """All nodes in the order of the inventory, and what does not agree between them."""

    nodes: tuple[Judged, ...]
    agreement: tuple[Finding, ...] = ()
    why_no_agreement: Message | None = None  # None: it was looked at
    source: str = ""  # the inventory
    asked: frozenset[str] = frozenset()  # what the user asked for by name, as ids of findings between nodes

    @property
    def code(self) -> ExitCode:
        """The worst of all, in the order of precedence."""
        codes = {node.code for node in self.nodes} | {self._code_of(finding) for finding in self.agreement}
        return next((code for code in _PRECEDENCE if code in codes), ExitCode.FINE)

    @property
    def silent(self) -> tuple[Judged, ...]:
        """The nodes that gave no capture."""
        return tuple(node for node in self.nodes if node.trouble is not None)

    def _code_of(self, finding: Finding) -> ExitCode:
        """Between nodes, what could not be told is no reason to stop, but where the user has asked for just that: a
        node that could not be asked counts by itself.
        """
        if finding.status is Status.UNKNOWN and finding.check in self.asked:
            return ExitCode.UNKNOWN
        return ExitCode.PROBLEMS if finding.status is Status.FAIL else ExitCode.FINE


@dataclass(frozen=True, slots=True)
class Shared:
    """A finding that several nodes have in the same words."""

    finding: Finding  # of the first of them, with its evidence
    names: tuple[str, ...]


@dataclass
class _Group:
    finding: Finding
    names: list[str] = field(default_factory=list)


def told_together(nodes: Iterable[Judged], statuses: Sequence[Status] = PROBLEMS) -> list[Shared]:
    """The findings with these statuses, those in the same words together with the names of their nodes."""
    groups: dict[tuple[str, Status, str], _Group] = {}
    for judged in nodes:
        for finding in judged.findings:
            if finding.status in statuses:
                key = (finding.check, finding.status, say(finding.says, "en"))
                groups.setdefault(key, _Group(finding)).names.append(judged.node.name)
    return [Shared(group.finding, tuple(group.names)) for group in groups.values()]


def alike(nodes: Iterable[Judged]) -> list[tuple[Judged, ...]]:
    """The nodes that came to the same, together: the same trouble, or as many findings of each status."""
    groups: dict[object, list[Judged]] = {}
    for judged in nodes:
        numbers = tuple(sum(finding.status is status for finding in judged.findings) for status in PROBLEMS)
        groups.setdefault((judged.trouble, judged.at, judged.is_unfit, judged.code, numbers), []).append(judged)
    return [tuple(group) for group in groups.values()]
