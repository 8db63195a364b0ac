"""Seats at their edges: the first card that is not there, nodes that differ, and where the own node has no card."""

from __future__ import annotations

import re

import pytest

from tests.trainer.placement.test_cards import cluster, layout, where
from trainer.config import BadSetting
from trainer.placement.cards import Node, PlacementError, place_workers


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
