"""What Ray can never place: every strategy against a slow search through all placements on small clusters."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from npuenv.facts.ray import Demand, Lack, ResourceDemand, parse_status, unsatisfiable_demand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Node = dict[str, float]


def demand(how: str, *bundles: tuple[Mapping[str, float], int]) -> Demand:
    return Demand(
        tuple(ResourceDemand(tuple(sorted(needs.items())), count) for needs, count in bundles), how, 1, "its line"
    )


def lack(wanted: Demand, nodes: Sequence[Node], count: int | None = None, **totals: float | None) -> Lack | None:
    found = unsatisfiable_demand(wanted, lambda name: totals.get(name, 0.0), nodes, count)
    return found.lack if found else None


def fits(wanted: Demand, nodes: Sequence[Node]) -> bool:
    """Whether one of all placements holds."""
    bundles = [dict(bundle.needs) for bundle in wanted.bundles for _ in range(bundle.count)]
    for places in itertools.product(range(len(nodes)), repeat=len(bundles)):
        if wanted.how == "STRICT_PACK" and len(set(places)) > 1:
            continue
        if wanted.how == "STRICT_SPREAD" and len(set(places)) < len(places):
            continue
        taken = [dict.fromkeys(node, 0.0) for node in nodes]
        for bundle, place in zip(bundles, places):
            for name, need in bundle.items():
                taken[place][name] = taken[place].get(name, 0.0) + need
        if all(used <= node.get(name, 0.0) for row, node in zip(taken, nodes) for name, used in row.items()):
            return True
    return False


@pytest.mark.parametrize("how", ["", "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
def test_equal_bundles_never_fit_where_no_placement_holds(how: str) -> None:
    chance = random.Random(how)
    for _ in range(300):
        nodes = [
            {"NPU": float(chance.choice((0, 2, 4))), "CPU": float(chance.choice((2, 6)))}
            for _ in range(chance.randint(1, 3))
        ]
        needs = {"NPU": float(chance.randint(1, 4)), "CPU": float(chance.randint(0, 3))}
        wanted = demand(how, (needs, chance.randint(1, 4) if how else 1))
        assert (lack(wanted, nodes) is None) == fits(wanted, nodes), (wanted, nodes)


@pytest.mark.parametrize("how", ["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
def test_bundles_of_several_kinds_are_never_said_to_be_too_large_where_they_fit(how: str) -> None:
    chance = random.Random(how)
    for _ in range(300):
        nodes = [{"NPU": float(chance.choice((0, 2, 4)))} for _ in range(chance.randint(1, 3))]
        wanted = demand(how, *[({"NPU": float(chance.randint(1, 4))}, chance.randint(1, 2)) for _ in range(2)])
        assert lack(wanted, nodes) is None or not fits(wanted, nodes), (wanted, nodes)


def test_where_nobody_knows_what_each_node_has_the_whole_and_their_number_count() -> None:
    twice = {"NPU": 8.0}
    assert lack(demand("STRICT_SPREAD", (twice, 2)), [], 1, NPU=16.0) is Lack.APART
    assert lack(demand("STRICT_SPREAD", (twice, 2)), [], 2, NPU=16.0) is None
    assert lack(demand("STRICT_SPREAD", (twice, 2)), [], None, NPU=16.0) is None
    assert lack(demand("PACK", (twice, 2)), [], None, NPU=8.0) is Lack.TOTAL
    assert lack(demand("PACK", (twice, 2)), [], None, NPU=None) is None


def test_a_group_of_several_kinds_of_bundles_is_read_whole() -> None:
    line = " {'NPU': 1.0, 'node:10.0.0.5': 0.001} * 1, {'NPU': 1.0} * 15 (PACK): 1+ pending placement groups"
    status = parse_status(f"Resources\nTotal Usage:\n 0.0/8.0 NPU\nPending Demands:\n{line}\n")
    assert status is not None and status.has_all_demands
    (wanted,) = status.demands
    assert (wanted.of("NPU"), wanted.count, wanted.largest("NPU"), wanted.how) == (16.0, 16, 1.0, "PACK")


def test_nodes_of_one_kind_are_counted_and_those_of_each_node_in_detail_are_not_added() -> None:
    text = (
        "Node status\nActive:\n 1 head\n 3 worker\nIdle:\n (no idle nodes)\nPending:\n (no pending nodes)\nResources\n"
        "Total Usage:\n 0.0/32.0 NPU\n\nFrom request_resources:\n (none)\nPending Demands:\n (no resource demands)\n\n"
        "Node: 8c182cfb\n Usage:\n  0.0/8.0 NPU\n"
    )
    status = parse_status(text)
    assert status is not None
    assert (status.nodes, status.total("NPU"), status.has_all_demands) == (4, 32.0, True)
