"""Which cards learn and generate, and where they are: from the settings' words to a slot for every process."""

from __future__ import annotations

import re

import pytest

from trainer.config import BadSetting, parse
from trainer.placement import Layout, Node, Placement, PlacementError, place_workers, read, spans

DEVICES = ("auto", "cpu", "npu", "cuda")


def layout(*words: str) -> Layout:
    config = parse(["prompts_per_step=48", *words], devices=DEVICES)
    found = read(config)
    assert found is not None
    return found


def cluster(*cards: int, kind: str = "NPU", cpus: int = 64) -> list[Node]:
    """Nodes 10.0.0.1, 10.0.0.2 ... with so many cards each; this process is on the first."""
    made = []
    for number, count in enumerate(cards, start=1):
        total = {"CPU": float(cpus), **({kind: float(count)} if count else {})}
        made.append(Node(f"key{number}", f"10.0.0.{number}", total, is_home=number == 1))
    return made


def where(found: Placement) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {each.name: (found.nodes[each.node].address, each.local) for each in (*found.learners, *found.generators)}


def test_without_cards_and_generators_nothing_is_placed() -> None:
    assert read(parse([], devices=DEVICES)) is None


def test_generators_without_cards_are_processes_on_this_machine_whatever_cards_it_has() -> None:
    found = layout("ranks=2", "generators=3")
    assert (found.learners, found.generators) == ((0, 1), ((2,), (3,), (4,)))
    assert found.describe() == "on this machine: ranks 2, generators 3"
    placement = place_workers(found, cluster(8, 8), kind="CPU")
    assert placement.bundles() == [{"CPU": 5.0, "node:10.0.0.1": 0.001}]


@pytest.mark.parametrize("words", ["0-3", "[0,1,2,3]", "list(range(0,4))", "list(range(0, 2)) + [2, 3]"])
def test_every_spelling_means_the_same_cards(words: str) -> None:
    assert layout(f"train_cards={words}").learners == (0, 1, 2, 3)


def test_cards_given_twice_are_colocated_and_need_no_generators() -> None:
    for words in (["train_cards=0-7"], ["train_cards=0-7", "infer_cards=list(range(0,8))"]):
        assert layout(*words).generators == ()
        assert layout(*words).describe() == "colocated: learns and generates on 0-7"


def test_cards_apart_are_split_one_generator_a_card() -> None:
    found = layout("train_cards=0-3", "infer_cards=4-7")
    assert found.generators == ((4,), (5,), (6,), (7,))
    assert found.describe() == "split: learns on 0-3, generates on 4-7 (4 engines)"


def test_an_engine_of_several_cards_takes_neighbours() -> None:
    found = layout("train_cards=0-3", "infer_cards=4-7", "engine=vllm", "tensor_parallel=2")
    assert found.generators == ((4, 5), (6, 7))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["infer_cards=4-7"], "infer_cards=4-7 needs train_cards too"),
        (["train_cards=0-3", "infer_cards=2-5"], "infer_cards=2-5 .* 2-3 "),
        (["train_cards=0-3", "infer_cards=0-1"], "infer_cards=0-1 .* 0-1 "),
        (["train_cards=0,2"], "train_cards=0,2 .* 1"),
        (["train_cards=0-3", "infer_cards=6-7"], "leave out cards 4-5"),
        (["train_cards=0,0"], "train_cards=0,0 names card 0 twice"),
        (["train_cards=banana"], "train_cards=banana "),
        (["train_cards=3-0"], "train_cards=3-0 .* 3 .* 0"),
        (
            ["train_cards=0-15", "nodes=1", "cards_per_node=8"],
            "card 15: nodes=1 .* cards_per_node=8 .* 0-7",
        ),
        (["train_cards=0-1", "nodes=3"], "nodes=3 "),
        (["train_cards=0-3", "ranks=2"], "ranks=2 contradicts train_cards=0-3: 4 cards learn"),
        (["train_cards=0-3", "engine=vllm", "tensor_parallel=2"], "tensor_parallel=2 needs infer_cards apart"),
        (
            ["train_cards=0-3", "infer_cards=4-6", "engine=vllm", "tensor_parallel=2"],
            "multiple of tensor_parallel=2",
        ),
        (
            ["train_cards=0-2", "infer_cards=3-6", "engine=vllm", "tensor_parallel=2", "cards_per_node=4"],
            "tensor_parallel=2 .* 3-4 .* two nodes",
        ),
    ],
)
def test_cards_that_cannot_be_are_refused_in_one_sentence(words: list[str], told: str) -> None:
    with pytest.raises(BadSetting) as refused:
        layout(*words)
    assert re.search(told, str(refused.value)) and "\n" not in str(refused.value)


