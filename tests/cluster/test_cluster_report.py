"""The report on many nodes stays readable: what many have alike is told of a few, and all are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuenv.checks import Finding, Status, check_all
from npuenv.cluster.consistency import check_consistency
from npuenv.cluster.inventory import Node
from npuenv.cluster.node_results import ClusterReport, NodeReport
from npuenv.cluster.ssh import NodeFailure
from npuenv.core.errors import ExitCode
from npuenv.core.fact import Evidence
from npuenv.core.messages import LANGUAGES, Message
from npuenv.report import cluster
from npuenv.report.terminal import Manner, Page
from tests.cluster.uniform import planted
from tests.support.sentences import says


def full(number: int, *, is_apart: bool = True) -> Finding:
    """A finding about the cards of a node, in words of its own or in common ones."""
    says = Message("agree.said", {"who": "card", "value": f"value-{number}" if is_apart else "value"})
    line = (Evidence("/etc/hccn.conf", f"line {number}"), Evidence("/etc/hccn.conf", f"other {number}"))
    return Finding("network.addresses-valid", Status.FAIL, says, line, "source", None)


def verdict(count: int, *, is_apart: bool = True) -> ClusterReport:
    nodes = [Node(f"node{number:02}", f"10.0.0.{number}") for number in range(1, count + 1)]
    found = [NodeReport(node, (full(at, is_apart=is_apart),), "verl") for at, node in enumerate(nodes, start=1)]
    return ClusterReport(tuple(found), why_no_agreement=Message("cluster.one-node"), source="hosts")


def text(found: ClusterReport, *, is_verbose: bool = False) -> str:
    manner = Manner(lang="en", is_verbose=is_verbose, is_quiet=False, again="npuenv doctor", can_fix=False)
    return cluster.render(found, Page(width=200, is_terminal=False), manner)


@pytest.mark.slow
def test_of_many_nodes_with_one_finding_in_other_words_three_are_told_and_all_are_named() -> None:
    told = text(verdict(64))
    assert [f"value-{number}\n" in told for number in (1, 2, 3, 4, 64)] == [True, True, True, False, False]
    (line,) = (line for line in told.splitlines() if "node[04-64] " in line)
    assert says(line, "cluster.also", count=61)
    assert all(f"value-{number}\n" in text(verdict(64), is_verbose=True) for number in range(1, 65))
    assert all(f"value-{number}\n" in text(verdict(4)) for number in range(1, 5)), "four take no more room than three"
    assert not says(text(verdict(64, is_apart=False)), "cluster.also")


def test_what_is_not_gathered_stays_in_its_order() -> None:
    rows = [replace(full(number), nodes=(f"n{number}",)) for number in range(1, 7)]
    other = Finding("network.other", Status.FAIL, Message("agree.word-none"), (), "s", None, nodes=("n9",))
    told = cluster.gathered([*rows[:2], other, *rows[2:]])
    assert [each for each, _ in told] == [*rows[:2], other, rows[2]]
    assert [more for _, more in told] == [(), (), (), tuple(rows[3:])]
    assert cluster.names_of(rows[3:]) == ("n[4-6]", 3)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_folds_away_what_many_have_and_begins_with_the_worst(lang: str) -> None:
    nodes = [NodeReport(Node("a", "a"), (), "verl"), *verdict(20).nodes]
    silent = [Node(f"s{number:02}", f"s{number:02}") for number in range(9)]
    nodes += [NodeReport(node, failure=NodeFailure.NOT_FOUND, line=f"no {node.name}") for node in silent]
    page = cluster.formed("html", ClusterReport(tuple(nodes), source="hosts"), lang=lang, again="npuenv doctor")
    sections = page.partition("<h2>")[2]
    assert sections.index('class="finding fail"') < sections.index('class="finding ok"')
    assert page.count("<dt><code>/etc/hccn.conf</code></dt>") == 3, "once for each that is told, not for each line"
    folded = page.partition('<details class="finding fail">')[2].partition("</details>")[0]
    assert folded.count("<dt><code>node") == 17 and "node[04-20]" in folded
    more = page.partition('<details><summary class="dim">')[2].partition("</details>")[0]
    assert [f"no s{number:02}" in more for number in (2, 3, 8)] == [False, True, True]


def test_a_failure_between_nodes_stands_before_what_is_unknown_or_warned_of_on_nodes() -> None:
    own = tuple(replace(full(at), status=status) for at, status in ((1, Status.UNKNOWN), (2, Status.WARN)))
    between = (replace(full(3), check="agree.driver"), replace(full(4), check="agree.cann", status=Status.WARN))
    found = ClusterReport((NodeReport(Node("a", "a"), own, "verl"), NodeReport(Node("b", "b"))), between)
    page = cluster.formed("html", found, lang="en", again="npuenv doctor")
    assert page.index("value-3") < page.index("value-1"), "the section with the worst is the first"
    for is_verbose in (False, True):
        told = text(found, is_verbose=is_verbose)
        assert sorted(range(1, 5), key=lambda at: told.index(f"value-{at}\n")) == [3, 1, 2, 4]


@pytest.mark.parametrize("use", ["roll", None])
@pytest.mark.parametrize(
    ("program", "answer", "check", "code"),
    [
        ("npu-smi*", {"timed_out": True, "out": ""}, "driver.npu-smi", ExitCode.PROBLEMS),
        ("npu-smi*", {"code": 255, "out": ""}, "driver.npu-smi", ExitCode.UNKNOWN),
        ("npu-smi*", {"code": -11, "out": "Segmentation fault"}, "driver.npu-smi", ExitCode.UNKNOWN),
        ("hccn_tool -i 3 *", {"timed_out": True, "out": ""}, "network.hccn-tool", ExitCode.UNKNOWN),
        ("hccn_tool -i *", {"timed_out": True, "out": ""}, "network.hccn-tool", ExitCode.UNKNOWN),
    ],
)
@pytest.mark.one_in(3)
def test_a_tool_that_is_dead_on_a_node_is_one_line_and_no_node_without_a_problem(
    program: str, answer: dict[str, object], check: str, code: ExitCode, use: str | None
) -> None:
    nodes = planted("a2-b3-host-roll", 2, {2: [{"command": program, **answer}]})
    judged = [NodeReport(Node(n, n), check_all(facts, framework=use, level=2), use) for n, facts in nodes.items()]
    found = ClusterReport(tuple(judged), tuple(check_consistency(nodes)), source="hosts")
    assert [(each.check, each.nodes) for each in cluster.problems(found)] == [(check, ("node02",))]
    assert [each.check for each in found.agreement if each.status is Status.UNKNOWN] == []
    assert (found.code, cluster.summary(found).args["fine"]) == (code, 1)
