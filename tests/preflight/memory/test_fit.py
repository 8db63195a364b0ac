"""What is advised, in which order, and that the job fits with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuenv.core.messages import Message, say
from npuenv.preflight.memory import estimate, plan
from npuenv.preflight.memory.feasibility import _raise_utilization, fit
from npuenv.preflight.memory.types import Job, Sizes
from tests.preflight.memory.recipes import (
    EIGHT_A_CARD,
    QUICK_START,
    RECIPES,
    ROLL_8_CARDS,
    SEVEN_ON_FOUR,
    TWO_NODES,
    TWO_NODES_PLACES,
    Recipe,
    cards,
    colocated,
    dapo,
    roll,
    serve_72b,
    verl,
)
from tests.support.sentences import says

BIG = verl("Qwen/Qwen2.5-7B-Instruct", cards(8), Sizes(1024, 3072, 128, 8, 64, 32, 32), 0.6, removes_padding=True)


NUMBERS = ("from_micro", "from_accumulation", "micro", "accumulation")


def fitted(job: Job) -> Job:
    """The job with all that is advised."""
    changes = fit(job, plan(job))
    return changes[-1].job if changes else job


def verdict(job: Job) -> str:
    return estimate(job, plan(job)).verdict


def keys(job: Job, count: int = 8) -> list[str]:
    return [message.key.removeprefix("placement.advice-") for message in estimate(job, colocated(count)).advice]


def test_verl_lowers_the_micro_batches_first() -> None:
    assert keys(BIG) == ["micro", "scoring", "then-feasible"]


def test_the_advice_gives_the_numbers_that_fit() -> None:
    found = estimate(BIG, colocated(8)).advice
    assert found[0].args["from_micro"] == 32
    assert found[0].args["micro"] == 4
    assert (found[0].args["from_accumulation"], found[0].args["accumulation"]) == (2, 16)
    assert found[0].key == "placement.advice-micro"


def test_micro_batch_times_accumulation_stays() -> None:
    args = {name: int(str(estimate(BIG, colocated(8)).advice[0].args[name])) for name in NUMBERS}
    before = args["from_micro"] * args["from_accumulation"]
    assert args["micro"] * args["accumulation"] == before == 64 * 8 / 8


def test_verl_lowers_the_engines_share_where_generation_is_the_worst_moment() -> None:
    full = replace(BIG, sizes=replace(BIG.sizes, micro_batch=1, log_prob_micro_batch=1), gpu_memory_utilization=0.85)
    assert keys(full) == ["utilization", "then-feasible"]
    assert fitted(full).gpu_memory_utilization == 0.65  # 0.75 leaves 13 GiB for 14 GiB at rest, and the driver
    assert fitted(full).sizes == full.sizes


def test_answers_are_cut_last() -> None:
    long = replace(BIG, sizes=replace(BIG.sizes, response_length=60000, micro_batch=1, log_prob_micro_batch=1))
    assert keys(long)[-2:] == ["response", "then-feasible"]
    assert "micro" not in keys(long)


def test_a_dynamic_batch_is_never_smaller_than_one_sequence() -> None:
    job = dapo("Qwen/Qwen3-8B-Base", cards(8, memory_gib=36.0), 16, 1, 0.6, 2, micro=20000, tensor_parallel=2)
    first, second = estimate(job, colocated(8)).advice[:2]
    assert (first.key, first.args["from_tokens"], first.args["tokens"]) == ("placement.advice-tokens", 20000, 11264)
    assert (second.key, second.args["response"]) == ("placement.advice-response", 10240)
    assert fitted(job).sizes.micro_tokens == (2048 + 10240) // 2


def test_a_copy_on_each_card_is_spread_over_all_first() -> None:
    job = replace(BIG, sizes=replace(BIG.sizes, micro_batch=1, log_prob_micro_batch=1), shard_cards=1)
    first = estimate(job, colocated(8)).advice[0]
    assert (first.key, first.args["cards"]) == ("placement.advice-shards", 8)
    assert fitted(job).shard_cards is None


def test_roll_offloads_before_anything_else() -> None:
    found = estimate(SEVEN_ON_FOUR, ROLL_8_CARDS).advice
    assert [message.key for message in found] == ["placement.advice-offload", "placement.advice-then-feasible"]


def test_roll_then_lowers_the_batch_and_raises_the_accumulation() -> None:
    found = estimate(EIGHT_A_CARD, TWO_NODES_PLACES).advice
    assert found[1].args["micro"] == 4
    assert found[1].args["accumulation"] == 2 * int(str(found[1].args["from_accumulation"]))


def test_roll_then_lowers_the_lengths() -> None:
    job = roll("Qwen/Qwen2.5-7B", cards(8), Sizes(1024, 60000, 64, 8, 32, 1, 1, 61024), 0.8)
    placement = plan(job)
    found = estimate(job, placement)
    assert [m.key for m in found.advice[:2]] == ["placement.advice-offload", "placement.advice-response"]
    assert (fitted(job).sizes.response_length, fitted(job).sizes.max_model_len) == (60000 // 4, 1024 + 60000 // 4)
    assert estimate(fitted(job), placement).verdict == "feasible"


def test_a_tight_job_is_told_how_to_get_room() -> None:
    found = estimate(TWO_NODES, TWO_NODES_PLACES)
    assert found.verdict == "tight"
    assert [m.key for m in found.advice] == ["placement.advice-scoring", "placement.advice-then-feasible"]
    assert found.advice[0].args["scoring"] == 4


def test_a_small_cache_wants_tensor_parallelism() -> None:
    job = verl("Qwen/Qwen2.5-32B-Instruct", cards(16, 2), Sizes(1024, 1024, 64, 8, 32, 1, 1), 0.4, removes_padding=True)
    found = estimate(job, plan(job))
    assert found.says[0].key == "placement.small-cache"
    assert found.advice[0].key == "placement.advice-parallel"
    assert fitted(job).tensor_parallel == 4
    assert verdict(fitted(job)) == "feasible"


def test_an_engines_share_has_two_decimals() -> None:
    raised = _raise_utilization(replace(QUICK_START, gpu_memory_utilization=0.456), colocated(8))
    assert raised is not None and raised.gpu_memory_utilization == 0.56


def test_an_engine_alone_is_told_a_shorter_length() -> None:
    proposed = estimate(serve_72b(128000), replace(colocated(8), train=(), reference=()))
    assert proposed.advice[0].key == "placement.advice-response"
    assert int(str(proposed.advice[0].args["response"])) >= 31000


def test_where_nothing_helps_more_cards_are_asked_for() -> None:
    job = verl("Qwen/Qwen2.5-72B-Instruct", cards(8), Sizes(512, 512, 64, 8, 32, 1, 1), 0.5, tensor_parallel=8)
    (found,) = estimate(job, colocated(8)).advice
    assert found.key == "placement.advice-more-nodes"
    nodes = int(str(found.args["nodes"]))
    assert verdict(fitted(replace(job, cards=cards(8, nodes)))) in ("feasible", "tight")
    assert verdict(fitted(replace(job, cards=cards(8, nodes // 2)))) == "infeasible"


def test_where_no_number_of_cards_helps_that_is_said() -> None:
    job = verl("Qwen/Qwen2.5-72B-Instruct", cards(2, memory_gib=16.0), Sizes(512, 512, 64, 8, 32, 1, 1), 0.5)
    assert keys(job, 2) == ["more-cards"]


def test_a_job_that_fits_stays_as_it_is() -> None:
    assert fitted(QUICK_START) == QUICK_START


def test_an_almost_empty_card_is_told_to_take_more() -> None:
    small = replace(QUICK_START, gpu_memory_utilization=0.3, sizes=replace(QUICK_START.sizes, micro_batch=4))
    (found,) = estimate(small, colocated(8)).advice
    assert found.key == "placement.advice-room"
    steps = (
        Message("placement.room-micro", {"micro": 8}),
        Message("placement.room-utilization", {"utilization": 0.4}),
    )
    assert says(say(found), "placement.advice-room", percent=36, steps=steps)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.id)
def test_whatever_is_advised_last_fits_when_it_is_done(recipe: Recipe) -> None:
    """On cards of half the size: either no advice helps, and that is said, or the proposed job fits."""
    half = replace(recipe.job, cards=replace(recipe.job.cards, memory_gib=32.0))
    found = estimate(half, recipe.placement)
    if found.verdict == "infeasible":
        assert found.advice[-1].key in (
            "placement.advice-then-feasible",
            "placement.advice-then-tight",
            "placement.advice-more-cards",
            "placement.advice-more-nodes",
        )
