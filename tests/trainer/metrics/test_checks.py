"""The measurements: each says yes, says no, and does not say yes to nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from trainer_cases import group

from trainer.algorithms.packing import pack
from trainer.metrics.checks import LogprobsCheck, MaskCheck, WeightsCheck, first_difference, same_bits
from trainer.tasks.base import END, PAD

GROUPS = [group("14=", (5, END), (5, 5, 5)), group("4=", (END,), (3, END))]
BATCH = pack(GROUPS, torch.zeros(2, 2), pad=PAD)


@pytest.mark.parametrize("check", [MaskCheck(), WeightsCheck(), LogprobsCheck()], ids=["mask", "weights", "logprobs"])
def test_what_was_never_measured_has_not_passed(check: MaskCheck | WeightsCheck | LogprobsCheck) -> None:
    assert check.result()["passed"] is False


def test_an_exact_mask_passes_with_its_counts() -> None:
    check = MaskCheck()
    check.add(GROUPS, BATCH)
    check.add(GROUPS, BATCH)
    assert check.result() == {
        "passed": True, "batches": 2, "generated_tokens": 16, "masked_tokens": 16, "rows_with_wrong_start": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("shift", "wrong"), [(-1, 4), (1, 4)])
def test_a_shifted_mask_is_noticed_by_its_start_though_the_sum_agrees(shift: int, wrong: int) -> None:
    check = MaskCheck()
    check.add(GROUPS, replace(BATCH, mask_BT=BATCH.mask_BT.roll(shift, dims=1)))
    assert check.result()["rows_with_wrong_start"] == wrong
    assert check.result()["generated_tokens"] == check.result()["masked_tokens"]
    assert check.result()["passed"] is False


def test_a_mask_that_misses_the_last_token_is_noticed_by_its_sum() -> None:
    check, mask = MaskCheck(), BATCH.mask_BT.clone()
    mask[1, 5] = False
    check.add(GROUPS, replace(BATCH, mask_BT=mask))
    assert (check.result()["masked_tokens"], check.result()["rows_with_wrong_start"]) == (7, 0)
    assert check.result()["passed"] is False


def test_an_empty_mask_is_noticed() -> None:
    check = MaskCheck()
    check.add(GROUPS, replace(BATCH, mask_BT=torch.zeros_like(BATCH.mask_BT)))
    assert check.result()["rows_with_wrong_start"] == 4


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (torch.tensor([1.0]), torch.tensor([1.0]), True),
        (torch.tensor([math.nan]), torch.tensor([math.nan]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.tensor([1.0]), torch.tensor([[1.0]]), False),
        (torch.tensor(3), torch.tensor(3), True),
    ],
)
def test_the_same_bits_is_what_it_says(left: torch.Tensor, right: torch.Tensor, expected: bool) -> None:
    assert same_bits(left, right) is expected


def test_the_first_different_name_is_told_missing_ones_too() -> None:
    one, two = torch.ones(2), torch.zeros(2)
    assert first_difference({"a": one, "b": one}, {"a": one, "b": one}) is None
    assert first_difference({"a": one, "b": one, "c": one}, {"a": one, "b": two, "c": two}) == "b"
    assert first_difference({"a": one, "b": one}, {"a": one}) == "b"
    assert first_difference({"a": one}, {"a": one, "c": one}) == "c"


def test_weights_that_once_differed_do_not_pass_and_the_first_place_is_kept() -> None:
    check, one = WeightsCheck(), torch.ones(2)
    check.add(1, {"a": one}, {"a": one})
    assert check.result()["passed"] is True
    check.add(2, {"a": one}, {"a": one + 1})
    check.add(3, {"a": one}, {"b": one})
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
