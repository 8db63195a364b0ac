"""The exit code of a whole cluster, and what is told together."""

from __future__ import annotations

import pytest

from npuenv.checks import Finding, Status
from npuenv.cluster.summary import Judged, Verdict, alike, told_together
from npuenv.cluster.types import Node, Trouble
from npuenv.core.errors import ExitCode
from npuenv.core.messages import Message


def finding(status: Status, check: str = "machine.memory", key: str = "agree.skip-nothing") -> Finding:
    return Finding(check, status, Message(key), (), "test", None)


def judged(name: str, *findings: Finding, trouble: Trouble | None = None, is_unfit: bool = False) -> Judged:
    return Judged(Node(name, name), findings, trouble=trouble, is_unfit=is_unfit)


FAILS = judged("fails", finding(Status.FAIL))
UNFIT = judged("unfit", finding(Status.FAIL), is_unfit=True)
DENIED = judged("denied", trouble=Trouble.DENIED)
DEAD = judged("dead", trouble=Trouble.UNREACHABLE)
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
    nodes: list[Judged], code: ExitCode
) -> None:
    assert Verdict(tuple(nodes)).code is code
    assert Verdict(tuple(reversed(nodes))).code is code


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
    assert Verdict((WELL,), (finding(status),)).code is code


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        *((each, ExitCode.UNKNOWN) for each in (Trouble.DENIED, Trouble.HOST_KEY, Trouble.NO_PYTHON, Trouble.CLIENT)),
        *((each, ExitCode.PROBLEMS) for each in (Trouble.UNREACHABLE, Trouble.NOT_FOUND, Trouble.TIMED_OUT)),
        *((each, ExitCode.PROBLEMS) for each in (Trouble.REFUSED, Trouble.BROKEN, Trouble.TOO_MUCH)),
    ],
)
def test_a_node_that_does_not_let_us_in_is_unknown_and_one_that_is_not_there_a_problem(
    trouble: Trouble, code: ExitCode
) -> None:
    assert judged("n", trouble=trouble).code is code


def test_findings_are_told_together_when_check_status_and_words_are_the_same() -> None:
    nodes = [
        judged("a", finding(Status.FAIL), finding(Status.OK)),
        judged("b", finding(Status.FAIL)),
        judged("c", finding(Status.WARN)),
        judged("d", finding(Status.FAIL, key="agree.skip-unmet")),
        judged("e", finding(Status.FAIL, "machine.disk")),
    ]
    assert [shared.names for shared in told_together(nodes)] == [("a", "b"), ("c",), ("d",), ("e",)]


def test_nodes_are_alike_by_their_trouble_and_by_how_many_findings_of_each_status_they_have() -> None:
    one, other = judged("a", finding(Status.FAIL)), judged("b", finding(Status.FAIL, "machine.disk"))
    more = judged("c", finding(Status.FAIL), finding(Status.WARN))
    groups = alike([one, DENIED, other, more, judged("d", trouble=Trouble.HOST_KEY), WELL])
    assert [[each.node.name for each in group] for group in groups] == [["a", "b"], ["denied"], ["c"], ["d"], ["well"]]
