"""The formulas against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuenv.preflight.memory import phases
from npuenv.preflight.memory.phases import GIB, moments, reserve_gib, usable_gib
from npuenv.preflight.memory.types import Model, Placement, Sizes
from tests.preflight.memory.recipes import TWO_NODES, TWO_NODES_PLACES, aqn, cards, colocated, roll, verl

# 1e9 parameters on 10 layers, width 1000, 10 heads of 100, 2 of keys and values, 1000 tokens in the vocabulary.
ROUND = Model("round", 1e9, 10, 1000, 4000, 10, 2, 100, 1000, is_tied=True)
SIZES = Sizes(100, 300, 64, 8, 16, 2, 4)
JOB = replace(verl("x", cards(8), SIZES, 0.5), model=ROUND, removes_padding=True)
ZERO3 = replace(JOB, engine="deepspeed-zero3", framework="roll", release="0.2.1")


def test_fsdp_shards_sixteen_bytes_a_parameter() -> None:
    assert phases.states(JOB, 8) == phases.States(0.5e9, 0.5e9, 1e9)


def test_zero_3_keeps_bf16_weights_and_a_copy_in_fp32() -> None:
    assert phases.states(ZERO3, 4) == phases.States(0.5e9, 0.5e9, 3e9)


def test_a_smaller_shard_group_keeps_more_on_a_card() -> None:
    assert phases.states(replace(JOB, shard_cards=2), 8).optimizer == 4e9


def test_lora_has_gradients_and_moments_of_the_adapters_only() -> None:
    # rank 8 x 10 layers x (2 x 2000 for query and output, 2 x 1200 for keys and values, 3 x 5000)
    assert phases.adapters(ROUND, 8) == 8 * 10 * 21400
    found = phases.states(replace(JOB, lora_rank=8), 8)
    assert (found.weights, found.gradients, found.optimizer) == (0.5e9, 4 * 1712000 / 8, 8 * 1712000 / 8)


def test_fsdp_gathers_the_root_and_two_layers() -> None:
    layer = (1e9 - 1e6) / 10
    assert phases.gathered(JOB) == pytest.approx(2 * 1e6 + 4 * layer + 4 * layer)
    assert phases.gathered(ZERO3) == 2 * 1e9 + 2 * 5e8


def test_checkpoints_keep_one_row_a_layer() -> None:
    kept, layer = phases.activations(JOB, 100)
    per_token = 16 * 1000 + 4 * 12 * 100 + 8 * 4000
    assert kept == 10 * 100 * 2 * 1000
    assert layer == 1.5 * 100 * per_token
    assert phases.activations(replace(JOB, checkpoints_gradients=False), 100)[0] == 10 * 100 * per_token


def test_tokens_are_whole_sequences_over_the_sequence_parallelism() -> None:
    assert phases.tokens(JOB, 3, None) == 1200
    assert phases.tokens(replace(JOB, sequence_parallel=4), 3, None) == 300
    assert phases.tokens(JOB, 3, 1000) == 1000
    assert phases.tokens(JOB, 3, 10) == 400  # one longest sequence


@pytest.mark.parametrize(
    ("job", "update", "scoring", "plain"),
    [
        (JOB, 6, 6, 4),
        (replace(JOB, has_entropy_loss=True), 12, 6, 4),
        # answers are 300 of 400 tokens: 4 + 6 x 3/4, 2 + 6 x 3/4, 2 + 4 x 3/4
        (replace(JOB, removes_padding=False), 8.5, 6.5, 5),
        (ZERO3, 12, 6, 4),
        (replace(ZERO3, release="0.3.0"), 22, 14, 10),
    ],
)
def test_logits_cost_bytes_per_token_and_entry(job: object, update: float, scoring: float, plain: float) -> None:
    assert phases.update_logits(job, 400) == update * 400 * 1000  # type: ignore[arg-type]
    assert phases.scoring_logits(job, 400, with_entropy=True) == scoring * 400 * 1000  # type: ignore[arg-type]
    assert phases.scoring_logits(job, 400, with_entropy=False) == plain * 400 * 1000  # type: ignore[arg-type]


def test_an_entropy_in_chunks_costs_three_copies_of_2048_rows() -> None:
    chunked = replace(JOB, chunks_entropy=True)
    assert phases.scoring_logits(chunked, 100_000, with_entropy=True) == 4 * 1e8
    assert phases.scoring_logits(chunked, 2048, with_entropy=True) == 2 * 2048e3 + 12 * 2048e3


def test_the_cache_of_a_token_is_divided_no_finer_than_its_heads() -> None:
    assert phases.cache_per_token(JOB) == 2 * 2 * 2 * 100 * 10
    assert phases.cache_per_token(replace(JOB, tensor_parallel=2)) == 4000
    assert phases.cache_per_token(replace(JOB, tensor_parallel=10)) == 4000
    assert phases.cache_per_token(replace(JOB, model=replace(ROUND, latent=50))) == 2 * 50 * 10


def test_the_engine_gets_its_share_whatever_it_holds() -> None:
    room = phases.generation_room(JOB, 40e9)
    assert room.share == 20e9
    assert room.weights == 2e9
    assert room.activations == 2 * 8192 * (6 * 1000 + 3 * 4000)
    assert room.cache == room.share - room.weights - room.activations
    assert room.sequence == 400 * 8000


def test_a_long_sequence_read_in_one_piece_costs_more_than_8192_tokens() -> None:
    long = replace(JOB, sizes=replace(SIZES, response_length=20000))
    assert phases.generation_room(long, 40e9).activations == 2 * 20100 * 18000
    pieces = replace(long, sizes=replace(long.sizes, batched_tokens=1000))
    assert phases.generation_room(pieces, 40e9).activations == 2 * 1000 * 18000


@pytest.mark.parametrize(("memory", "usable"), [(64.0, 60.96), (32.0, 29.50)])
def test_what_the_driver_leaves_is_what_torch_printed(memory: float, usable: float) -> None:
    assert usable_gib(memory) == pytest.approx(usable, abs=0.05)
    assert usable_gib(memory) + reserve_gib(memory) == memory


def named(job: object, placement: Placement, name: str) -> dict[str, float]:
    found = next(moment for moment in moments(job, placement) if moment.name == name)  # type: ignore[arg-type]
    return {share.what: share.gib for share in found.shares}


def test_the_trainer_rests_beside_the_engine_without_gradients() -> None:
    found = named(aqn("base"), colocated(8), "generation")
    assert found["trainer"] == pytest.approx(1543714304 * 12 / 8 / GIB)
    assert found["engine"] + found["cache"] == pytest.approx(0.4 * 61)
    assert found["communication"] == 1.0 + 0.5
    assert found["reserve"] == 3.0


def test_what_verl_offloads_rests_on_the_host_but_comes_back_for_the_update() -> None:
    job = replace(JOB, offloads_parameters=True, offloads_optimizer=True)
    assert "trainer" not in named(job, colocated(8), "generation")
    assert named(job, colocated(8), "update")["optimizer"] == 1e9 / GIB


def test_what_roll_offloads_stays_away() -> None:
    found = named(TWO_NODES, TWO_NODES_PLACES, "update")
    assert not {"weights", "gradients", "optimizer"} & set(found)


def test_the_shared_reference_of_roll_is_a_whole_copy_beside_a_sleeping_engine() -> None:
    found = named(TWO_NODES, TWO_NODES_PLACES, "reference")
    assert found["weights"] == 2 * 7615616512 / GIB
    assert found["sleeping"] == 1.5


def test_an_engine_that_stays_awake_leaves_no_room_for_the_reference() -> None:
    awake = replace(TWO_NODES, engine_sleeps=False)
    assert named(awake, TWO_NODES_PLACES, "reference")["sleeping"] == pytest.approx(0.8 * 61)


def test_a_reference_on_cards_of_its_own_has_no_engine_beside_it() -> None:
    places = Placement((0, 1, 2, 3), (4, 5), (6, 7))
    job = roll("Qwen/Qwen2.5-0.5B-Instruct", cards(8), SIZES, 0.8)
    assert "sleeping" not in named(job, places, "reference")
    assert "reference" not in named(job, places, "generation")


def test_a_critic_of_the_same_size_rests_beside_everything() -> None:
    job = replace(JOB, has_critic=True)
    assert named(job, colocated(8), "update")["critic"] == 1.5e9 / GIB
    assert named(job, colocated(8), "generation")["critic"] == 1.5e9 / GIB


def test_each_dimension_of_parallelism_has_its_own_buffers() -> None:
    job = replace(JOB, sequence_parallel=2, hccl_buffer_mib=512)
    assert named(job, colocated(8), "update")["communication"] == 2.0


def test_a_reference_may_be_whole_or_sharded_whatever_trains() -> None:
    places = Placement((0, 1, 2, 3), (4, 5), (6, 7))
    assert named(JOB, places, "reference")["weights"] == 4e9 / 2 / GIB
    assert named(replace(JOB, replicates_reference=True), places, "reference")["weights"] == 2e9 / GIB
    assert named(replace(ZERO3, replicates_reference=False), places, "reference")["weights"] == 2e9 / 2 / GIB
