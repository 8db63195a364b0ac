"""What Ray says of a cluster, and what that means: its list of nodes, and the table of `ray status`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from npuenv.cluster import ray_status
from npuenv.cluster.inventory import Node
from npuenv.cluster.node_programs import ProbeResult
from npuenv.cluster.ray import Cluster, StartedNode
from npuenv.core.messages import say
from tests.support.sentences import sentence

TABLE = """======== Autoscaler status: 2026-11-21 10:00:00 ========
Node status
---------------------------------------------------------------
Active:
 1 node_aaa
 1 node_bbb
Pending:
 (no pending nodes)
Recent failures:
 (no failures)

Resources
---------------------------------------------------------------
Total Usage:
 0.0/64.0 CPU
 {resources}

From request_resources:
 (none)
Pending Demands:
 {demands}
"""
# As Ray 2.60.0 says it of two hosts, without the fields that nobody reads.
ROWS = [
    {
        **{"address": "10.77.0.2", "is_alive": True, "why": "", "free": {"CPU": 2.0, "NPU": 3.0}},
        "total": {"CPU": 2.0, "NPU": 8.0, "memory": 14766765261.0, "node:10.77.0.2": 1.0},
    },
    {
        **{"address": "10.77.0.1", "is_alive": True, "why": "", "free": {"CPU": 2.0, "node:__internal_head__": 1.0}},
        "total": {"NPU": 8.0, "CPU": 2.0, "node:__internal_head__": 1.0},
    },
]


def started(name: str, cards: int = 8) -> StartedNode:
    return StartedNode(Node(name, name), "boot", 77, ((80, 2, "raylet"),), cards, "word", f"10.77.0.{name[-1]}")


CLUSTER = Cluster("10.77.0.1:6379", "/env", (started("node1"), started("node2")), "node1")


def told(
    rows: Any = None, resources: str = "0.0/16.0 NPU", demands: str = "(no resource demands)", **changes: Any
) -> ray_status.RayStatus:
    """What is read; `rows` None: the list of nodes could not be had."""
    answer = {"code": 0, "err": "", "timed_out": False}
    nodes = {**answer, "out": f"a warning\nRAY-NODES {json.dumps(rows)}\n" if rows is not None else "ImportError"}
    table = {**answer, "out": TABLE.format(resources=resources, demands=demands), **changes}
    return ray_status.read(ProbeResult(Node("node1", "node1"), {"nodes": nodes, "table": table}, 0.0, 1.0), 45.0)


def meaning(seen: ray_status.RayStatus, *gone: str) -> list[str]:
    return [say(message) for message in ray_status.explain(seen, CLUSTER, gone)]


def found(seen: ray_status.RayStatus, key: str, **args: object) -> bool:
    """Whether just that is said of it, once, with these values among others."""
    messages = [each for each in ray_status.explain(seen, CLUSTER) if each.key == f"cluster.ray-{key}"]
    return [{name: str(each.args[name]) for name in args} for each in messages] == [
        {name: str(value) for name, value in args.items()}
    ]


def test_a_cluster_that_is_well_needs_no_words() -> None:
    for seen in (told(ROWS), told()):
        assert meaning(seen) == []
        assert ray_status.is_complete(seen, CLUSTER)
        assert ray_status.foreign_nodes(seen, CLUSTER) == ()


def test_what_is_in_use_is_said_for_each_node_and_in_all() -> None:
    seen = told(ROWS)
    assert seen.resources() == {"CPU": (0.0, 4.0), "NPU": (13.0, 16.0), "memory": (14766765261.0, 14766765261.0)}
    second = seen.at("10.77.0.2")
    assert second is not None and (second.used["NPU"], second.total["NPU"]) == (5.0, 8.0)
    assert told(resources="3.0/16.0 NPU").resources()["NPU"] == (3.0, 16.0), "by the table where there is no list"


@pytest.mark.parametrize(
    ("seen", "key", "args"),
    [
        (told(resources="0.0/8.0 NPU"), "cards", {"found": 8, "expected": 16}),
        (told(resources="0.0/16.0 GPU"), "gpus", {}),
        (told(demands="{'NPU': 17.0}: 1+ pending tasks/actors"), "never", {"total": 16, "name": "NPU"}),
        (
            told(demands="{'NPU': 4.0} * 5 (PACK): 1+ pending placement groups"),
            "never",
            {"total": 16, "name": "NPU"},
        ),
        (told(out="", code=1, err="AuthenticationError: InvalidAuthToken: x"), "status-token", {}),
        (told(out="", code=None, timed_out=True), "status-timeout", {}),
        (
            ray_status.read(ProbeResult(Node("n", "n"), None, 0.0, 1.0, "Connection refused"), 45.0),
            "status-other",
            {"line": "Connection refused"},
        ),
        (told([ROWS[1]]), "unlisted", {"name": "node2", "address": "10.77.0.2"}),
        (
            told([{**ROWS[0], "is_alive": False, "why": "missed heartbeats"}, ROWS[1]]),
            "lost",
            {"name": "node2", "address": "10.77.0.2", "why": "missed heartbeats"},
        ),
        (
            told([{**ROWS[0], "total": {"NPU": 7.0}}, ROWS[1]]),
            "cards-on",
            {"name": "node2", "found": 7, "expected": 8},
        ),
        (told([{**row, "total": {"GPU": 8.0}} for row in ROWS]), "gpus", {}),
        (
            told([{**ROWS[0], "total": {}}, ROWS[1]], demands="{'NPU': 9.0}: 1+ pending tasks/actors"),
            "never",
            {"total": 8, "name": "NPU"},
        ),
    ],
)
def test_what_ray_says_is_explained(seen: ray_status.RayStatus, key: str, args: dict[str, object]) -> None:
    assert found(seen, key, **args), ray_status.explain(seen, CLUSTER)
    assert all(meaning(seen))


# What waits on two nodes of 2 CPUs and 8 NPUs each -> why for ever, and the values; None: only for others to end.
DEMANDS: dict[str, tuple[str, dict[str, object]] | None] = {
    "{'NPU': 8.0, 'CPU': 1.0}: 3+ pending tasks/actors": None,
    "{'NPU': 1.0} * 16 (PACK): 1+ pending placement groups": None,
    "{'NPU': 1.0} * 8 (STRICT_PACK): 1+ pending placement groups": None,
    "{'NPU': 4.0} * 2 (STRICT_SPREAD): 1+ pending placement groups": None,
    "{'NPU': 16.0}: 1+ pending tasks/actors": ("never-one", {"most": 8, "name": "NPU"}),
    "{'NPU': 4.0, 'CPU': 3.0}: 1+ pending tasks/actors": ("never-one", {"most": 2, "name": "CPU"}),
    "{'CPU': 2.0, 'NPU': 1.0} * 8 (STRICT_PACK): 1+ pending placement groups": ("never", {"total": 4, "name": "CPU"}),
    "{'NPU': 1.0} * 9 (STRICT_PACK): 1+ pending placement groups": ("never-together", {"bundles": 9}),
    "{'NPU': 1.0} * 3 (STRICT_SPREAD): 1+ pending placement groups": ("never-apart", {"bundles": 3, "nodes": 2}),
    "{'NPU': 5.0} * 3 (SPREAD): 1+ pending placement groups": ("never-cut", {"bundles": 3}),
    "{'accelerator_type:A': 1.0}: 1+ pending tasks/actors": ("never", {"total": 0, "name": "accelerator_type:A"}),
    "{'node:10.77.0.2': 0.01}: 1+ pending tasks/actors": None,
}


@pytest.mark.parametrize("demand", DEMANDS)
def test_what_never_fits_is_told_from_what_waits_for_others(demand: str) -> None:
    seen, why = told(ROWS, demands=demand), DEMANDS[demand]
    assert len(meaning(seen)) == (0 if why is None else 1)
    assert why is None or found(seen, why[0], **why[1])
    waits = [(message.key, message.args["line"]) for message in ray_status.waiting_demands(seen, CLUSTER)]
    assert waits == ([("cluster.ray-waits", demand)] if why is None else [])


def test_without_the_list_of_nodes_the_cards_of_each_start_tell_what_never_fits() -> None:
    seen = told(demands="{'NPU': 9.0}: 1+ pending tasks/actors")
    assert found(seen, "never-one", most=8, name="NPU")
    unknown = replace(CLUSTER, started=(replace(started("node1"), cards=0), started("node2")))
    assert ray_status.explain(seen, unknown) == [], "nobody knows how the cards lie"


def test_fewer_nodes_than_were_started_are_said_by_the_table_alone() -> None:
    text = TABLE.format(resources="0.0/16.0 NPU", demands="(no resource demands)").replace(" 1 node_bbb\n", "")
    seen = told(out=text)
    assert found(seen, "nodes", found=1, expected=2)
    assert not ray_status.is_complete(seen, CLUSTER)
    keys = [each.key for each in ray_status.explain(told(ROWS, out=text), CLUSTER)]
    assert "cluster.ray-nodes" not in keys, "the list of nodes is newer"


def test_a_node_that_has_joined_again_lives_and_one_that_has_just_died_is_still_counted() -> None:
    dead = {**ROWS[0], "is_alive": False, "why": "old"}
    assert meaning(told([dead, *ROWS])) == meaning(told([*ROWS, dead])) == []
    assert meaning(told(ROWS), "node2") == [sentence("cluster.ray-unmissed", names="node2", count=8)]


@pytest.mark.parametrize(
    ("old", "new"), [("16.0 NPU", "16.? NPU"), ("Active:", "Act ve:"), ("(no resource demands)", "{'NPU': ?} * 8")]
)
def test_a_damaged_answer_is_said_to_be_and_nothing_is_made_of_it(old: str, new: str) -> None:
    text = TABLE.format(resources="0.0/16.0 NPU", demands="(no resource demands)").replace(old, new)
    assert [each.key for each in ray_status.explain(told(out=text), CLUSTER)] == ["cluster.ray-status-damaged"]
    has_list = [each.key for each in ray_status.explain(told(ROWS, out=text), CLUSTER)]
    assert has_list == (["cluster.ray-status-damaged"] if "demands" in old else []), "the list of nodes has the rest"


def test_whoever_else_has_joined_is_named() -> None:
    seen = told([*ROWS, {**ROWS[0], "address": "10.77.0.9"}])
    assert ray_status.foreign_nodes(seen, CLUSTER) == ("10.77.0.9",)
    old = replace(CLUSTER, started=(replace(started("node1"), address=""),))
    assert ray_status.foreign_nodes(seen, old) == (), (
        "of a start whose address is not known, nobody can tell who is another"
    )


@pytest.mark.parametrize("rows", [{}, [1], [{"address": "a"}], [{**ROWS[0], "free": 3}], [{**ROWS[0], "total": None}]])
def test_a_list_of_another_form_counts_as_none(rows: Any) -> None:
    seen = told(rows)
    assert seen.nodes in (None, ())
    assert seen.nodes == () or meaning(seen) == []
