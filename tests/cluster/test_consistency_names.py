"""Names between nodes: what nobody answered for, what only some find, and clusters that do without names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.cluster.consistency.findings import NodeIdentity, names_to_resolve
from npuenv.core.finding import Status
from npuenv.core.messages import say
from tests.cluster.uniform import cluster
from tests.cluster.voting import USUAL, differing, find, met, told, words

if TYPE_CHECKING:
    from npuenv.facts.collect import Facts

NODES = tuple(f"node{number:02}" for number in range(1, 17))


def hosts() -> dict[str, Facts]:
    """Sixteen nodes; only what they see of each other is looked at, so that one machine does for all."""
    (one,) = cluster(USUAL, 1).values()
    return dict.fromkeys(NODES, one)


def seeing(**resolved: dict[str, tuple[str, ...]]) -> dict[str, NodeIdentity]:
    """Sixteen nodes that find each other's names, but for what these ones see."""
    usual = met(*NODES)
    return {**usual, **{name: differing(usual[name], resolved=seen) for name, seen in resolved.items()}}


def own(name: str) -> dict[str, tuple[str, ...]]:
    """What a node's own file says of it."""
    return {name: met(*NODES)[name].addresses}


def test_names_that_no_name_server_answers_for_are_unknown_and_never_alike() -> None:
    """Each node still finds its own name, in its own file."""
    dead = seeing(**{name: own(name) for name in NODES})
    finding = find("names", hosts(), dead)
    assert (finding.status, say(finding.says)) == (
        Status.UNKNOWN,
        words("names-unsaid", who="node[01-16]", names="node[01-16]"),
    )
    assert [(line.command, line.line) for line in finding.evidence[:1]] == [
        ("node01: getent ahosts node02", "no answer")
    ]


def test_nodes_that_saw_nothing_at_all_could_not_be_asked_and_no_name_server_is_blamed() -> None:
    nothing = seeing(**{name: {} for name in NODES})
    assert told("names", hosts(), nothing) == ("unknown", words("blind", who="node[01-16]"))
    both = seeing(node03={}, node04=own("node04"))
    assert told("names", hosts(), both) == (
        "unknown",
        words(
            "then",
            first=words("blind", who="node03"),
            rest=words("names-unsaid", who="node04", names="node[01-03,05-16]"),
        ),
    )


def test_one_name_without_an_answer_is_named_with_who_asked() -> None:
    seen = {name: found for name, found in met(*NODES)["node05"].resolved.items() if name != "node07"}
    assert told("names", hosts(), seeing(node05=seen)) == (
        "unknown",
        words("names-unsaid", who="node05", names="node07"),
    )


@pytest.mark.parametrize("finds_itself", [True, False])
def test_a_name_that_no_other_node_finds_is_named(finds_itself: bool) -> None:
    lost = {
        name: {**met(*NODES)[name].resolved, "node07": ()} for name in NODES if name != "node07" or not finds_itself
    }
    assert told("names", hosts(), seeing(**lost)) == (
        "warn",
        words("names-astray", views=words("view-none", nodes="node[01-06,08-16]", name="node07")),
    )


def test_names_that_one_node_does_not_find_are_told_together() -> None:
    blind = {"node05": {**dict.fromkeys(NODES, ()), **own("node05")}}
    assert told("names", hosts(), seeing(**blind)) == (
        "warn",
        words("names-astray", views=words("view-none", nodes="node05", name="node[01-04,06-16]")),
    )


def test_a_fault_is_told_although_another_name_had_no_answer() -> None:
    resolved = met(*NODES)["node03"].resolved
    mixed = {"node03": {**resolved, "node01": ("10.99.0.1",)}, "node04": own("node04")}
    status, says = told("names", hosts(), seeing(**mixed))
    assert status == "warn"
    view = words("view", nodes="node03", name="node01", found="10.99.0.1")
    assert says == words("and-blind", says=words("names-astray", views=view), who="node04")


@pytest.mark.parametrize("finds_itself", [True, False])
def test_a_cluster_that_goes_by_addresses_alone_is_no_alarm_and_not_called_alike(finds_itself: bool) -> None:
    unnamed = {name: {**dict.fromkeys(NODES, ()), **(own(name) if finds_itself else {})} for name in NODES}
    finding = find("names", hosts(), seeing(**unnamed))
    assert (finding.status, finding.says.key) == (Status.SKIP, "agree.names-unused")


def test_of_very_many_names_those_that_are_not_looked_up_are_not_missed() -> None:
    names = [f"n{number}" for number in range(300)]
    assert names_to_resolve([*names, "", "n0"]) == tuple(names[:256])
