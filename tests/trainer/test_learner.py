"""The learner: the gradient is that of the whole loss however the batch is cut, and updates improve it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from trainer_cases import TINY, decoder, group

from trainer.algorithms.kl import low_var
from trainer.algorithms.packing import pack
from trainer.learner import Learner
from trainer.tasks.base import END, PAD
from trainer.types import Batch

WIDE = replace(TINY, dtype="float64", kl_coef=0.1, entropy_coef=0.05, steps=10, grad_clip=1e9)
# Answers of 1 to 3 tokens: unequal on purpose, equal ones let a wrong denominator pass.
GROUPS = [
    group("14=", (5, END), (5, 5, 5), (END,)),
    group("29=", (0, END), (1, END), (END,)),
    group("33=", (4, 4, END), (4, END), (2, END)),
]
ADVANTAGES = torch.tensor([[1.2, -0.7, -0.5], [0.9, -0.4, -0.5], [-1.0, 1.1, -0.1]], dtype=torch.float64)


def batch(width: int | None = None) -> Batch:
    return pack(GROUPS, ADVANTAGES, pad=PAD, width=width)


def learner(**changes: object) -> Learner:
    config = replace(WIDE, **changes)  # type: ignore[arg-type]
    return Learner(decoder(config, seed=1), decoder(config, seed=2), config, seed=0)


def gradient(made: Learner, of: Batch) -> dict[str, Tensor]:
    """The gradient of one optimizer step; lr=0 keeps the weights."""
    made.update(of)
    return {name: weight.grad.clone() for name, weight in made.weights().items() if weight.grad is not None}


def largest_gap(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def slow_gradient() -> dict[str, Tensor]:
    """Token by token, row by row, without padding, mask or clipping (the first update is on policy)."""
    policy, reference = decoder(WIDE, seed=1), decoder(WIDE, seed=2)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, advantages in zip(GROUPS, ADVANTAGES, strict=True):
        for rollout, advantage in zip(row.rollouts, advantages, strict=True):
            tokens = torch.tensor([[*row.prompt.tokens, *rollout.tokens]])
            own, other = (torch.log_softmax(model(tokens)[0], dim=-1) for model in (policy, reference))
            for at, token in enumerate(rollout.tokens, start=len(row.prompt.tokens) - 1):
                chosen = own[at, token]
                total = total - advantage * torch.exp(chosen - chosen.detach())
                total = total + WIDE.kl_coef * low_var(chosen, other[at, token].detach())
                total = total + WIDE.entropy_coef * (own[at].exp() * own[at]).sum()
                count += 1
    (total / count).backward()
    return {name: weight.grad for name, weight in policy.named_parameters() if weight.grad is not None}


def test_the_gradient_is_that_of_a_slow_and_obvious_version() -> None:
    assert largest_gap(gradient(learner(lr=0.0), batch()), slow_gradient()) < 1e-10


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_any_split_into_micro_batches_gives_the_same_gradient_and_numbers(rows: int) -> None:
    whole, split = learner(lr=0.0), learner(lr=0.0, micro_batch_rows=rows)
    one, other = whole.update(batch()), split.update(batch())
    gap = largest_gap(
        *({n: w.grad for n, w in each.weights().items() if w.grad is not None} for each in (whole, split))
    )
    assert gap < 1e-10
    for name in ("loss", "policy_loss", "kl", "entropy", "ratio_mean", "ratio_max", "grad_norm"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), abs=1e-10), name


@pytest.mark.parametrize("width", [7, 12])
def test_padding_changes_nothing(width: int) -> None:
    assert largest_gap(gradient(learner(lr=0.0), batch(width)), gradient(learner(lr=0.0), batch())) < 1e-12


def test_the_order_of_rows_changes_nothing() -> None:
    order, plain = torch.tensor([4, 0, 8, 3, 1, 7, 2, 6, 5]), batch()
    turned = Batch(*(getattr(plain, name)[order] for name in Batch.__slots__))
    assert largest_gap(gradient(learner(lr=0.0), turned), gradient(learner(lr=0.0), plain)) < 1e-12


def test_what_the_sampler_said_outside_the_mask_changes_nothing() -> None:
    plain = batch()
    noisy = replace(plain, sampler_logprobs_BT=plain.sampler_logprobs_BT.masked_fill(~plain.mask_BT, float("nan")))
    one, other = learner(lr=0.0).update(plain), learner(lr=0.0).update(noisy)
    assert one == other


def test_the_gap_to_the_sampler_is_the_largest_one_under_the_mask() -> None:
    made = decoder(WIDE, seed=1)
    plain = batch()
    logprobs = torch.log_softmax(made(plain.tokens_BT[:, :-1]), dim=-1)
    true = logprobs.gather(-1, plain.tokens_BT[:, 1:].unsqueeze(-1)).squeeze(-1).detach()
    said = torch.cat((torch.zeros(9, 1, dtype=torch.float64), true), dim=1)
    assert learner().update(replace(plain, sampler_logprobs_BT=said)).sampler_learner_logprob_diff_max < 1e-12
    said[4, 4] += 0.25
    found = learner().update(replace(plain, sampler_logprobs_BT=said))
    assert found.sampler_learner_logprob_diff_max == pytest.approx(0.25)
    said[4, 4] = float("nan")
    found = learner().update(replace(plain, sampler_logprobs_BT=said))
    assert found.sampler_learner_logprob_diff_max != found.sampler_learner_logprob_diff_max


def test_the_first_update_is_on_policy_and_later_mini_batches_are_not() -> None:
    one = learner(lr=0.01).update(batch())
    assert (one.ratio_mean, one.ratio_max, one.clip_fraction) == (1.0, 1.0, 0.0)
    several = learner(lr=0.01, mini_batches=3).update(batch())
    assert several.ratio_max > 1.01


def test_an_update_raises_what_was_good_and_lowers_what_was_bad() -> None:
    made, plain = learner(lr=1e-3, kl_coef=0.0, entropy_coef=0.0), batch()
    before = made._logprobs(made._decoder, plain.tokens_BT)
    made.update(plain)
    change = (made._logprobs(made._decoder, plain.tokens_BT) - before) * plain.mask_BT[:, 1:]
    gain = (change.sum(dim=1) * plain.advantages_B).sum().item()
    assert gain > 0


def test_the_learning_rate_falls_linearly_to_nothing() -> None:
    made = learner(lr=0.01, steps=4, mini_batches=2)
    found = []
    for _ in range(4):
        found += [made.lr()]
        made.update(batch())
    assert found == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    assert made.lr() == 0.0


def test_the_gradient_is_clipped_after_its_norm_is_noted() -> None:
    made = learner(lr=0.0, grad_clip=0.1)
    noted = made.update(batch()).grad_norm
    norm = torch.cat([w.grad.reshape(-1) for w in made.weights().values() if w.grad is not None]).norm().item()
    assert noted > 0.2
    assert norm == pytest.approx(0.1, rel=1e-3)


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone_and_is_told() -> None:
    made = learner(lr=0.1)
    before = {name: weight.detach().clone() for name, weight in made.weights().items()}
    found = made.update(replace(batch(), advantages_B=torch.full((9,), float("inf"), dtype=torch.float64)))
    assert not found.grad_norm < float("inf")
    assert all(torch.equal(before[name], weight) for name, weight in made.weights().items())


def test_zero_advantages_without_other_terms_move_nothing() -> None:
    made = learner(lr=0.1, kl_coef=0.0, entropy_coef=0.0)
    before = {name: weight.detach().clone() for name, weight in made.weights().items()}
    made.update(replace(batch(), advantages_B=torch.zeros(9, dtype=torch.float64)))
    assert all(torch.equal(before[name], weight) for name, weight in made.weights().items())


def test_a_restored_learner_goes_on_bit_for_bit() -> None:
    live, fresh = (
        learner(lr=0.01, mini_batches=2),
        Learner(decoder(WIDE, seed=7), decoder(WIDE, seed=8), replace(WIDE, lr=0.01, mini_batches=2), seed=5),
    )
    live.update(batch())
    fresh.restore(live.state())
    assert live.update(batch()) == fresh.update(batch())
    assert all(torch.equal(live.weights()[name], weight) for name, weight in fresh.weights().items())


def test_the_reference_never_moves() -> None:
    made = learner(lr=0.1)
    before = {name: weight.clone() for name, weight in made.state()["reference"].items()}
    made.update(batch())
    assert all(torch.equal(before[name], weight) for name, weight in made.state()["reference"].items())


def test_the_number_of_parameters_is_counted_by_hand() -> None:
    config = replace(TINY, layers=2, hidden=128, intermediate=512)
    made = Learner(decoder(config), decoder(config), config, seed=0)
    attention = 2 * 128 * 128 + 128 + 2 * (64 * 128 + 64)
    assert made.num_parameters == 19 * 128 + 128 + 2 * (2 * 128 + 3 * 128 * 512 + attention)
