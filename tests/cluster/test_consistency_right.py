"""What has a right value, however many have another one; and packages whose releases belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cluster.consistency import rules
from npuenv.core.fact import known
from npuenv.core.finding import Status
from npuenv.report.cluster import render
from npuenv.report.terminal import Manner, Page
from tests.cluster.uniform import cluster
from tests.cluster.voting import LINE, USUAL, changed, find, odd, same, tied, told, words
from tests.support.changes import both, lost, packages, part, put

if TYPE_CHECKING:
    from tests.support.changes import Change

NONE = words("word-none")
UNKEPT = part("network.clock", is_synchronised=False)


def of_cards(fact: str, value: Any, cards: range = range(8)) -> Change:
    def change(facts: Any) -> Any:
        found = facts.at(f"hccn.{fact}").value
        return put(**{fact: {**found, **{card: known(value, LINE) for card in cards}}})(facts)

    return change


def test_clocks_that_follow_nothing_anywhere_are_told_and_not_called_well() -> None:
    nodes = changed(4, dict.fromkeys(range(1, 5), UNKEPT))
    finding = find("clock-kept", nodes)
    assert told("clock-kept", nodes) == ("warn", same(words("word-not-kept"), 4))
    assert finding.fix is not None and finding.evidence != ()
    assert words("title-clock-kept") not in shown(nodes, Status.OK)
    assert words("title-kernel") in shown(nodes, Status.OK)


def shown(nodes: Any, status: Status) -> str:
    """The names of the findings with a status, as the report says them."""
    from npuenv.cluster.consistency import check_consistency
    from npuenv.cluster.inventory import Node
    from npuenv.cluster.node_results import ClusterReport, NodeReport

    kept = tuple(item for item in check_consistency(nodes) if item.status is status and item.check != "agree.machines")
    judged = tuple(NodeReport(Node(name, name)) for name in nodes)
    return render(ClusterReport(judged, kept), Page(is_terminal=False, width=4000), Manner(is_verbose=True))


@pytest.mark.parametrize(
    ("unkept", "named"),
    [(1, "node01"), (2, "node02")],
)
def test_of_two_that_differ_the_wrong_one_is_named(unkept: int, named: str) -> None:
    says = odd(f"{named}: {words('word-not-kept')}", 1, words("word-kept"))
    assert told("clock-kept", changed(2, {unkept: UNKEPT})) == ("warn", says)


def test_what_is_wrong_everywhere_is_told_although_one_node_could_not_tell() -> None:
    nodes = changed(3, {1: UNKEPT, 2: UNKEPT, 3: lost("network.clock")})
    says = words("and-blind", says=same(words("word-not-kept"), 2), who="node03")
    assert told("clock-kept", nodes) == ("warn", says)


def test_what_each_nodes_own_findings_name_is_not_called_well_and_not_told_twice() -> None:
    nodes = changed(4, dict.fromkeys(range(1, 5), of_cards("net_health", "Receive timeout")))
    assert told("watch", nodes) == ("skip", words("alike-unwell", says=same("Receive timeout", 32)))
    assert words("title-watch") not in shown(nodes, Status.OK)
    blind = changed(2, {1: of_cards("net_health", "Receive timeout"), 2: lost("net_health")})
    assert told("watch", blind)[0] == "unknown"


def test_cards_that_most_nodes_have_wrong_are_named_and_not_those_that_are_well() -> None:
    nodes = changed(3, {1: of_cards("net_health", "Receive timeout"), 3: of_cards("net_health", "Receive timeout")})
    assert told("watch", nodes) == ("fail", odd("node[01,03] cards 0-7: Receive timeout", 8, "success"))


def test_no_card_with_an_address_is_not_a_thing_to_agree_on() -> None:
    bare = both(part("hccn.conf", by_device={}), put(addresses={}))
    nodes = changed(2, dict.fromkeys((1, 2), bare))
    assert told("card-addressed", nodes) == ("skip", words("alike-unwell", says=same(words("word-not-set"), 16)))


def test_every_right_value_is_one_that_a_uniform_cluster_has() -> None:
    """A misspelt one would be wrong on every cluster."""
    kinds = {"vnics": "a3-host-kylin-roll"}
    rows = [aspect for aspect in rules() if aspect.expected]
    assert {row.id for row in rows} == {"clock-kept", "watch", "vnics", "modules", "card-addressed", "card-gatewayed"}
    for row in rows:
        nodes = cluster(kinds.get(row.id, USUAL), 2)
        assert find(row.id, nodes).status is Status.OK, row.id
        assert {value.text for facts in nodes.values() for value in row.read(facts).values.values()} <= set(
            row.expected
        )


@pytest.mark.parametrize(
    ("versions", "status", "says"),
    [
        ({"torch": "2.1.0"}, "fail", "torch: " + odd("node02: 2.1.0", 2, "2.7.1")),
        ({"torch": "2.7.0"}, "warn", "torch: " + odd("node02: 2.7.0", 2, "2.7.1")),
        ({"torch": "2.7.1+cpu"}, "warn", "torch: " + odd("node02: 2.7.1+cpu", 2, "2.7.1")),
        ({"torch": None}, "fail", "torch: " + odd(f"node02: {NONE}", 2, "2.7.1")),
        ({"vllm": "0.9.1+empty"}, "fail", "vllm: " + odd("node02: 0.9.1+empty", 2, "0.11.0+empty")),
        ({"verl": "0.6.1"}, "warn", "verl: " + odd("node02: 0.6.1", 2, NONE)),
    ],
)
def test_a_release_that_does_not_belong_to_the_others_is_a_failure(
    versions: dict[str, str | None], status: str, says: str
) -> None:
    assert told("frameworks", changed(3, {2: packages(**versions)})) == (status, says)
    assert find("packages", changed(3, {2: packages(**versions)})).status is Status.OK


def test_a_framework_that_ray_brings_along_may_be_missing_but_not_in_two_releases() -> None:
    old, new = packages(verl="0.6.1"), packages(verl="0.8.0")
    assert told("frameworks", changed(3, {1: new, 2: old, 3: new}))[0] == "fail"
    assert told("frameworks", changed(3, {1: new, 3: new})) == ("warn", "verl: " + odd(f"node02: {NONE}", 2, "0.8.0"))
    assert told("frameworks", changed(3, {1: new, 2: old})) == (
        "fail",
        "verl: " + tied(f"node01: 0.8.0, node02: 0.6.1, node03: {NONE}"),
    )
