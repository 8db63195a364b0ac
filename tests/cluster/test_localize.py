"""Failing pings reduced to the fewest culprits: planted faults are named, and nothing that works is accused."""

from __future__ import annotations

import random
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.cluster.localize import Fault, Hypothesis, Kind, MeshTopology, localize_faults
from npuenv.cluster.mesh import MeshDevice, full, sampled
from tests.cluster.test_mesh_planning import all_pings, cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.cluster.mesh import Pair

pytestmark = pytest.mark.slow

SHAPE = [4] * 5
DEVICES = cluster(SHAPE)


HALF = ("node000", "node001")


FLAPS = {
    Kind.CARD_FLAPS: lambda devices, place: place,
    Kind.NODE_FLAPS: lambda devices, place: devices[place].node,
    Kind.SIDE_FLAPS: lambda devices, place: devices[place].card,
}


def is_of(devices: Sequence[MeshDevice], hypothesis: Hypothesis, pair: Pair) -> bool:
    """Whether one end of a ping belongs to what flaps."""
    return hypothesis.about[0] in {FLAPS[hypothesis.kind](devices, place) for place in pair}


def of(node: int, card: int) -> int:
    return node * 4 + card


def found(devices: Sequence[MeshDevice], is_broken: Callable[[Pair], bool], *, is_full: bool = True) -> list[Fault]:
    pairs = all_pings((full if is_full else sampled)(devices))
    broken = [pair for pair in pairs if is_broken(pair)]
    return list(localize_faults(devices, broken, [pair for pair in pairs if not is_broken(pair)]))


def hypotheses_of(topology: MeshTopology, pair: Pair) -> set[Hypothesis]:
    """All that could break a ping, but what flaps."""
    found = {Hypothesis(Kind.PAIR, (min(pair), max(pair))), Hypothesis(Kind.ONE_WAY, pair)}
    return found.union(*(hypotheses for hypotheses, _ in topology.grouped([pair])))


def named(devices: Sequence[MeshDevice], is_broken: Callable[[Pair], bool], **mode: bool) -> list[Hypothesis]:
    return [each.hypothesis for each in found(devices, is_broken, **mode)]


def touches(**shared: object) -> Callable[[Pair], bool]:
    """Whether one end of a ping is a device with these attributes."""
    return lambda pair: any(all(getattr(DEVICES[at], name) == value for name, value in shared.items()) for at in pair)


def is_down(pair: Pair) -> bool:
    """Whether something that flaps is down just when this ping is made: about every second time."""
    return random.Random(str(pair)).random() < 0.5