def test_eight_cards_split_on_one_node() -> None:
    found = place_workers(layout("train_cards=0-3", "infer_cards=4-7"), cluster(8), kind="NPU")
    assert where(found)["rank 3"] == ("10.0.0.1", (3,))
    assert where(found)["generator 0"] == ("10.0.0.1", (4,))
    assert found.bundles() == [{"CPU": 8.0, "node:10.0.0.1": 0.001, "NPU": 8.0}]


def test_sixteen_cards_of_one_node_split() -> None:
    found = place_workers(layout("train_cards=0-7", "infer_cards=8-15"), cluster(16), kind="NPU")
    assert where(found)["generator 7"] == ("10.0.0.1", (15,))
    assert found.bundles()[0]["NPU"] == 16


def test_two_nodes_of_eight_split_learn_on_one_and_generate_on_the_other() -> None:
    found = place_workers(layout("train_cards=0-7", "infer_cards=8-15", "nodes=2"), cluster(8, 8), kind="NPU")
    assert {where(found)[f"rank {n}"][0] for n in range(8)} == {"10.0.0.1"}
    assert where(found)["generator 3"] == ("10.0.0.2", (3,))
    assert [bundle["NPU"] for bundle in found.bundles()] == [8, 8]


@pytest.mark.parametrize(
    ("words", "engines"),
    [([], [(4,), (5,), (6,), (7,)]), (["engine=vllm", "tensor_parallel=4"], [(4, 5, 6, 7)])],
)
def test_two_nodes_of_eight_can_each_learn_and_generate_on_a_half(
    words: list[str], engines: list[tuple[int, ...]]
) -> None:
    """ROLL's second layout of two servers: both spans lie on both nodes, which count their own cards from 0."""
    train = "train_cards=list(range(0,4)) + list(range(8,12))"
    infer = "infer_cards=list(range(4,8)) + list(range(12,16))"
    wanted = layout(train, infer, "nodes=2", *words)
    assert wanted.describe().startswith("split: learns on 0-3,8-11, generates on 4-7,12-15 (")
    found = place_workers(wanted, cluster(8, 8), kind="NPU")
    both = ("10.0.0.1", "10.0.0.2")
    ranks: list[tuple[str, tuple[int, ...]]] = [(address, (card,)) for address in both for card in range(4)]
    generators = [(address, cards) for address in both for cards in engines]
    expected = {f"rank {number}": place for number, place in enumerate(ranks)}
    expected |= {f"generator {number}": place for number, place in enumerate(generators)}
    assert where(found) == expected
    assert [bundle["NPU"] for bundle in found.bundles()] == [8, 8]


def test_two_nodes_of_eight_colocated_hold_a_rank_a_card() -> None:
    found = place_workers(layout("train_cards=list(range(0,16))", "infer_cards=0-15"), cluster(8, 8), kind=None)
    assert where(found)["rank 11"] == ("10.0.0.2", (3,)) and found.resource == "NPU"


def test_the_node_of_this_process_comes_first_and_the_others_in_the_order_of_their_numbers() -> None:
    nodes = [Node("b", "10.0.0.10", {"CPU": 9, "NPU": 1}), Node("a", "10.0.0.9", {"CPU": 9, "NPU": 1})]
    nodes.append(Node("h", "10.0.0.50", {"CPU": 9, "NPU": 1}, is_home=True))
    found = place_workers(layout("train_cards=0-2"), nodes, kind="NPU")
    assert [node.address for node in found.nodes] == ["10.0.0.50", "10.0.0.9", "10.0.0.10"]


