"""Divergence estimators: hand-worked values, clamps, signs, gradients."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.algorithms.kl import ESTIMATORS, k1, k2, k3, low_var


def at(difference: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A policy log-probability of 0 (with gradient) and a reference that lies `difference` above it."""
    policy = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    return policy, torch.full((1, 1), difference, dtype=torch.float64)


@pytest.mark.parametrize("difference", [-1.5, -0.1, 0.2, 1.0])
def test_each_estimator_is_worked_out_by_hand(difference: float) -> None:
    policy, reference = at(difference)
    assert k1(policy, reference).item() == pytest.approx(-difference)
    assert k2(policy, reference).item() == pytest.approx(difference**2 / 2)
    assert k3(policy, reference).item() == pytest.approx(math.exp(difference) - difference - 1)
    assert low_var(policy, reference).item() == pytest.approx(math.exp(difference) - difference - 1)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_policies_have_no_divergence(name: str) -> None:
    assert ESTIMATORS[name](*at(0.0)).item() == 0.0


def test_far_away_the_clamped_value_is_ten_and_its_gradient_is_nothing() -> None:
    policy, reference = at(40.0)
    value = low_var(policy, reference)
    value.sum().backward()
    assert value.item() == 10.0
    assert policy.grad is not None
    assert policy.grad.item() == 0.0
    assert k3(*at(40.0)).item() == pytest.approx(math.exp(40) - 41)


@pytest.mark.parametrize(("difference", "gradient"), [(1.0, 1 - math.e), (-1.0, 1 - math.exp(-1))])
def test_the_gradient_pulls_towards_the_reference(difference: float, gradient: float) -> None:
    policy, reference = at(difference)
    low_var(policy, reference).sum().backward()
    assert policy.grad is not None
    assert policy.grad.item() == pytest.approx(gradient)
    assert (policy.grad.item() < 0) == (difference > 0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    policy = (torch.randn(3, 4, dtype=torch.float64, generator=generator) - 2).requires_grad_()
    reference = torch.randn(3, 4, dtype=torch.float64, generator=generator) - 2
    assert torch.autograd.gradcheck(lambda each: ESTIMATORS[name](each, reference), (policy,))


def test_k3_averages_to_the_true_divergence_where_k1_does_and_is_never_negative() -> None:
    generator = torch.Generator().manual_seed(0)
    policy = torch.log_softmax(torch.randn(6, dtype=torch.float64, generator=generator), 0)
    reference = torch.log_softmax(torch.randn(6, dtype=torch.float64, generator=generator), 0)
    truth = (policy.exp() * (policy - reference)).sum().item()
    # the expectation over the policy, term by term: no sampling, hence no chance
    assert (policy.exp() * k1(policy, reference)).sum().item() == pytest.approx(truth)
    assert (policy.exp() * k3(policy, reference)).sum().item() == pytest.approx(truth)
    assert k3(policy, reference).min().item() >= 0
