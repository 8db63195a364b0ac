"""The measurements: each says yes, says no, and does not say yes to nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.trainer_cases import END, PAD, group, rollout
from trainer.algorithms.packing import make_batch
from trainer.metrics.checks import (
    NOTHING,
    GenerationCheck,
    LogprobsCheck,
    MaskCheck,
    RewardCheck,
    UpdateCheck,
    WeightsCheck,
    first_difference,
)
from trainer.types import Group, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = [group("14=", (5, END), (5, 5, 5)), group("4=", (END,), (3, END))]
BATCH = make_batch(GROUPS, torch.zeros(2, 2), pad=PAD)


Check = MaskCheck | WeightsCheck | LogprobsCheck | GenerationCheck | RewardCheck


@pytest.mark.parametrize(
    "check",
    [MaskCheck(), WeightsCheck(), LogprobsCheck(), GenerationCheck(END), RewardCheck()],
    ids=lambda c: type(c).__name__,
)
def test_what_was_never_measured_is_not_known_and_has_no_numbers(check: Check) -> None:
    for found in (check.result(), UpdateCheck.begin({}).result({})):
        assert (found["passed"], found["reason"]) == (None, NOTHING)
        numbers = {name for name, each in found.items() if isinstance(each, float)}
        assert numbers <= {"limit", "mean_limit", "moved"}  # the weights have not moved: that was looked at


def test_steps_whose_numbers_are_none_have_no_highest_and_lowest() -> None:
    update, reward = UpdateCheck.begin({}), RewardCheck()
    update.add(1e-3, math.nan)
    reward.add(torch.full((2, 2), math.nan), BATCH)
    told = update.result({})
    assert (told["passed"], told["not_finite"], told["grad_norm_highest"], told["grad_norm_lowest"]) == (
        False, 1, None, None,
    )  # fmt: skip
    told = reward.result()
    assert (told["passed"], told["not_finite"], told["lowest"], told["highest"]) == (False, 4, None, None)


def test_an_exact_mask_passes_with_its_counts() -> None:
    check = MaskCheck()
    check.add(GROUPS, BATCH)
    check.add(GROUPS, BATCH)
    assert check.result() == {
        "passed": True, "batches": 2, "generated_tokens": 16, "masked_tokens": 16, "wrong_rows": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("shift", "wrong"), [(-1, 4), (1, 4)])
def test_a_shifted_mask_is_noticed_though_the_sum_agrees(shift: int, wrong: int) -> None:
    check = MaskCheck()
    check.add(GROUPS, replace(BATCH, mask_BT=torch.ones_like(BATCH.mask_BT) ^ BATCH.mask_BT.roll(shift, dims=1)))
    assert check.result()["wrong_rows"] == wrong
    assert check.result()["passed"] is False


def test_a_mask_that_misses_the_last_token_of_one_row_is_noticed() -> None:
    check, mask = MaskCheck(), BATCH.mask_BT.clone()
    mask[1, 2] = False
    check.add(GROUPS, replace(BATCH, mask_BT=mask))
    assert (check.result()["masked_tokens"], check.result()["wrong_rows"]) == (7, 1)
    assert check.result()["passed"] is False


def test_an_environments_words_are_not_to_be_masked_in() -> None:
    turns = Rollout((1, 2, 3), (-1.0, 0.0, -1.0), Stop.TERMINATED, (True, False, True), 1.0)
    groups = [Group(GROUPS[0].prompt, (turns,))]
    check, batch = MaskCheck(), make_batch(groups, torch.zeros(1, 1), pad=PAD)
    check.add(groups, batch)
    assert (check.result()["passed"], check.result()["masked_tokens"]) == (True, 2)
    check.add(groups, replace(batch, mask_BT=torch.ones_like(batch.mask_BT)))
    assert check.result()["wrong_rows"] == 1


def test_answers_that_end_and_differ_pass_and_are_counted() -> None:
    check = GenerationCheck(END)
    check.add([*GROUPS, Group(GROUPS[0].prompt, (rollout((1, END)), replace(rollout((1, END)), stop=Stop.LENGTH)))])
    found = check.result()
    assert (found["passed"], found["answers"], found["ended"], found["groups_of_one_text"]) == (True, 6, 5, 1)
    assert found["tokens"] == 8 + 4


def test_a_group_of_one_answer_is_not_one_of_equal_answers() -> None:
    check = GenerationCheck(END)
    check.add([group("4=", (END,))])
    assert check.result()["groups_of_one_text"] == 0


@pytest.mark.parametrize(
    ("end", "stop", "tokens"), [(None, Stop.END, (1,)), (END, Stop.LENGTH, (1,)), (END, Stop.END, ())]
)
def test_no_end_token_no_end_or_no_words_do_not_pass(end: int | None, stop: Stop, tokens: tuple[int, ...]) -> None:
    check = GenerationCheck(end)
    check.add([Group(GROUPS[0].prompt, (replace(rollout(tokens), stop=stop),))])
    assert check.result()["passed"] is False


REWARDS = torch.tensor([[0.0, 1.0], [0.5, 0.5]])


def rewarded(rewards_PG: torch.Tensor, again_PG: torch.Tensor | None = None, *, lost: bool = False) -> RewardCheck:
    check = RewardCheck()
    check.add(rewards_PG, replace(BATCH, rewards_B=rewards_PG.reshape(-1) * (0 if lost else 1)), again_PG)
    return check


def test_rewards_that_differ_arrive_and_are_repeatable_pass() -> None:
    found = rewarded(REWARDS, REWARDS.clone()).result()
    assert found == {
        "passed": True, "answers": 4, "not_finite": 0, "lowest": 0.0, "highest": 1.0, "first_spread": 1.0,
        "groups": 2, "groups_with_signal": 1, "judged_again": 4, "differ": 0, "is_reordered": False, "lost": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("check", "field", "value"),
    [
        (rewarded(torch.full((2, 2), 0.5)), "highest", 0.5),
        (rewarded(torch.tensor([[0.0, 0.0], [1.0, 1.0]])), "groups_with_signal", 0),
        (rewarded(torch.tensor([[0.0, math.nan], [1.0, 0.0]])), "not_finite", 1),
        (rewarded(REWARDS, REWARDS.flip(1)), "is_reordered", True),
        (rewarded(REWARDS, lost=True), "lost", 3),
    ],
    ids=["constant", "no signal", "nan", "reordered", "lost"],
)
def test_rewards_that_cannot_teach_do_not_pass(check: RewardCheck, field: str, value: object) -> None:
    assert check.result()[field] == value
    assert check.result()["passed"] is False


def test_other_numbers_the_second_time_are_no_reordering() -> None:
    found = rewarded(REWARDS, REWARDS + 0.25).result()
    assert (found["differ"], found["is_reordered"], found["passed"]) == (4, False, True)


def test_equal_rewards_leave_the_second_opinion_wanted() -> None:
    check = rewarded(torch.zeros(2, 2), torch.zeros(2, 2))
    assert check.wants_second_opinion
    check.add(REWARDS, replace(BATCH, rewards_B=REWARDS.reshape(-1)), REWARDS)
    assert not check.wants_second_opinion


def test_weights_that_moved_pass_with_how_far() -> None:
    weights = {"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(1)}
    check = UpdateCheck.begin(weights)
    check.add(1e-3, 0.5)
    check.add(5e-4, 0.25)
    weights["a"] += torch.tensor([0.5, 0.0])
    assert check.result(weights) == {
        "passed": True, "steps": 2, "lr_highest": 1e-3, "grad_norm_highest": 0.5, "grad_norm_lowest": 0.25,
        "not_finite": 0, "moved": pytest.approx(0.1), "tensors": 2, "tensors_moved": 1,
        "still": ["b"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lr", "norm", "way"),
    [(0.0, 0.5, 1.0), (1e-3, math.nan, 1.0), (1e-3, math.inf, 1.0), (1e-3, 0.5, 0.0), (1e-3, 0.5, math.nan)],
)
def test_an_update_without_rate_gradient_or_way_does_not_pass(lr: float, norm: float, way: float) -> None:
    weights = {"a": torch.ones(2)}
    check = UpdateCheck.begin(weights)
    check.add(lr, norm)
    assert check.result({"a": torch.ones(2) + way})["passed"] is False


def test_the_first_different_name_is_told_missing_ones_too() -> None:
    one, two = torch.ones(2), torch.zeros(2)
    assert first_difference({"a": one, "b": one}.items(), {"a": one, "b": one}) is None
    assert first_difference({"a": one, "b": one, "c": one}.items(), {"a": one, "b": two, "c": two}) == "b"
    assert first_difference({"a": one, "b": one}.items(), {"a": one}) == "b"
    assert first_difference({"a": one}.items(), {"a": one, "c": one}) == "c"


def test_every_weight_is_asked_for_whichever_differs_first() -> None:
    """To gather one is a collective: a rank that stopped at its difference would leave the others waiting."""
    asked = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name in "abc":
            asked.append(name)
            yield name, torch.ones(2)

    assert first_difference(weights(), {"a": torch.zeros(2), "b": torch.ones(2), "c": torch.ones(2)}) == "a"
    assert asked == ["a", "b", "c"]


def test_weights_that_once_differed_do_not_pass_and_the_first_place_is_kept() -> None:
    check, one = WeightsCheck(), torch.ones(2)
    check.add(1, {"a": one}.items(), {"a": one})
    assert check.result()["passed"] is True
    check.add(2, {"a": one}.items(), {"a": one + 1})
    check.add(3, {"a": one}.items(), {"b": one})
    assert check.result() == {
        "passed": False, "publishes": 3, "tensors": 1, "unequal": 2, "first_step": 2, "first_name": "a",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "largest", "passed"), [([1e-6, 2e-6, 1e-7], 2e-6, True), ([0.0, 0.5, 0.1], 0.5, False)]
)
def test_the_largest_difference_decides(values: list[float], largest: float, passed: bool) -> None:
    check = LogprobsCheck()
    for value in values:
        check.add(value)
    assert (check.result()["largest"], check.result()["passed"]) == (largest, passed)


def test_a_difference_that_is_no_number_stays_and_does_not_pass() -> None:
    check = LogprobsCheck()
    for value in (1e-6, math.nan, 1e-6):
        check.add(value)
    assert math.isnan(check.result()["largest"])
    assert check.result()["passed"] is False


def test_a_mean_beyond_its_own_limit_does_not_pass() -> None:
    check = LogprobsCheck(limit=4.0, mean_limit=0.05)
    check.add(2.0, 0.04, 0.001)
    assert check.result()["passed"] is True
    check.add(2.0, 0.06, -0.002)
    assert (check.result()["passed"], check.result()["mean"], check.result()["kl"]) == (False, 0.06, 0.002)
