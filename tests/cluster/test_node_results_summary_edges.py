"""The exit code of a whole cluster, and what is told together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuenv.checks import Finding, Status
from npuenv.cluster.inventory import Node
from npuenv.cluster.node_results import ClusterReport, NodeReport
from npuenv.cluster.ssh import NodeFailure
from npuenv.core.errors import ExitCode
from npuenv.core.finding import Fix
from npuenv.core.messages import Message
from npuenv.report.cluster import group_nodes, merge_findings


def finding(status: Status, check: str = "machine.memory", key: str = "agree.skip-nothing") -> Finding:
    return Finding(check, status, Message(key), (), "test", None)


def judged(name: str, *findings: Finding, failure: NodeFailure | None = None, is_unfit: bool = False) -> NodeReport:
    return NodeReport(Node(name, name), findings, failure=failure, is_unfit=is_unfit)


FAILS = judged("fails", finding(Status.FAIL))
UNFIT = judged("unfit", finding(Status.FAIL), is_unfit=True)
DENIED = judged("denied", failure=NodeFailure.DENIED)
DEAD = judged("dead", failure=NodeFailure.UNREACHABLE)
WELL = judged("well", finding(Status.OK), finding(Status.WARN))


@pytest.mark.parametrize(
    ("nodes", "code"),
    [
        ([WELL], ExitCode.FINE),
        ([WELL, DENIED], ExitCode.UNKNOWN),
        ([DENIED, DEAD, WELL], ExitCode.PROBLEMS),
        ([DENIED, FAILS], ExitCode.PROBLEMS),
        ([FAILS, DENIED, UNFIT, DEAD], ExitCode.NOTHING_FITS),
        ([], ExitCode.FINE),
    ],
)
def test_the_worst_node_decides_and_nothing_that_fits_is_worse_than_a_problem(
    nodes: list[NodeReport], code: ExitCode
) -> None:
    assert ClusterReport(tuple(nodes)).code is code
    assert ClusterReport(tuple(reversed(nodes))).code is code


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.FAIL, ExitCode.PROBLEMS),
        (Status.UNKNOWN, ExitCode.FINE),
        (Status.WARN, ExitCode.FINE),
        (Status.SKIP, ExitCode.FINE),
    ],
)
def test_between_nodes_only_a_failure_counts(status: Status, code: ExitCode) -> None:
    assert ClusterReport((WELL,), (finding(status),)).code is code


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        *(
            (each, ExitCode.UNKNOWN)
            for each in (NodeFailure.DENIED, NodeFailure.HOST_KEY, NodeFailure.NO_PYTHON, NodeFailure.CLIENT)
        ),
        *(
            (each, ExitCode.PROBLEMS)
            for each in (NodeFailure.UNREACHABLE, NodeFailure.NOT_FOUND, NodeFailure.TIMED_OUT)
        ),
        *((each, ExitCode.PROBLEMS) for each in (NodeFailure.REFUSED, NodeFailure.BROKEN, NodeFailure.TOO_MUCH)),
    ],
)
def test_a_node_that_does_not_let_us_in_is_unknown_and_one_that_is_not_there_a_problem(
    failure: NodeFailure, code: ExitCode
) -> None:
    assert judged("n", failure=failure).code is code


def test_findings_are_told_together_when_check_status_and_words_are_the_same() -> None:
    nodes = [
        judged("a", finding(Status.FAIL), finding(Status.OK)),
        judged("b", finding(Status.FAIL)),
        judged("c", finding(Status.WARN)),
        judged("d", finding(Status.FAIL, key="agree.skip-unmet")),
        judged("e", finding(Status.FAIL, "machine.disk")),
    ]
    assert [shared.nodes for shared in merge_findings(nodes)] == [("a", "b"), ("c",), ("d",), ("e",)]


def test_nodes_are_alike_by_their_trouble_and_by_how_many_findings_of_each_status_they_have() -> None:
    one, other = judged("a", finding(Status.FAIL)), judged("b", finding(Status.FAIL, "machine.disk"))
    more = judged("c", finding(Status.FAIL), finding(Status.WARN))
    groups = group_nodes([one, DENIED, other, more, judged("d", failure=NodeFailure.HOST_KEY), WELL])
    assert [[each.node.name for each in group] for group in groups] == [["a", "b"], ["denied"], ["c"], ["d"], ["well"]]


def test_what_nodes_mend_in_different_ways_is_told_apart() -> None:
    def cured(*argv: str, version: str = "8.5.0") -> Finding:
        cure = Message("check_cann.fix-nnal-install", {"version": version})
        return replace(finding(Status.FAIL), fix=Fix(cure, (argv,)))

    findings = {"a": cured("x"), "b": cured("x", version="8.3.RC1"), "c": cured("y"), "d": cured("x")}
    told = merge_findings([judged(name, each) for name, each in findings.items()])
    assert [each.nodes for each in told] == [("a", "d"), ("b",), ("c",)]
    assert [each.fix for each in told] == [findings[name].fix for name in "abc"]
