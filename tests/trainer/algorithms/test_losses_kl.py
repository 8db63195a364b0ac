"""Divergence from the reference by hand, the clamps of each convention, and the adaptive coefficient."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.estimators import adapted_kl_coef
from trainer.algorithms.losses import divergence


def at(name: str, difference: float, convention: str = "verl", old: float | None = None) -> tuple[float, float]:
    """Value and gradient by the policy's log-probability, for reference - policy = difference."""
    policy_BT = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    old_BT = None if old is None else torch.tensor([[old]], dtype=torch.float64)
    value = divergence(name, policy_BT, policy_BT.detach() + difference, CONVENTIONS[convention], old_BT=old_BT)
    value.sum().backward()
    assert policy_BT.grad is not None
    return value.item(), policy_BT.grad.item()


def test_each_estimator_by_hand() -> None:
    assert at("k1", -1.0) == (1.0, 1.0)
    assert at("k2", -1.0) == (0.5, 1.0)
    assert at("k3", -1.0) == (pytest.approx(math.exp(-1)), pytest.approx(1 - math.exp(-1)))
    assert at("abs", -1.0) == (1.0, 1.0)
    assert at("low_var", 0.5) == at("k3", 0.5)


def test_straight_through_has_the_value_of_one_and_the_gradient_of_the_other() -> None:
    assert at("k3+", 0.5) == (pytest.approx(at("k3", 0.5)[0]), pytest.approx(-0.5))
    assert at("k1+", 0.5) == (pytest.approx(-0.5), pytest.approx(-0.5))


def test_far_away_verl_and_roll_hold_the_value_and_lose_the_gradient() -> None:
    assert at("k3", 40.0, "verl") == (10.0, 0.0)
    assert at("k3", 40.0, "roll") == (10.0, 0.0)
    assert at("k3", 40.0, "trl")[0] == pytest.approx(math.exp(40) - 41)
    assert at("k3+", 40.0, "verl") == (10.0, -40.0)
    assert at("k3", -30.0, "trl")[0] == pytest.approx(29.0)


def test_trl_multiplies_a_k3_in_the_loss_by_the_ratio() -> None:
    k3 = math.exp(0.5) - 0.5 - 1
    ratio = math.exp(-1.0 + 1.2)
    value, gradient = at("k3", 0.5, "trl", old=-1.2)
    assert value == pytest.approx(k3 * ratio)
    assert gradient == pytest.approx(ratio * k3 + ratio * (1 - math.exp(0.5)))
    assert at("k3", 0.5, "verl", old=-1.2)[0] == pytest.approx(k3)
    assert at("k2", 0.5, "trl", old=-1.2)[0] == pytest.approx(0.125)


def test_its_mean_under_the_policy_is_the_divergence() -> None:
    policy_V = torch.log_softmax(torch.tensor([1.0, 0.2, -0.5]).double(), dim=0)
    reference_V = torch.log_softmax(torch.tensor([0.3, 0.9, -0.1]).double(), dim=0)
    exact = (policy_V.exp() * (policy_V - reference_V)).sum().item()
    for name in ("k1", "k3"):
        each_V = divergence(name, policy_V.unsqueeze(0), reference_V.unsqueeze(0), CONVENTIONS["verl"])
        assert (policy_V.exp() * each_V).sum().item() == pytest.approx(exact, abs=1e-12)


def test_the_adaptive_coefficient_follows_the_divergence_by_a_bounded_step() -> None:
    assert adapted_kl_coef(0.1, 5.0, 50, target=1.0, horizon=100) == pytest.approx(0.11)
    assert adapted_kl_coef(0.11, 1.1, 50, target=1.0, horizon=100) == pytest.approx(0.11 * 1.05)
    assert adapted_kl_coef(0.11, 0.0, 100, target=1.0, horizon=100) == pytest.approx(0.11 * 0.8)
