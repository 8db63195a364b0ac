"""Aggregation, correction, shaping and the critic's loss, by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from trainer.algorithms.advantages import has_signal
from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.losses import Totals, aggregate, count, masked_mean, masked_sum
from trainer.algorithms.policy_losses import correction
from trainer.algorithms.update_metrics import MAXIMA, WeightMetrics, weight_metrics, weight_shares
from trainer.metrics.step import explained_variance
from trainer.models.critic import value_loss
from trainer.rollouts import overlong_penalty

NAN = float("nan")
MASK_BT = torch.tensor([[True, True], [True, False], [False, False]])
LOSSES_BT = torch.tensor([[1.0, 3.0], [5.0, NAN], [NAN, NAN]])


@pytest.mark.parametrize(
    ("mode", "verl", "trl", "roll"),
    [
        ("token-mean", 3.0, 3.0, 3.0),
        ("seq-mean-token-sum", 9 / 2, 9 / 3, 9 / 3),  # verl alone leaves the empty row out
        ("seq-mean-token-sum-norm", 9 / 2 / 2, 9 / 3 / 2, 9 / 2),  # roll divides by the width alone
        ("seq-mean-token-mean", 7 / 2, 7 / 3, 7 / 3),
    ],
)
def test_each_aggregation_in_each_convention(mode: str, verl: float, trl: float, roll: float) -> None:
    for name, expected in (("verl", verl), ("trl", trl), ("roll", roll)):
        found = aggregate(LOSSES_BT, MASK_BT, mode, count(MASK_BT, CONVENTIONS[name]))
        assert found.item() == pytest.approx(expected), name


def test_a_given_scale_takes_the_place_of_the_width() -> None:
    totals = count(MASK_BT, CONVENTIONS["verl"], scale=100.0)
    assert aggregate(LOSSES_BT, MASK_BT, "seq-mean-token-sum-norm", totals).item() == pytest.approx(9 / 2 / 100)


def test_shares_of_a_step_add_up_whatever_their_width() -> None:
    totals = Totals(num_tokens=3, num_rows=2, width=2)
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"):
        whole = aggregate(LOSSES_BT, MASK_BT, mode, totals)
        parts = [aggregate(LOSSES_BT[:1], MASK_BT[:1], mode, totals)]
        parts.append(aggregate(LOSSES_BT[1:, :1], MASK_BT[1:, :1], mode, totals))
        assert sum(parts).item() == pytest.approx(whole.item())  # type: ignore[union-attr]


def test_an_unknown_aggregation_is_refused() -> None:
    with pytest.raises(ValueError, match="token-mean, seq-mean-token-sum"):
        aggregate(LOSSES_BT, MASK_BT, "mean", Totals(3, 2, 2))


def test_masked_sum_and_mean_read_the_mask_only() -> None:
    assert masked_sum(LOSSES_BT, MASK_BT).item() == 9.0
    assert masked_mean(LOSSES_BT, MASK_BT).item() == 3.0
    assert masked_mean(LOSSES_BT, torch.zeros_like(MASK_BT)).item() == 0.0


LEARNER_BT = torch.tensor([[0.6, 0.5], [0.1, NAN]]).log()
SAMPLER_BT = torch.tensor([[0.2, 0.5], [0.4, NAN]]).log()
KEPT_BT = torch.tensor([[True, True], [True, False]])


def weights(convention: str = "verl", **settings: object) -> list[list[Any]]:
    given = {"level": "token", "cap": 2.0, **settings}
    found = correction(LEARNER_BT, SAMPLER_BT, KEPT_BT, CONVENTIONS[convention], **given)  # type: ignore[arg-type]
    return [[pytest.approx(each, rel=1e-5) for each in row] for row in found.weights_BT.tolist()]


def test_a_ratio_beyond_the_bound_is_held_or_dropped() -> None:
    assert weights() == [[2.0, 1.0], [0.25, 0.0]]
    assert weights(bound="mask") == [[0.0, 1.0], [0.25, 0.0]]
    assert weights(floor=0.5) == [[2.0, 1.0], [0.5, 0.0]]
    assert weights(floor=0.5, bound="mask") == [[0.0, 1.0], [0.0, 0.0]]


def test_a_rows_ratio_is_a_product_or_a_geometric_mean() -> None:
    assert weights(level="sequence", cap=9.0) == [[3.0, 3.0], [0.25, 0.0]]
    assert [[math.sqrt(3), math.sqrt(3)], [0.25, 0.0]] == weights("roll", level="sequence", cap=9.0)


def test_a_probability_that_the_sampler_did_not_tell_counts_as_the_same() -> None:
    unknown_BT = SAMPLER_BT.masked_fill(torch.tensor([[True, False], [False, False]]), NAN)
    found = correction(LEARNER_BT, unknown_BT, KEPT_BT, CONVENTIONS["trl"], level="token", cap=2.0)
    assert found.weights_BT[0].tolist() == pytest.approx([1.0, 1.0])


def reported(level: str, cap: float, *parts: int) -> WeightMetrics:
    """The numbers of the weights, made from parts of so many rows."""
    verl, made = CONVENTIONS["verl"], []
    totals = count(KEPT_BT, verl)
    for rows in torch.split(torch.arange(2), list(parts)):
        kept_BT = KEPT_BT[rows]
        found = correction(LEARNER_BT[rows], SAMPLER_BT[rows], kept_BT, verl, level=level, cap=cap)
        made.append(
            {name: each.item() for name, each in weight_shares(found, kept_BT, totals, level=level, cap=cap).items()}
        )
    return weight_metrics({n: (max if n in MAXIMA else sum)(each[n] for each in made) for n in made[0]})


@pytest.mark.parametrize("parts", [(2,), (1, 1)])
def test_the_weights_are_reported_as_verl_reports_them_however_a_step_is_cut(parts: tuple[int, ...]) -> None:
    """As verl 0.9.1 says on the same numbers, compute_rollout_correction_weights."""
    of_tokens = reported("token", 2.0, *parts)  # weights 2, 1, 1/4 for ratios 3, 1, 1/4
    assert dataclasses.asdict(of_tokens) == pytest.approx(
        {
            "mean": 3.25 / 3, "std": math.sqrt(5.0625 / 3 - (3.25 / 3) ** 2), "max": 2.0, "min": 0.25,
            "eff_sample_size": (3.25 / 3) ** 2 / (5.0625 / 3), "ratio_fraction_high": 1 / 3,
            "ratio_fraction_low": 1 / 3,
        },
        rel=1e-5,
    )  # fmt: skip
    of_rows = reported("sequence", 2.5, *parts)  # weights 2.5, 2.5, 1/4 for rows at 3 and 1/4
    assert dataclasses.asdict(of_rows) == pytest.approx(
        {
            "mean": 5.25 / 3, "std": math.sqrt(12.5625 / 3 - (5.25 / 3) ** 2), "max": 3.0, "min": 0.25,
            "eff_sample_size": (5.25 / 3) ** 2 / (12.5625 / 3), "ratio_fraction_high": 1 / 2,
            "ratio_fraction_low": 1 / 2,
        },
        rel=1e-5,
    )  # fmt: skip


def test_weights_that_are_nearly_all_one_keep_their_deviation() -> None:
    near_BT = torch.tensor([[1e-4, -1e-4]])
    found = correction(near_BT, torch.zeros(1, 2), KEPT_BT[:1], CONVENTIONS["verl"], level="token", cap=2.0)
    parts = weight_shares(found, KEPT_BT[:1], count(KEPT_BT[:1], CONVENTIONS["verl"]), level="token", cap=2.0)
    assert weight_metrics({name: each.item() for name, each in parts.items()}).std == pytest.approx(1e-4, rel=2e-3)


def test_an_unknown_level_or_bound_is_refused() -> None:
    for settings in ({"level": "row"}, {"bound": "drop"}):
        with pytest.raises(ValueError, match=r"\btoken\b.*\bsequence\b"):
            weights(**settings)


def test_length_costs_nothing_up_to_the_buffer_and_the_factor_at_the_limit() -> None:
    lengths_B = torch.tensor([1, 6, 7, 10])
    assert overlong_penalty(lengths_B, limit=10, buffer=4, factor=1.0).tolist() == [0.0, 0.0, -0.25, -1.0]
    assert overlong_penalty(lengths_B, limit=10, buffer=4, factor=0.5).tolist() == [0.0, 0.0, -0.125, -0.5]
    assert overlong_penalty(lengths_B, limit=10, buffer=0, factor=1.0).tolist() == [0.0] * 4


def test_a_group_has_a_signal_when_its_rewards_differ() -> None:
    rewards_PG = torch.tensor([[0.1, 0.1, 0.1], [0.0, 1.0, 0.0], [1000.0, 1000.0, 1000.001]])
    for convention in CONVENTIONS.values():
        assert has_signal(rewards_PG, convention).tolist() == [False, True, True]


def test_a_group_of_one_has_a_signal_where_it_keeps_its_reward() -> None:
    rewards_PG = torch.tensor([[1.0], [NAN]])
    assert has_signal(rewards_PG, CONVENTIONS["verl"]).tolist() == [True, False]
    assert has_signal(rewards_PG, CONVENTIONS["trl"]).tolist() == [False, False]


def test_a_reward_of_nan_is_no_signal_by_itself() -> None:
    rewards_PG = torch.tensor([[NAN, 1.0, 1.0], [NAN, 1.0, 0.0], [NAN, NAN, NAN]])
    assert has_signal(rewards_PG, CONVENTIONS["trl"]).tolist() == [False, True, False]
    assert has_signal(rewards_PG, CONVENTIONS["verl"]).tolist() == [False, False, False]


def test_a_value_is_held_near_the_old_one_and_the_larger_error_counts() -> None:
    one_BT = torch.ones(1, 1, dtype=torch.bool)
    for value, expected, gradient, is_clipped in ((2.0, 2.0, 2.0, False), (0.0, 0.125, 0.0, True)):
        values_BT = torch.tensor([[value]], requires_grad=True)
        found = value_loss(values_BT, torch.zeros(1, 1), torch.tensor([[1.0]]), one_BT, clip=0.5)
        found.losses_BT.sum().backward()
        assert values_BT.grad is not None
        assert (found.losses_BT.item(), values_BT.grad.item()) == (expected, gradient)
        assert bool(found.is_clipped_BT) is is_clipped
    free = value_loss(torch.zeros(1, 1), torch.ones(1, 1), torch.full((1, 1), 9.0), one_BT, clip=0.0)
    assert (free.losses_BT.item(), bool(free.is_clipped_BT)) == (0.5, False)


def test_explained_variance_is_one_for_a_seer_and_zero_for_a_constant() -> None:
    returns_BT = torch.tensor([[1.0, 2.0, 4.0, NAN]])
    mask_BT = torch.tensor([[True, True, True, False]])
    assert explained_variance(returns_BT, returns_BT, mask_BT).item() == 1.0
    assert explained_variance(torch.ones(1, 4), returns_BT, mask_BT).item() == pytest.approx(0.0, abs=1e-6)
    assert explained_variance(-returns_BT, returns_BT, mask_BT).item() == pytest.approx(-3.0)
    assert explained_variance(torch.zeros(1, 4), torch.ones(1, 4), mask_BT).item() == 0.0
