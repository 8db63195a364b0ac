"""Which cards each role gets, by framework, release and number of cards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuenv.core.errors import BadInput
from npuenv.core.messages import say
from npuenv.preflight.memory import estimate, find_model, plan
from npuenv.preflight.memory.types import Job, Placement, written_cards
from tests.preflight.memory.recipes import FROZEN_LAKE, QUICK_START, cards, colocated

NEW_ROLL = replace(FROZEN_LAKE, release="0.3.0", engine="fsdp2")


def places(job: Job, **options: object) -> tuple[str, str, str]:
    found = plan(job, **options)  # type: ignore[arg-type]
    return written_cards(found.train, ", "), written_cards(found.infer, ", "), written_cards(found.reference, ", ")


@pytest.mark.parametrize(
    ("per_node", "nodes", "train", "infer"),
    [
        (8, 1, "0-3", "4-7"),
        (16, 1, "0-7", "8-15"),
        (8, 2, "0-7", "8-15"),
        (2, 1, "0", "1"),
        (5, 1, "0-2", "3-4"),
        (8, 3, "0-15", "16-23"),
        (16, 4, "0-31", "32-63"),
    ],
)
def test_roll_divides_cards_as_its_guide_does(per_node: int, nodes: int, train: str, infer: str) -> None:
    job = replace(FROZEN_LAKE, cards=cards(per_node, nodes))
    assert places(job) == (train, infer, infer)


def test_generation_gets_whole_engines_only() -> None:
    job = replace(FROZEN_LAKE, cards=cards(6), tensor_parallel=2)
    assert places(job) == ("0-3", "4-5", "4-5")


def test_roll_below_0_3_refuses_to_share_cards() -> None:
    with pytest.raises(BadInput) as caught:
        plan(FROZEN_LAKE, layout="colocated")
    assert caught.value.message.key == "placement.no-sharing"


def test_roll_from_0_3_on_shares_cards_and_splits_when_asked() -> None:
    assert places(NEW_ROLL) == ("0-7", "0-7", "0-7")
    assert places(NEW_ROLL, layout="split") == ("0-3", "4-7", "4-7")


def test_roll_splits_where_sharing_does_not_fit() -> None:
    """8B at a share of 0.8 leaves too little beside it for unsharded rest of four cards, but fits apart."""
    job = replace(
        NEW_ROLL,
        model=find_model("Qwen/Qwen3-8B"),
        gpu_memory_utilization=0.87,
        sizes=replace(NEW_ROLL.sizes, micro_batch=1, log_prob_micro_batch=1, prompt_length=1024, response_length=1024),
    )
    assert estimate(job, colocated(8)).verdict == "infeasible"
    found = plan(job)
    assert found.layout == "split"
    assert estimate(job, found).verdict in ("feasible", "tight")


def test_verl_shares_all_cards_and_splits_for_one_step_off_only() -> None:
    found = plan(QUICK_START)
    assert found == colocated(8)
    assert found.layout == "colocated"
    apart = plan(QUICK_START, layout="split")
    assert (
        written_cards(apart.train, ", "),
        written_cards(apart.infer, ", "),
        written_cards(apart.reference, ", "),
    ) == ("0-3", "4-7", "0-3")


def test_without_a_reference_no_card_holds_one() -> None:
    assert plan(replace(QUICK_START, has_reference=False)).reference == ()


def test_a_parallelism_that_does_not_divide_names_those_that_do() -> None:
    with pytest.raises(BadInput) as caught:
        plan(replace(QUICK_START, tensor_parallel=7))
    assert caught.value.hint is not None
    assert caught.value.hint.args["sizes"] == ("1", "2")  # 14 heads and 8 cards have no more in common


def test_an_estimate_refuses_heads_that_do_not_divide() -> None:
    found = estimate(replace(QUICK_START, tensor_parallel=4), colocated(8))
    assert found.verdict == "infeasible"
    assert found.says[0].key == "placement.heads"


def test_an_unknown_model_stays_unknown() -> None:
    job = replace(QUICK_START, model=find_model("who/knows"))
    found = plan(job)
    judged = estimate(job, found)
    assert (judged.verdict, judged.peak_gib, judged.advice) == ("unknown", 0.0, ())
    assert found == colocated(8)
    assert "who/knows" in say(judged.says[0])


@pytest.mark.parametrize(
    "job",
    [
        replace(QUICK_START, gpu_memory_utilization=1.1),
        replace(QUICK_START, gpu_memory_utilization=0),
        replace(QUICK_START, sizes=replace(QUICK_START.sizes, micro_batch=0)),
        replace(QUICK_START, cards=cards(8, memory_gib=0)),
        replace(QUICK_START, framework="trl"),
        replace(QUICK_START, sequence_parallel=0),
        replace(FROZEN_LAKE, tensor_parallel=0),
        replace(FROZEN_LAKE, release="main"),
        replace(FROZEN_LAKE, cards=cards(1)),
        replace(FROZEN_LAKE, tensor_parallel=8),
        replace(QUICK_START, cards=cards(0)),
    ],
)
def test_what_cannot_be_is_bad_input(job: Job) -> None:
    with pytest.raises(BadInput) as caught:
        plan(job)
    assert len(say(caught.value.message)) > 10


@pytest.mark.parametrize("placement", [Placement((8,), (0,), ()), Placement((0,), (-1,), ()), Placement((), (), ())])
def test_cards_that_the_job_does_not_have_are_bad_input(placement: Placement) -> None:
    with pytest.raises(BadInput):
        estimate(QUICK_START, placement)


def test_card_numbers_are_written_as_people_do() -> None:
    assert written_cards((0, 1, 2, 3, 8), ", ") == "0-3, 8"
    assert written_cards((), ", ") == ""
