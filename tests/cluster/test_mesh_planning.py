"""Plans of pings: every pair once, nobody twice at a time, and samples that find every single dead device."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.cluster.localize import Hypothesis, Kind, localize_faults
from npuenv.cluster.mesh import MeshDevice, PingPlan, full, sampled

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=9)


def cluster(shape: Sequence[int], *, is_a3: bool = False) -> list[MeshDevice]:
    """One node for each number, with as many cards."""
    return [
        MeshDevice(
            f"node{at:03}", card, f"10.{at // 200}.{at % 200}.{card + 1}", "255.0.0.0", card // 2 if is_a3 else None
        )
        for at, count in enumerate(shape)
        for card in range(count)
    ]


def require_nobody_twice(plan: PingPlan) -> None:
    for pings in plan.rounds:
        assert pings
        parts = [place for pair in pings for place in pair]
        assert len(parts) == len(set(parts)), "a device takes part twice"
        nodes = [plan.devices[source].node for source, _ in pings]
        assert len(nodes) == len(set(nodes)), "a node pings twice"


def all_pings(plan: PingPlan) -> list[tuple[int, int]]:
    return [pair for pings in plan.rounds for pair in pings]


@settings(max_examples=50, deadline=None)
@given(SHAPES)
def test_the_full_mesh_has_every_pair_once_in_each_direction_and_nobody_twice_in_a_round(shape: list[int]) -> None:
    devices = cluster(shape)
    plan = full(devices)
    places = range(len(devices))
    wanted = {(source, target) for source in places for target in places if source != target}
    assert Counter(all_pings(plan)) == Counter(wanted)
    require_nobody_twice(plan)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([2, 4, 6]), min_size=1, max_size=6))
def test_the_two_chips_of_an_a3_card_are_never_paired_and_all_others_are(shape: list[int]) -> None:
    devices = cluster(shape, is_a3=True)
    plan = full(devices)
    places = range(len(devices))
    wanted = {(s, t) for s in places for t in places if devices[s].can_reach(devices[t])}
    assert len(wanted) == len(devices) * (len(devices) - 2)
    assert Counter(all_pings(plan)) == Counter(wanted)
    require_nobody_twice(plan)


@pytest.mark.parametrize(
    ("shape", "rounds"),
    [
        ([8] * 8, 8 * 63),
        ([2, 2], 2 * 3),
        ([16] * 4, 16 * 63),
        ([8], 8 * 7),
        ([8] * 7, 8 * 55),
        ([8, 8, 8, 7], 8 * 30),
        ([16, 8, 8], 16 * 31),
    ],
)
def test_no_plan_is_shorter_than_the_pings_of_the_busiest_node(shape: list[int], rounds: int) -> None:
    plan = full(cluster(shape))
    assert plan.most_of_a_node == rounds
    assert len(plan.rounds) == rounds
    assert plan.seconds(0.5) == rounds * 0.5


def test_nodes_of_one_card_need_twice_the_rounds_because_each_device_asks_and_is_asked() -> None:
    assert 2 * 9 <= len(full(cluster([1] * 10)).rounds) <= 2 * 10


@pytest.mark.parametrize("count", [128, pytest.param(512, marks=pytest.mark.slow)])
def test_a_mesh_of_many_devices_is_complete(count: int) -> None:
    plan = full(cluster([8] * (count // 8)))
    assert (plan.num_pings, len(plan.rounds)) == (count * (count - 1), 8 * (count - 1))
    assert len(set(all_pings(plan))) == count * (count - 1)


@settings(max_examples=50, deadline=None)
@given(SHAPES)
def test_a_sample_asks_no_pair_twice_and_gives_no_device_more_than_four_pings(shape: list[int]) -> None:
    devices = cluster(shape)
    plan = sampled(devices)
    require_nobody_twice(plan)
    pairs = all_pings(plan)
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    times = Counter(place for pair in pairs for place in pair)
    assert max(times.values(), default=0) <= 4
    if len(devices) >= 3:
        assert set(times) == set(range(len(devices))) and min(times.values()) >= 2


def culprits_of_a_dead_device(plan: PingPlan, dead: int) -> tuple[list[Hypothesis], list[Hypothesis]]:
    """What is named where all pings of one device fail, and what cannot be told from it."""
    pairs = all_pings(plan)
    failed = [pair for pair in pairs if dead in pair]
    found = localize_faults(plan.devices, failed, [pair for pair in pairs if dead not in pair])
    return [each.hypothesis for each in found], [other for each in found for other in each.alternatives]


@pytest.mark.parametrize(
    "shape",
    [
        *([8], [4, 4], [8] * 2, [8] * 3, [8] * 8, [16] * 4, [1] * 8, [1] * 33, [2] * 9, [3]),
        *(pytest.param(shape, marks=pytest.mark.slow) for shape in ([16] * 8, [1] * 65, [8] * 32)),
        pytest.param([8] * 64, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
    ids=lambda shape: f"{len(shape)}x{shape[0]}",
)
def test_a_sample_names_each_single_dead_device_in_turn(shape: list[int]) -> None:
    require_each_is_named(sampled(cluster(shape)))


def test_a_sample_of_512_devices_names_a_dead_one_of_each_card_number() -> None:
    require_each_is_named(sampled(cluster([8] * 64)), every=51)


def require_each_is_named(plan: PingPlan, every: int = 1) -> None:
    for dead in range(0, len(plan.devices), every):
        assert culprits_of_a_dead_device(plan, dead) == ([Hypothesis(Kind.CARD, (dead,))], [])


@settings(max_examples=12, deadline=None)
@given(SHAPES, st.booleans())
def test_a_sample_of_any_shape_names_each_single_dead_device(shape: list[int], is_a3: bool) -> None:
    if is_a3:
        shape = [2 * count for count in shape]
    devices = cluster(shape, is_a3=is_a3)
    if len(devices) < (5 if is_a3 else 3):
        return
    plan = sampled(devices)
    for dead, device in enumerate(devices):
        named, others = culprits_of_a_dead_device(plan, dead)
        assert named == [Hypothesis(Kind.CARD, (dead,))]
        # The only card of one of two nodes is, as far as anybody can see, the way between these nodes; and the only
        # card of one of two numbers is the way between these.
        allowed: set[Kind] = set()
        if len(shape) == 2 and [each.node for each in devices].count(device.node) == 1:
            allowed |= {Kind.NODES, Kind.UPLINK}
        if [each.card for each in devices].count(device.card) == 1 and len({each.card for each in devices}) == 2:
            allowed |= {Kind.SIDES_APART, Kind.ALL_SIDES_APART}
        assert {other.kind for other in others} <= allowed


@pytest.mark.parametrize("shape", [[16], [16, 16], [16] * 8, [4], [4, 6]])
def test_a_sample_of_a3_cards_loses_no_ping_to_chips_that_do_not_reach_each_other(shape: list[int]) -> None:
    devices = cluster(shape, is_a3=True)
    assert sampled(devices).num_pings == (4 if len(devices) == 4 else 2 * len(devices))


def test_of_two_devices_nobody_can_say_which_one_is_dead() -> None:
    named, others = culprits_of_a_dead_device(sampled(cluster([1, 1])), 0)
    assert named == [Hypothesis(Kind.PAIR, (0, 1))]
    assert Hypothesis(Kind.CARD, (0,)) in others and Hypothesis(Kind.CARD, (1,)) in others


@pytest.mark.parametrize("shape", [[], [1]])
def test_fewer_than_two_devices_have_nothing_to_ping(shape: list[int]) -> None:
    devices = cluster(shape)
    assert full(devices).rounds == sampled(devices).rounds == ()