FAULTS: dict[str, tuple[Callable[[Pair], bool], list[Hypothesis]]] = {
    "a dead card": (lambda pair: 6 in pair, [Hypothesis(Kind.CARD, (6,))]),
    "two dead cards of one number": (
        lambda pair: bool({of(0, 1), of(2, 1)} & {*pair}),
        [Hypothesis(Kind.CARD, (of(0, 1),)), Hypothesis(Kind.CARD, (of(2, 1),))],
    ),
    "two dead cards of one node": (
        lambda pair: bool({of(3, 0), of(3, 2)} & {*pair}),
        [Hypothesis(Kind.CARD, (of(3, 0),)), Hypothesis(Kind.CARD, (of(3, 2),))],
    ),
    "a dead node": (touches(node="node002"), [Hypothesis(Kind.NODE, ("node002",))]),
    "a node cut off": (
        lambda pair: touches(node="node002")(pair) and DEVICES[pair[0]].node != DEVICES[pair[1]].node,
        [Hypothesis(Kind.UPLINK, ("node002",))],
    ),
    "a dead side": (touches(card=3), [Hypothesis(Kind.SIDE, (3,))]),
    "a side broken in itself": (
        lambda pair: DEVICES[pair[0]].card == DEVICES[pair[1]].card == 2,
        [Hypothesis(Kind.SIDE_INSIDE, (2,))],
    ),
    "two sides apart": (
        lambda pair: {DEVICES[at].card for at in pair} == {0, 2},
        [Hypothesis(Kind.SIDES_APART, (0, 2))],
    ),
    "all sides apart": (
        lambda pair: DEVICES[pair[0]].card != DEVICES[pair[1]].card,
        [Hypothesis(Kind.ALL_SIDES_APART)],
    ),
    "two nodes apart": (
        lambda pair: {DEVICES[at].node for at in pair} == {"node000", "node003"},
        [Hypothesis(Kind.NODES, ("node000", "node003"))],
    ),
    "one dead pair": (lambda pair: {*pair} == {3, 14}, [Hypothesis(Kind.PAIR, (3, 14))]),
    "one direction of a pair": (lambda pair: pair == (14, 3), [Hypothesis(Kind.ONE_WAY, (14, 3))]),
    "a card that reaches nobody": (lambda pair: pair[0] == 9, [Hypothesis(Kind.SENDS, (9,))]),
    "a card that nobody reaches": (lambda pair: pair[1] == 9, [Hypothesis(Kind.RECEIVES, (9,))]),
    "a dead card and a dead pair": (
        lambda pair: 6 in pair or {*pair} == {3, 14},
        [Hypothesis(Kind.CARD, (6,)), Hypothesis(Kind.PAIR, (3, 14))],
    ),
    "a dead side and a dead node": (
        lambda pair: touches(card=1)(pair) or touches(node="node004")(pair),
        [Hypothesis(Kind.SIDE, (1,)), Hypothesis(Kind.NODE, ("node004",))],
    ),
    "all nodes apart": (
        lambda pair: DEVICES[pair[0]].node != DEVICES[pair[1]].node,
        [Hypothesis(Kind.ALL_NODES_APART)],
    ),
    "two groups of nodes apart": (
        lambda pair: len({DEVICES[at].node in HALF for at in pair}) == 2,
        [Hypothesis(Kind.PARTITION, ("node[000-001]", "node[002-004]"))],
    ),
    "two groups of nodes apart, one node dead and one card": (
        lambda pair: len({DEVICES[at].node in HALF for at in pair}) == 2 or touches(node="node004")(pair) or 6 in pair,
        [
            Hypothesis(Kind.PARTITION, ("node[000-001]", "node[002-003]")),
            Hypothesis(Kind.NODE, ("node004",)),
            Hypothesis(Kind.CARD, (6,)),
        ],
    ),
    "two nodes apart in one direction": (
        lambda pair: [DEVICES[at].node for at in pair] == ["node003", "node000"],
        [Hypothesis(Kind.NODES_ONE_WAY, ("node003", "node000"))],
    ),
    "a node that reaches no other one": (
        lambda pair: DEVICES[pair[0]].node == "node002" != DEVICES[pair[1]].node,
        [Hypothesis(Kind.UPLINK_SENDS, ("node002",))],
    ),
    "a node that no other one reaches": (
        lambda pair: DEVICES[pair[1]].node == "node002" != DEVICES[pair[0]].node,
        [Hypothesis(Kind.UPLINK_RECEIVES, ("node002",))],
    ),
    "a node whose cards reach nobody": (
        lambda pair: DEVICES[pair[0]].node == "node002",
        [Hypothesis(Kind.NODE_SENDS, ("node002",))],
    ),
    "a node whose cards nobody reaches": (
        lambda pair: DEVICES[pair[1]].node == "node002",
        [Hypothesis(Kind.NODE_RECEIVES, ("node002",))],
    ),
    "two sides apart in one direction": (
        lambda pair: [DEVICES[at].card for at in pair] == [2, 0],
        [Hypothesis(Kind.SIDES_ONE_WAY, (2, 0))],
    ),
    "a side apart from all others": (
        lambda pair: len({DEVICES[at].card == 1 for at in pair}) == 2,
        [Hypothesis(Kind.SIDE_CUT_OFF, (1,))],
    ),
    "groups of sides apart": (
        lambda pair: len({DEVICES[at].card < 2 for at in pair}) == 2,
        [Hypothesis(Kind.SIDE_PARTITION, ("0-1", "2-3"))],
    ),
    "groups of sides apart in one direction": (
        lambda pair: DEVICES[pair[0]].card < 2 <= DEVICES[pair[1]].card,
        [Hypothesis(Kind.SIDE_PARTITION_ONE_WAY, ("0-1", "2-3"))],
    ),
    "groups of nodes apart in one direction": (
        lambda pair: DEVICES[pair[0]].node in HALF and DEVICES[pair[1]].node not in HALF,
        [Hypothesis(Kind.PARTITION_ONE_WAY, ("node[000-001]", "node[002-004]"))],
    ),
    "a card that flaps": (lambda pair: 9 in pair and is_down(pair), [Hypothesis(Kind.CARD_FLAPS, (9,))]),
    "two cards of one node that flap": (
        lambda pair: bool({8, 10} & {*pair}) and is_down(pair),
        [Hypothesis(Kind.CARD_FLAPS, (8,)), Hypothesis(Kind.CARD_FLAPS, (10,))],
    ),
    "a node that flaps": (
        lambda pair: touches(node="node002")(pair) and is_down(pair),
        [Hypothesis(Kind.NODE_FLAPS, ("node002",))],
    ),
    "a side that flaps": (
        lambda pair: touches(card=3)(pair) and is_down(pair),
        [Hypothesis(Kind.SIDE_FLAPS, (3,))],
    ),
    "a card that flaps, a dead one, and two nodes apart in one direction": (
        lambda pair: (
            (9 in pair and is_down(pair)) or 6 in pair or [DEVICES[at].node for at in pair] == ["node003", "node000"]
        ),
        [
            Hypothesis(Kind.CARD_FLAPS, (9,)),
            Hypothesis(Kind.CARD, (6,)),
            Hypothesis(Kind.NODES_ONE_WAY, ("node003", "node000")),
        ],
    ),
    "everything": (lambda pair: True, [Hypothesis(Kind.EVERYTHING)]),
    "nothing": (lambda pair: False, []),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_and_nothing_else(name: str) -> None:
    is_broken, wanted = FAULTS[name]
    culprits = found(DEVICES, is_broken)
    assert sorted(each.hypothesis for each in culprits) == sorted(wanted)
    assert [other for each in culprits for other in each.alternatives] == []


@pytest.mark.parametrize("name", sorted(name for name in FAULTS if "flap" in name))
def test_what_flaps_is_said_to_be_broken_for_good_when_nothing_of_it_works(name: str) -> None:
    """The other side of it: without a ping that works it is dead, and never called flapping."""
    planted = [hypothesis for hypothesis in FAULTS[name][1] if hypothesis.kind in FLAPS]
    culprits = named(DEVICES, lambda pair: any(is_of(DEVICES, hypothesis, pair) for hypothesis in planted))
    assert len(culprits) == len(planted) and not any(hypothesis.kind in FLAPS for hypothesis in culprits)


def test_a_few_pings_that_fail_by_themselves_are_nobodys_fault() -> None:
    """A chain: each card has two failing pings by chance, of many that work."""
    devices = cluster([4] * 5)
    assert {each.kind for each in named(devices, lambda pair: pair[1] == pair[0] + 1)} == {Kind.ONE_WAY}


def test_subnets_that_no_router_joins_are_named_as_that() -> None:
    devices = [
        MeshDevice(f"n{at}", card, f"10.0.{card}.{at + 1}", "255.255.255.0") for at in range(4) for card in (0, 1)
    ]
    culprits = found(devices, lambda pair: devices[pair[0]].network != devices[pair[1]].network)
    # Here each side is a subnet of its own: the pings cannot tell which of the two it is.
    assert [each.hypothesis.kind for each in culprits] == [Kind.SIDES_APART]
    assert Hypothesis(Kind.ALL_SUBNETS_APART) in culprits[0].alternatives


def test_one_subnet_among_three_without_a_way_out_is_named() -> None:
    devices = [MeshDevice(f"n{at}", at, f"10.0.{at % 3}.{at + 1}", "255.255.255.0") for at in range(9)]
    culprits = found(devices, lambda pair: "10.0.1.0/24" in {devices[at].network for at in pair})
    assert [each.hypothesis for each in culprits] == [Hypothesis(Kind.SUBNET, ("10.0.1.0/24",))]


def test_one_subnet_that_does_not_reach_another_is_named() -> None:
    devices = [MeshDevice(f"n{at}", at, f"10.0.{at % 3}.{at + 1}", "255.255.255.0") for at in range(9)]
    wanted = ("10.0.0.0/24", "10.0.1.0/24")
    culprits = found(devices, lambda pair: tuple(devices[at].network for at in pair) == wanted)
    assert [each.hypothesis for each in culprits] == [Hypothesis(Kind.SUBNETS_ONE_WAY, wanted)]


@pytest.mark.parametrize("is_full", [True, False])
def test_a_broken_link_between_the_switches_of_many_nodes_is_one_culprit(is_full: bool) -> None:
    devices = cluster([8] * 16)
    culprits = found(devices, lambda pair: (pair[0] < 64) != (pair[1] < 64), is_full=is_full)
    assert [each.hypothesis for each in culprits] == [Hypothesis(Kind.PARTITION, ("node[000-007]", "node[008-015]"))]
    assert culprits[0].alternatives == ()


def test_three_groups_are_one_culprit_and_single_nodes_are_none_of_them() -> None:
    devices = cluster([2] * 8)
    group = [0, 0, 1, 1, 2, 2, 3, 4]
    culprits = found(devices, lambda pair: group[pair[0] // 2] != group[pair[1] // 2])
    assert [each.hypothesis for each in culprits] == [
        Hypothesis(Kind.PARTITION, ("node[000-001]", "node[002-003]", "node[004-005]")),
        Hypothesis(Kind.UPLINK, ("node006",)),
        Hypothesis(Kind.UPLINK, ("node007",)),
    ]


def test_groups_that_are_subnets_are_said_to_be_subnets() -> None:
    devices = [
        MeshDevice(f"n{at}", card, f"10.{at // 2}.{at}.{card + 1}", "255.255.0.0") for at in range(4) for card in (0, 1)
    ]
    culprits = found(devices, lambda pair: devices[pair[0]].network != devices[pair[1]].network)
    assert [each.hypothesis.kind for each in culprits] == [Kind.SUBNETS_APART]
    assert Hypothesis(Kind.PARTITION, ("n[0-1]", "n[2-3]")) in culprits[0].alternatives


def test_a_dead_node_in_a_sample_is_named_with_what_cannot_be_told_from_it() -> None:
    culprits = found(cluster([4] * 6), lambda pair: any(4 <= at < 8 for at in pair), is_full=False)
    assert [each.hypothesis for each in culprits] == [Hypothesis(Kind.NODE, ("node001",))]
    assert culprits[0].alternatives == (Hypothesis(Kind.UPLINK, ("node001",)),)


def test_a_dead_side_in_a_sample_is_named() -> None:
    devices = cluster([4] * 6)
    assert named(devices, lambda pair: any(devices[at].card == 2 for at in pair), is_full=False) == [
        Hypothesis(Kind.SIDE, (2,))
    ]


def test_a_pair_that_was_not_tried_speaks_neither_for_nor_against() -> None:
    pairs = all_pings(full(DEVICES))
    broken = [pair for pair in pairs if 6 in pair]
    others = [pair for pair in pairs if 6 not in pair]
    # Of the dead card only what it was asked is known.
    culprits = localize_faults(DEVICES, [pair for pair in broken if pair[1] == 6], others)
    assert [each.hypothesis for each in culprits] == [Hypothesis(Kind.CARD, (6,))]
    assert culprits[0].alternatives == (Hypothesis(Kind.RECEIVES, (6,)),)
    # One ping to it that works clears it.
    culprits = localize_faults(DEVICES, broken[1:], [*others, broken[0]])
    assert Hypothesis(Kind.CARD, (6,)) not in [each.hypothesis for each in culprits]


def pings_of(devices: Sequence[MeshDevice]) -> st.SearchStrategy[tuple[list[Pair], list[Pair]]]:
    """Any division of a mesh into failing, working and untried pings."""
    pairs = all_pings(full(devices))
    letters = st.lists(st.sampled_from("fffoou"), min_size=len(pairs), max_size=len(pairs))
    return letters.map(
        lambda drawn: (
            [pair for pair, letter in zip(pairs, drawn) if letter == "f"],
            [pair for pair, letter in zip(pairs, drawn) if letter == "o"],
        )
    )


@settings(max_examples=40, deadline=None)
@given(pings_of(SMALL := cluster([2, 2, 1])))
def test_an_explanation_covers_all_failures_contradicts_no_success_and_has_no_part_too_many(
    pings: tuple[list[Pair], list[Pair]],
) -> None:
    failing, working = pings
    culprits = localize_faults(SMALL, failing, working)
    topology = MeshTopology(SMALL, working)
    for each in culprits:
        if each.hypothesis.kind in FLAPS:  # it says of itself that some of its pings work
            assert set(each.explains) == {pair for pair in failing if is_of(SMALL, each.hypothesis, pair)}
            assert any(is_of(SMALL, each.hypothesis, pair) for pair in working)
            continue
        assert not any(each.hypothesis in hypotheses_of(topology, pair) for pair in working)
        assert set(each.explains) == {pair for pair in failing if each.hypothesis in hypotheses_of(topology, pair)}
    assert {pair for each in culprits for pair in each.explains} == set(failing)
    for each in culprits:
        rest = {pair for other in culprits if other is not each for pair in other.explains}
        assert rest != set(failing), "one could be left out"
        for other in each.alternatives:
            if other.kind in FLAPS:
                assert {pair for pair in failing if is_of(SMALL, other, pair)} | rest == set(failing)
                continue
            assert not any(other in hypotheses_of(topology, pair) for pair in working)
            assert {pair for pair in failing if other in hypotheses_of(topology, pair)} | rest == set(failing)


def fewest(devices: Sequence[MeshDevice], failing: Sequence[Pair], working: Sequence[Pair]) -> int:
    """The size of the smallest explanation, by trying all."""
    topology = MeshTopology(devices, working)
    hypotheses = {each for pair in failing for each in hypotheses_of(topology, pair)}
    hypotheses -= {each for pair in working for each in hypotheses_of(topology, pair)}
    covers = [{pair for pair in failing if each in hypotheses_of(topology, pair)} for each in hypotheses]
    for size in range(len(failing) + 1):
        if any(set().union(*some) >= set(failing) for some in combinations(covers, size)):
            return size
    raise AssertionError("the pairs themselves explain everything")


# What flaps, and groups of which one is cut by the other fault, can take more words than were planted.
STEADY = sorted(name for name in FAULTS if "flap" not in name and not name.startswith("groups"))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(STEADY), min_size=1, max_size=2, unique=True))
def test_planted_faults_are_explained_by_no_more_culprits_than_were_planted(names: list[str]) -> None:
    culprits = found(DEVICES, lambda pair: any(FAULTS[name][0](pair) for name in names))
    assert len(culprits) <= sum(len(FAULTS[name][1]) for name in names)


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from(all_pings(full(TINY := cluster([2, 1, 1])))), max_size=7))
def test_small_meshes_get_the_fewest_culprits_there_are_or_one_more(failing: set[Pair]) -> None:
    """One more, because the choice is greedy: about one random mesh in some hundreds needs less."""
    working = [pair for pair in all_pings(full(TINY)) if pair not in failing]
    # What flaps may explain in one what else takes several, and is none of those that are tried here.
    assert len(localize_faults(TINY, sorted(failing), working)) <= fewest(TINY, sorted(failing), working) + 1