def test_rank_0_is_where_this_process_is_whatever_the_numbers() -> None:
    found = place_workers(layout("train_cards=8-15", "infer_cards=0-7"), cluster(8, 8), kind="NPU")
    assert where(found)["rank 0"] == ("10.0.0.1", (0,)) and where(found)["generator 0"] == ("10.0.0.2", (0,))


def test_a_spare_node_takes_the_place_of_a_lost_one() -> None:
    wanted = layout("train_cards=0-7", "infer_cards=8-15")
    nodes = cluster(8, 8, 8)
    assert [each.address for each in place_workers(wanted, nodes, kind="NPU").nodes] == ["10.0.0.1", "10.0.0.2"]
    del nodes[1]
    assert [each.address for each in place_workers(wanted, nodes, kind="NPU").nodes] == ["10.0.0.1", "10.0.0.3"]


def test_where_no_node_has_cards_the_numbers_count_processes() -> None:
    found = place_workers(layout("train_cards=0-1", "infer_cards=2-3"), cluster(0, cpus=4), kind=None)
    assert found.resource == "CPU" and found.bundles() == [{"CPU": 4.0, "node:10.0.0.1": 0.001}]
    two = place_workers(layout("train_cards=0-1", "infer_cards=2-3", "nodes=2"), cluster(0, 0), kind=None)
    assert where(two)["generator 1"] == ("10.0.0.2", (1,))


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (cluster(8, kind="GPU"), r"registered NPU: 10\.0\.0\.1: 8 GPU, 64 CPU\."),
        (cluster(0), "ASCEND_RT_VISIBLE_DEVICES"),
        (cluster(4), r"card 7 .* node 2 .* 4 NPU .* 1 node .* NPU: 10\.0\.0\.1: 4 NPU"),
        (cluster(4, 8), "different .* NPU"),
        (cluster(8, cpus=4), r"10\.0\.0\.1 has 4 CPU .* 8 processes .* 8"),
    ],
)
def test_a_cluster_without_room_is_explained_before_ray_is_asked(nodes: list[Node], told: str) -> None:
    with pytest.raises(PlacementError) as refused:
        place_workers(layout("train_cards=0-3", "infer_cards=4-7"), nodes, kind="NPU")
    assert re.search(told, str(refused.value)) and "\n" not in str(refused.value)


def test_enough_in_total_is_not_enough_on_one_node() -> None:
    with pytest.raises(PlacementError, match=r"10\.0\.0\.1 has 4 NPU .* 8 processes .* 8"):
        place_workers(layout("train_cards=0-7", "cards_per_node=8"), cluster(4, 4), kind="NPU")


def test_spans_are_short() -> None:
    assert spans([5, 0, 1, 2]) == "0-2,5"


# Seats at their edges: the first card that is not there, nodes that differ, and where the own node has no card.


def refusal(*words: str) -> str:
    with pytest.raises(BadSetting) as refused:
        layout(*words)
    return str(refused.value)


def unfit(words: list[str], nodes: list[Node], kind: str | None = "NPU") -> str:
    with pytest.raises(BadSetting) as refused:
        place_workers(layout(*words), nodes, kind=kind)
    return str(refused.value)


def test_the_first_card_behind_the_last_node_is_not_there() -> None:
    assert layout("train_cards=0-7", "nodes=1", "cards_per_node=8").cards[-1] == 7
    told = refusal("train_cards=0-8", "nodes=1", "cards_per_node=8")
    assert re.search("card 8: nodes=1 .* cards_per_node=8 .* 0-7", told)


def test_as_many_nodes_as_cards_are_the_most() -> None:
    assert layout("train_cards=0-1", "nodes=2").nodes == 2
    assert "nodes=3 is more" in refusal("train_cards=0-1", "nodes=3")


