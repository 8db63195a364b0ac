"""The policy losses by hand: both sides of each bound, in each framework's form; logits to probabilities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.algorithms.algorithm_cases import token_logprobs
from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.estimators import adapted_kl_coef
from trainer.algorithms.losses import LossSettings, divergence, policy_loss
from trainer.models import gradients, ops
from trainer.registry import LOSSES, find

CLIP = LossSettings(low=0.2, high=0.3, dual=3.0)


def loss_at(
    ratio: float, advantage: float, clip: LossSettings = CLIP, name: str = "clip", convention: str = "verl"
) -> tuple[float, float, bool]:
    """Loss, its gradient by the log-probability, and whether the token is clipped, for a single token."""
    new_BT = torch.tensor([[math.log(ratio) - 1.0]], dtype=torch.float64, requires_grad=True)
    old_BT, mask_BT = torch.full((1, 1), -1.0, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    advantages_BT = torch.tensor([[advantage]], dtype=torch.float64)
    found = policy_loss(
        find(LOSSES, name), new_BT, old_BT, advantages_BT, mask_BT, settings=clip, convention=CONVENTIONS[convention]
    )
    found.losses_BT.sum().backward()
    assert new_BT.grad is not None
    return found.losses_BT.item(), new_BT.grad.item(), bool(found.is_clipped_BT)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "is_clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),  # on policy: minus the advantage
        (1.0, -2.0, 2.0, 2.0, False),
        (1.5, 2.0, -2.6, 0.0, True),  # above 1 + high and good: held at 1.3
        (0.5, 2.0, -1.0, -1.0, False),  # below 1 - low and good: not held
        (0.5, -2.0, 1.6, 0.0, True),  # below 1 - low and bad: held at 0.8
        (1.5, -2.0, 3.0, 3.0, False),  # above and bad: not held
        (5.0, -2.0, 6.0, 0.0, False),  # far above and bad: the dual bound of 3
        (1.25, 2.0, -2.5, -2.5, False),  # between low and high: the bounds are not symmetric
    ],
)
def test_each_side_of_each_bound(
    ratio: float, advantage: float, loss: float, gradient: float, is_clipped: bool
) -> None:
    assert loss_at(ratio, advantage) == (pytest.approx(loss), pytest.approx(gradient), is_clipped)


@pytest.mark.parametrize(
    ("convention", "ratio", "advantage", "is_bounded"),
    [
        ("verl", 5.0, -2.0, True),
        ("verl", 2.9, -2.0, False),
        ("verl", 5.0, 2.0, False),  # a good token is held by the first bound alone
        ("trl", 5.0, -2.0, True),
        ("trl", 2.9, -2.0, False),
        ("trl", 5.0, 2.0, False),
        ("roll", 1.5, -2.0, True),  # above 1 + 2 * 0.2
        ("roll", 1.3, -2.0, False),
    ],
)
def test_a_token_is_told_whose_loss_the_second_bound_made_smaller(
    convention: str, ratio: float, advantage: float, is_bounded: bool
) -> None:
    one_BT, log_BT = torch.ones(1, 2, dtype=torch.float64), torch.full((1, 2), math.log(ratio), dtype=torch.float64)
    mask_BT = torch.tensor([[True, False]])
    for name, dual in (("clip", 3.0), ("clip", None), ("cispo", 3.0), ("plain", 3.0)):
        found = policy_loss(
            find(LOSSES, name), log_BT, 0 * log_BT, advantage * one_BT, mask_BT,
            settings=LossSettings(0.2, 0.3, dual), convention=CONVENTIONS[convention],
        )  # fmt: skip
        wanted = is_bounded and (name, dual) == ("clip", 3.0)
        assert found.is_bounded_BT.tolist() == [[wanted, False]], (name, dual)
        assert found.log_ratios_BT.tolist() == [[pytest.approx(math.log(ratio)), 0.0]]
        assert not found.log_ratios_BT.requires_grad


def test_log_ratios_are_of_each_token_also_where_the_ratio_is_of_the_answer_and_are_limited_as_it_is() -> None:
    new_BT, old_BT = torch.tensor([[-1.0, -2.0]], requires_grad=True), torch.tensor([[-31.0, -1.0]])
    mask_BT, verl = torch.ones(1, 2, dtype=torch.bool), CONVENTIONS["verl"]
    for name, wanted in (("gspo", 30.0), ("clip", 20.0), ("cispo", 20.0), ("plain", 20.0)):
        found = policy_loss(
            find(LOSSES, name), new_BT, old_BT, torch.ones(1, 2), mask_BT, settings=CLIP, convention=verl
        )
        assert found.log_ratios_BT.tolist() == [[wanted, -1.0]], name
        assert not found.log_ratios_BT.requires_grad


def test_without_the_dual_bound_a_bad_token_may_cost_anything() -> None:
    for convention in CONVENTIONS:
        assert loss_at(5.0, -2.0, LossSettings(0.2, 0.3), convention=convention)[0] == pytest.approx(10.0)


def test_the_dual_bound_is_a_constant_a_cap_of_the_ratio_or_twice_the_lower_bound() -> None:
    assert loss_at(5.0, -2.0)[:2] == (pytest.approx(6.0), 0.0)
    assert loss_at(5.0, -2.0, convention="trl")[:2] == (pytest.approx(6.0), 0.0)
    assert loss_at(5.0, -2.0, convention="roll")[:2] == (pytest.approx(2 * (1 + 2 * 0.2)), 0.0)


def test_trls_cap_holds_for_good_tokens_too() -> None:
    below_the_clip = LossSettings(0.2, 4.0, 2.0)
    assert loss_at(3.0, 1.0, below_the_clip, convention="trl")[:2] == (pytest.approx(-2.0), 0.0)
    assert loss_at(3.0, 1.0, below_the_clip)[:2] == (pytest.approx(-3.0), pytest.approx(-3.0))


def test_only_verl_holds_the_log_ratio_at_twenty() -> None:
    free = LossSettings(0.2, 0.3)
    assert loss_at(math.exp(30), -1.0, free)[:2] == (pytest.approx(math.exp(20)), 0.0)
    for convention in ("trl", "roll"):
        assert loss_at(math.exp(30), -1.0, free, convention=convention)[1] == pytest.approx(math.exp(30))


def test_cispo_bounds_the_weight_and_keeps_the_gradient() -> None:
    log_probability = math.log(2.0) - 1.0
    loss, gradient, is_clipped = loss_at(2.0, 1.5, name="cispo")
    assert (loss, gradient, is_clipped) == (pytest.approx(-1.3 * 1.5 * log_probability), pytest.approx(-1.95), True)
    assert loss_at(2.0, 1.5, LossSettings(0.2, 5.0), name="cispo", convention="trl")[1] == pytest.approx(-3.0)
    assert loss_at(7.0, 1.5, LossSettings(0.2, 5.0), name="cispo", convention="trl")[1] == pytest.approx(-7.5)
    assert loss_at(0.1, 1.5, LossSettings(0.2, 5.0), name="cispo", convention="trl")[1] == pytest.approx(-0.15)


def test_plain_knows_neither_ratio_nor_bound() -> None:
    assert loss_at(4.0, 1.5, name="plain") == (pytest.approx(-1.5 * (math.log(4.0) - 1)), pytest.approx(-1.5), False)


def answers() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mask_BT = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    old_BT = -torch.rand(3, 3, generator=generator, dtype=torch.float64)
    new_BT = old_BT + 0.3 * torch.randn(3, 3, generator=generator, dtype=torch.float64)
    return new_BT.requires_grad_(), old_BT, torch.tensor([[1.0], [-2.0], [3.0]]).double().expand(3, 3), mask_BT


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_gspo_has_one_ratio_per_answer_the_geometric_mean_of_its_tokens(convention: str) -> None:
    new_BT, old_BT, advantages_BT, mask_BT = answers()
    wide = LossSettings(0.9, 9.0)
    found = policy_loss(
        find(LOSSES, "gspo"), new_BT, old_BT, advantages_BT, mask_BT, settings=wide, convention=CONVENTIONS[convention]
    )
    difference_BT = (new_BT - old_BT).detach()
    expected_B = torch.stack([difference_BT[0].mean().exp(), difference_BT[1, 0].exp(), torch.tensor(1.0)])
    assert torch.allclose(found.ratios_BT, torch.where(mask_BT, expected_B.unsqueeze(1), 1.0))
    found.losses_BT.sum().backward()
    assert new_BT.grad is not None
    expected_BT = torch.where(mask_BT, -advantages_BT * expected_B.unsqueeze(1), 0.0)
    assert torch.allclose(new_BT.grad, expected_BT)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_probability_that_stays_is_within_a_divergence_of_0(advantage: float) -> None:
    """In single precision: the log-probabilities differ, and both probabilities are 1."""
    new_BT, old_BT = torch.tensor([[-2e-9]]), torch.tensor([[-1e-9]])
    settings = LossSettings(low=0.0, high=0.0, dual=None)
    found = policy_loss(
        find(LOSSES, "dppo_kl"), new_BT, old_BT, torch.tensor([[advantage]]), torch.ones(1, 1, dtype=torch.bool),
        settings=settings, convention=CONVENTIONS["verl"],
    )  # fmt: skip
    assert not found.is_clipped_BT


@pytest.mark.parametrize("name", LOSSES)
def test_a_weight_multiplies_loss_and_gradient_and_carries_none_itself(name: str) -> None:
    new_BT, old_BT, advantages_BT, mask_BT = answers()
    weights_BT = torch.full((3, 3), 0.5, dtype=torch.float64, requires_grad=True)
    given: dict[str, Any] = {"settings": CLIP, "convention": CONVENTIONS["verl"]}
    plain = policy_loss(find(LOSSES, name), new_BT, old_BT, advantages_BT, mask_BT, **given).losses_BT
    halved = policy_loss(
        find(LOSSES, name), new_BT, old_BT, advantages_BT, mask_BT, **given, weights_BT=weights_BT
    ).losses_BT
    assert torch.equal(halved, plain / 2)
    halved.sum().backward()
    assert weights_BT.grad is None


@pytest.mark.parametrize(
    ("name", "convention"),
    [
        ("clip", "verl"),
        ("clip", "roll"),
        ("gspo", "trl"),
        ("plain", "verl"),
        ("gmpo", "verl"),
        ("sapo", "verl"),
        ("kl_cov", "verl"),
    ],
)
def test_the_gradient_is_that_of_finite_differences(name: str, convention: str) -> None:
    new_BT, old_BT, advantages_BT, mask_BT = answers()

    def whole(logprobs_BT: Tensor) -> Tensor:
        return policy_loss(
            find(LOSSES, name),
            logprobs_BT,
            old_BT,
            advantages_BT,
            mask_BT,
            settings=CLIP,
            convention=CONVENTIONS[convention],
        ).losses_BT.sum()

    (slope_BT,) = torch.autograd.grad(whole(new_BT), new_BT)
    for row, column in torch.cartesian_prod(torch.arange(3), torch.arange(3)).tolist():
        nudge_BT = torch.zeros(3, 3, dtype=torch.float64)
        nudge_BT[row, column] = 1e-6
        numeric = (whole(new_BT.detach() + nudge_BT) - whole(new_BT.detach() - nudge_BT)) / 2e-6
        assert slope_BT[row, column].item() == pytest.approx(numeric.item(), abs=1e-6)


def slow(logits_BTV: Tensor, tokens_BT: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    all_BTV = torch.log_softmax(logits_BTV.double() / temperature, dim=-1)
    return all_BTV.gather(-1, tokens_BT.unsqueeze(-1)).squeeze(-1), -(all_BTV.exp() * all_BTV).sum(dim=-1)


@pytest.mark.parametrize("chunk", [1, 25, 1 << 20])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_log_probabilities_entropy_and_their_gradients_are_those_of_log_softmax(
    monkeypatch: pytest.MonkeyPatch, chunk: int, temperature: float, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(ops, "LOGITS_AT_ONCE", chunk)
    generator = torch.Generator().manual_seed(0)
    logits_BTV = (3 * torch.randn(2, 5, 11, generator=generator)).to(dtype).requires_grad_()
    tokens_BT = torch.randint(0, 11, (2, 5), generator=generator)
    slopes_BT = torch.randn(2, 5, generator=generator)
    found = token_logprobs(logits_BTV, tokens_BT, temperature=temperature)
    expected = slow(logits_BTV, tokens_BT, temperature)
    tight = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 3e-6}[dtype]
    for ours, theirs in zip(found, expected):
        assert torch.allclose(ours.double(), theirs, rtol=tight, atol=tight)
        (slope_BTV,) = torch.autograd.grad((ours * slopes_BT).sum(), logits_BTV, retain_graph=True)
        (expected_BTV,) = torch.autograd.grad((theirs * slopes_BT).sum(), logits_BTV, retain_graph=True)
        rough = 1e-2 if dtype == torch.bfloat16 else tight
        assert torch.allclose(slope_BTV.double(), expected_BTV.double(), rtol=rough, atol=rough)


def test_half_precision_logits_give_float32() -> None:
    logprobs_BT, entropy_BT = token_logprobs(torch.zeros(1, 2, 4, dtype=torch.bfloat16), torch.zeros(1, 2).long())
    assert logprobs_BT.dtype == entropy_BT.dtype == torch.float32
    assert logprobs_BT.tolist()[0] == pytest.approx([-math.log(4)] * 2)
    assert entropy_BT.tolist()[0] == pytest.approx([math.log(4)] * 2)


def test_entropy_is_left_out_where_nobody_asks() -> None:
    logits_BTV = torch.randn(1, 2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    logprobs_BT, entropy_BT = token_logprobs(logits_BTV, torch.ones(1, 2).long(), with_entropy=False)
    assert not entropy_BT.any()
    (slope_BTV,) = torch.autograd.grad(logprobs_BT.sum(), logits_BTV)
    expected_BTV = -torch.softmax(logits_BTV, dim=-1)
    expected_BTV[..., 1] += 1
    assert torch.allclose(slope_BTV, expected_BTV, atol=1e-6)


def test_entropy_keeps_its_digits_where_the_logits_are_large() -> None:
    logits_BTV = torch.tensor([[[1000.0, 1000.0, 990.0]]])
    _, entropy_BT = token_logprobs(logits_BTV, torch.zeros(1, 1).long())
    assert entropy_BT.item() == pytest.approx(slow(logits_BTV, torch.zeros(1, 1).long(), 1.0)[1].item(), rel=1e-6)


@pytest.mark.parametrize(("top_p", "top_k"), [(0.6, 0), (1.0, 2), (0.9, 3), (1e-6, 0)])
def test_the_policy_is_the_distribution_over_the_tokens_that_may_be_drawn(top_p: float, top_k: int) -> None:
    """Value and gradient against plain autograd over those tokens and the answer's own; entropy and squares too.

    Targets 1 and 2 are the first tokens of two answers to one prompt: neither is in the distribution of the other.
    """
    generator = torch.Generator().manual_seed(5)
    hidden_MH = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    weight_VH = torch.randn(9, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    source_C, target_C = torch.tensor([0, 1, 1, 2, 3, 4, 5]), torch.tensor([0, 3, 8, 2, 7, 1, 5])
    given: dict[str, Any] = {"source_C": source_C, "target_C": target_C, "top_p": top_p, "top_k": top_k}
    found = gradients.token_logprobs(hidden_MH, weight_VH, temperature=0.7, with_entropy=True, **given)
    logits_MV = hidden_MH @ weight_VH.t() / 0.7
    rows = []
    for each, target in zip(logits_MV[source_C], target_C.tolist(), strict=True):
        ordered = each.argsort(descending=True)[: top_k or None]
        before = torch.softmax(each[ordered], dim=0).cumsum(0).roll(1)
        before[0] = 0.0
        drawn = {*ordered[before < top_p].tolist(), target}
        is_left_out = torch.tensor([token not in drawn for token in range(9)])
        rows.append(torch.log_softmax(each.masked_fill(is_left_out, -1e9), dim=0))
    logs_CV = torch.stack(rows)
    expected = logs_CV.gather(1, target_C[:, None])[:, 0], -(logs_CV.exp() * logs_CV).sum(dim=1)
    slopes = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs)
    slopes_of_both = [
        torch.autograd.grad((torch.stack(pair) * slopes).sum(), (hidden_MH, weight_VH)) for pair in (found, expected)
    ]
    for ours, theirs in zip(*slopes_of_both, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-10)
    with torch.no_grad():
        _, squares_C = gradients.token_logprobs(
            hidden_MH, weight_VH, temperature=0.7, with_entropy=False, with_sum_pi_squared=True, **given
        )
    assert torch.allclose(squares_C, (2 * logs_CV).exp().sum(dim=1))


# Divergence from the reference by hand, the clamps of each convention, and the adaptive coefficient.


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
