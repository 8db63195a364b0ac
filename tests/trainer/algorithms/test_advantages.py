"""Advantages: numbers worked out by hand, and what must not change them."""

from __future__ import annotations

import pytest
import torch

from trainer.algorithms.advantages import CONVENTIONS, group_advantages

VERL, TRL, ROLL = (CONVENTIONS[name] for name in ("verl", "trl", "roll"))


def test_two_of_four_right_is_worked_out_by_hand() -> None:
    # mean 0.5, squared deviations 4 x 0.25 over 3, deviation 0.57735
    found = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), VERL)
    expected = 0.5 / (0.5773503 + 1e-6)
    assert torch.allclose(found, torch.tensor([[expected, -expected, -expected, expected]]))


def test_one_of_eight_right_is_worked_out_by_hand() -> None:
    # mean 1/8, squared deviations 49/64 + 7/64 = 7/8 over 7, deviation 0.353553
    found = group_advantages(torch.tensor([[1.0] + [0.0] * 7], dtype=torch.float64), VERL)
    assert found[0, 0].item() == pytest.approx(0.875 / (0.125**0.5 + 1e-6), rel=1e-12)
    assert found[0, 1].item() == pytest.approx(-0.125 / (0.125**0.5 + 1e-6), rel=1e-12)


def test_without_the_deviation_only_the_mean_is_taken_off() -> None:
    found = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 1.0, 1.0, 3.0]]), VERL, scale_by_std=False)
    assert found.tolist() == [[0.5, -0.5, -0.5, 0.5], [1.0, -1.0, -1.0, 1.0]]


@pytest.mark.parametrize(("convention", "expected"), [(VERL, 0.7), (TRL, 0.0), (ROLL, 0.0)])
@pytest.mark.parametrize("scale_by_std", [True, False])
def test_a_group_of_one_is_what_the_convention_says(convention: object, expected: float, scale_by_std: bool) -> None:
    rewards_PG = torch.tensor([[0.7]])
    found = group_advantages(rewards_PG, convention, scale_by_std=scale_by_std)  # type: ignore[arg-type]
    assert found.item() == pytest.approx(expected)


@pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=CONVENTIONS)
def test_equal_rewards_hold_no_signal(convention: object) -> None:
    found = group_advantages(torch.full((2, 5), 0.3), convention)  # type: ignore[arg-type]
    # 0.3 is no float: the mean is off by a rounding, which the epsilons keep small and only roll's limit removes
    assert found.abs().max().item() < (1e-30 if convention is ROLL else 0.05)
    exact = group_advantages(torch.ones(2, 4), convention)  # type: ignore[arg-type]
    assert exact.tolist() == [[0.0] * 4] * 2


def test_the_epsilons_differ_where_the_spread_is_small() -> None:
    rewards_PG = torch.tensor([[0.0, 1e-4]], dtype=torch.float64)
    deviation = 1e-4 / 2**0.5
    assert group_advantages(rewards_PG, VERL)[0, 1].item() == pytest.approx(0.5e-4 / (deviation + 1e-6))
    assert group_advantages(rewards_PG, TRL)[0, 1].item() == pytest.approx(0.5e-4 / (deviation + 1e-4))


def test_roll_gives_nothing_for_a_spread_below_its_limit_and_verl_does() -> None:
    rewards_PG = torch.tensor([[0.0, 1e-6]], dtype=torch.float64)
    assert group_advantages(rewards_PG, ROLL).tolist() == [[0.0, 0.0]]
    assert group_advantages(rewards_PG, VERL)[0, 1].item() == pytest.approx(0.5e-6 / (1e-6 / 2**0.5 + 1e-6))


def test_shifting_and_scaling_a_groups_rewards_changes_nothing() -> None:
    rewards_PG = torch.rand(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain = group_advantages(rewards_PG, VERL)
    assert torch.allclose(group_advantages(rewards_PG * 7 - 3, VERL), plain, atol=1e-4)


def test_permuting_rollouts_or_groups_permutes_the_advantages() -> None:
    rewards_PG = torch.rand(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    plain = group_advantages(rewards_PG, VERL)
    rows, columns = torch.tensor([3, 1, 4, 0, 2]), torch.tensor([7, 0, 3, 2, 1, 6, 5, 4])
    assert torch.allclose(group_advantages(rewards_PG[rows][:, columns], VERL), plain[rows][:, columns])


def test_large_rewards_that_lie_close_keep_their_spread_in_float32() -> None:
    found = group_advantages(torch.tensor([[1000.0, 1000.5, 1001.0, 1000.5]]), VERL)
    assert found.tolist()[0] == pytest.approx([-1.2247, 0.0, 1.2247, 0.0], abs=1e-3)


def test_the_result_is_centred_with_a_sample_deviation_of_one() -> None:
    rewards_PG = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = group_advantages(rewards_PG, VERL)
    assert found.mean(dim=1).abs().max().item() < 1e-12
    assert torch.allclose(found.std(dim=1), torch.ones(4, dtype=torch.float64), atol=1e-4)