def test_nodes_that_are_asked_for_must_be_there_though_their_cards_are_not_named() -> None:
    words = ["train_cards=0-7", "nodes=2", "cards_per_node=8"]
    assert [node.address for node in place_workers(layout(*words), cluster(8, 8), kind="NPU").nodes] == [
        "10.0.0.1",
        "10.0.0.2",
    ]
    assert re.search(r"card 7 .* node 2 .* 1 node ", unfit(words, cluster(8)))


def test_a_node_without_cards_is_passed_over_even_if_it_is_the_own_one() -> None:
    found = place_workers(layout("train_cards=0-7", "infer_cards=8-15"), cluster(0, 8, 8), kind="NPU")
    assert [node.address for node in found.nodes] == ["10.0.0.2", "10.0.0.3"]
    assert where(found)["rank 0"] == ("10.0.0.2", (0,))


def test_the_own_node_stands_where_rank_0_is_between_the_others() -> None:
    found = place_workers(layout("train_cards=8-15", "infer_cards=0-7,16-23"), cluster(8, 8, 8), kind="NPU")
    assert [node.address for node in found.nodes] == ["10.0.0.2", "10.0.0.1", "10.0.0.3"]
    assert where(found)["rank 0"][0] == "10.0.0.1"


def test_cpus_can_be_asked_for_where_there_are_cards() -> None:
    found = place_workers(layout("train_cards=0-1", "infer_cards=2-3"), cluster(8), kind="CPU")
    assert (found.resource, found.bundles()) == ("CPU", [{"CPU": 4.0, "node:10.0.0.1": 0.001}])


def test_a_node_with_both_kinds_of_cards_lends_its_npus() -> None:
    node = Node("k", "10.0.0.1", {"CPU": 8.0, "GPU": 4.0, "NPU": 4.0}, is_home=True)
    assert place_workers(layout("train_cards=0-3"), [node], kind=None).resource == "NPU"


def test_nodes_of_different_sizes_do_where_the_smallest_holds_all_or_its_share() -> None:
    found = place_workers(layout("train_cards=0-3"), cluster(4, 8), kind="NPU")
    assert [node.address for node in found.nodes] == ["10.0.0.1"]
    shared = place_workers(layout("train_cards=0-7", "nodes=2"), cluster(4, 8), kind="NPU")
    assert where(shared)["rank 7"] == ("10.0.0.2", (3,))
    assert re.search(r"different .* 2 NPU.* 8 NPU", unfit(["train_cards=0-7", "nodes=2"], cluster(2, 8)))
    assert re.search(r"card 7 .* node 4 .* 2 NPU", unfit(["train_cards=0-7", "nodes=2"], cluster(2, 2)))


def test_an_odd_number_of_processes_is_spread_with_the_larger_part_first() -> None:
    found = place_workers(layout("train_cards=0-2", "nodes=2"), cluster(0, 0), kind=None)
    assert [bundle["CPU"] for bundle in found.bundles()] == [2.0, 1.0]


def test_an_engine_that_the_nodes_own_sizes_tear_apart_is_refused() -> None:
    words = ["train_cards=0-1", "infer_cards=2-5", "engine=vllm", "tensor_parallel=2"]
    assert re.search(r"tensor_parallel=2 .* 2-3 .* two nodes", unfit(words, cluster(3, 3)))
    assert place_workers(layout(*words), cluster(4, 4), kind="NPU").generators[1].local == (0, 1)


def test_the_size_of_an_engine_is_for_those_that_can_be_spread() -> None:
    assert layout("train_cards=0-1", "infer_cards=2-3").generators == ((2,), (3,))
    assert "tensor_parallel=2 needs engine=vllm" in refusal("train_cards=0-1", "infer_cards=2-3", "tensor_parallel=2")


def test_what_is_unfit_is_a_setting_that_cannot_be() -> None:
    with pytest.raises(PlacementError, match=r"registered GPU: 10\.0\.0\.1: 8 NPU"):
        place_workers(layout("train_cards=0-3"), cluster(8), kind="GPU")
