"""What Ray says of a cluster, and what that means: its list of nodes, and the table of `ray status`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from npuenv.cluster import ray_seen
from npuenv.cluster.probing.asking import Heard
from npuenv.cluster.ray_state import Cluster, Started
from npuenv.cluster.types import Node
from npuenv.messages import say

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


def started(name: str, cards: int = 8) -> Started:
    return Started(Node(name, name), "boot", 77, ((80, 2, "raylet"),), cards, "word", f"10.77.0.{name[-1]}")


CLUSTER = Cluster("10.77.0.1:6379", "/env", (started("node1"), started("node2")), "node1")


def told(
    rows: Any = None, resources: str = "0.0/16.0 NPU", demands: str = "(no resource demands)", **changes: Any
) -> ray_seen.Seen:
    """What is read; `rows` None: the list of nodes could not be had."""
    answer = {"code": 0, "err": "", "timed_out": False}
    nodes = {**answer, "out": f"a warning\nRAY-NODES {json.dumps(rows)}\n" if rows is not None else "ImportError"}
    table = {**answer, "out": TABLE.format(resources=resources, demands=demands), **changes}
    return ray_seen.read(Heard(Node("node1", "node1"), {"nodes": nodes, "table": table}, 0.0, 1.0), 45.0)


def meaning(seen: ray_seen.Seen, *gone: str) -> list[str]:
    return [say(message) for message in ray_seen.explained(seen, CLUSTER, gone)]


def test_a_cluster_that_is_well_needs_no_words() -> None:
    for seen in (told(ROWS), told()):
        assert meaning(seen) == []
        assert ray_seen.is_whole(seen, CLUSTER)
        assert ray_seen.strangers(seen, CLUSTER) == ()


def test_what_is_in_use_is_said_for_each_node_and_in_all() -> None:
    seen = told(ROWS)
    assert seen.resources() == {"CPU": (0.0, 4.0), "NPU": (13.0, 16.0), "memory": (14766765261.0, 14766765261.0)}
    second = seen.at("10.77.0.2")
    assert second is not None and (second.used["NPU"], second.total["NPU"]) == (5.0, 8.0)
    assert told(resources="3.0/16.0 NPU").resources()["NPU"] == (3.0, 16.0), "by the table where there is no list"


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (told(resources="0.0/8.0 NPU"), "Ray counts 8 NPUs of 16"),
        (told(resources="0.0/16.0 GPU"), "it was started with --num-gpus"),
        (told(demands="{'NPU': 17.0}: 1+ pending tasks/actors"), "waits for ever"),
        (
            told(demands="{'NPU': 4.0} * 5 (PACK): 1+ pending placement groups"),
            "in the whole cluster there is only 16 of NPU",
        ),
        (told(out="", code=1, err="AuthenticationError: InvalidAuthToken: x"), "asks for a token"),
        (told(out="", code=None, timed_out=True), "gives no answer"),
        (ray_seen.read(Heard(Node("n", "n"), None, 0.0, 1.0, "Connection refused"), 45.0), "Connection refused"),
        (told([ROWS[1]]), "Ray does not know node2 (10.77.0.2)"),
        (
            told([{**ROWS[0], "is_alive": False, "why": "missed heartbeats"}, ROWS[1]]),
            "Ray has lost node2 (10.77.0.2): missed heartbeats",
        ),
        (told([{**ROWS[0], "total": {"NPU": 7.0}}, ROWS[1]]), "node2: Ray counts 7 NPUs of 8"),
        (told([{**row, "total": {"GPU": 8.0}} for row in ROWS]), "it was started with --num-gpus"),
        (told([{**ROWS[0], "total": {}}, ROWS[1]], demands="{'NPU': 9.0}: 1+ pending tasks/actors"), "only 8 of NPU"),
    ],
)
def test_what_ray_says_is_explained(seen: ray_seen.Seen, says: str) -> None:
    assert says in " ".join(meaning(seen))


# What waits on two nodes of 2 CPUs and 8 NPUs each -> why for ever; "": only for others to end.
DEMANDS = {
    "{'NPU': 8.0, 'CPU': 1.0}: 3+ pending tasks/actors": "",
    "{'NPU': 1.0} * 16 (PACK): 1+ pending placement groups": "",
    "{'NPU': 1.0} * 8 (STRICT_PACK): 1+ pending placement groups": "",
    "{'NPU': 4.0} * 2 (STRICT_SPREAD): 1+ pending placement groups": "",
    "{'NPU': 16.0}: 1+ pending tasks/actors": "no node has all of that; the most that one has of NPU is 8",
    "{'NPU': 4.0, 'CPU': 3.0}: 1+ pending tasks/actors": "no node has all of that; the most that one has of CPU is 2",
    "{'CPU': 2.0, 'NPU': 1.0} * 8 (STRICT_PACK): 1+ pending placement groups": "there is only 4 of CPU",
    "{'NPU': 1.0} * 9 (STRICT_PACK): 1+ pending placement groups": "no node has room for 9 at once, as STRICT_PACK",
    "{'NPU': 1.0} * 3 (STRICT_SPREAD): 1+ pending placement groups": "wants 3 nodes with that much, and there are 2",
    "{'NPU': 5.0} * 3 (SPREAD): 1+ pending placement groups": "each of the 3 must fit on one node whole",
    "{'accelerator_type:A': 1.0}: 1+ pending tasks/actors": "there is only 0 of accelerator_type:A",
    "{'node:10.77.0.2': 0.01}: 1+ pending tasks/actors": "",
}


@pytest.mark.parametrize("demand", DEMANDS)
def test_what_never_fits_is_told_from_what_waits_for_others(demand: str) -> None:
    seen, why = told(ROWS, demands=demand), DEMANDS[demand]
    assert [why in line and "waits for ever" in line for line in meaning(seen)] == ([True] if why else [])
    waits = [say(message) for message in ray_seen.waiting(seen, CLUSTER)]
    assert waits == ([] if why else [f"waits for something to become free: {demand}"])


def test_without_the_list_of_nodes_the_cards_of_each_start_tell_what_never_fits() -> None:
    seen = told(demands="{'NPU': 9.0}: 1+ pending tasks/actors")
    assert "the most that one has of NPU is 8" in " ".join(meaning(seen))
    unknown = replace(CLUSTER, started=(replace(started("node1"), cards=0), started("node2")))
    assert ray_seen.explained(seen, unknown) == [], "nobody knows how the cards lie"


def test_fewer_nodes_than_were_started_are_said_by_the_table_alone() -> None:
    text = TABLE.format(resources="0.0/16.0 NPU", demands="(no resource demands)").replace(" 1 node_bbb\n", "")
    seen = told(out=text)
    assert "Ray lists 1 of 2 nodes" in " ".join(meaning(seen))
    assert not ray_seen.is_whole(seen, CLUSTER)
    assert "Ray lists" not in " ".join(meaning(told(ROWS, out=text))), "the list of nodes is newer"


def test_a_node_that_has_joined_again_lives_and_one_that_has_just_died_is_still_counted() -> None:
    dead = {**ROWS[0], "is_alive": False, "why": "old"}
    assert meaning(told([dead, *ROWS])) == meaning(told([*ROWS, dead])) == []
    assert meaning(told(ROWS), "node2") == [
        "node2: Ray still counts it, with 8 NPUs: it notices a dead node after about a minute"
    ]


def test_whoever_else_has_joined_is_named() -> None:
    seen = told([*ROWS, {**ROWS[0], "address": "10.77.0.9"}])
    assert ray_seen.strangers(seen, CLUSTER) == ("10.77.0.9",)
    old = replace(CLUSTER, started=(replace(started("node1"), address=""),))
    assert ray_seen.strangers(seen, old) == (), "of a start whose address is not known, nobody can tell who is another"


@pytest.mark.parametrize("rows", [{}, [1], [{"address": "a"}], [{**ROWS[0], "free": 3}], [{**ROWS[0], "total": None}]])
def test_a_list_of_another_form_counts_as_none(rows: Any) -> None:
    seen = told(rows)
    assert seen.nodes in (None, ())
    assert seen.nodes == () or meaning(seen) == []
