"""Parameters with their optimizer: a step, the step that is left out, and the state that brings both back."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from trainer.algorithms.optimizer import AdamW, Optimizer, copy_into


def model(dtype: torch.dtype = torch.float64) -> nn.Linear:
    torch.manual_seed(0)
    made = nn.Linear(3, 2).to(dtype)
    made.bias.requires_grad_(False)
    return made


def take(optimizer: Optimizer, *gradients: float) -> list[float]:
    """A step by each of these gradients, the same for every number; the norms."""
    norms = []
    for gradient in gradients:
        optimizer.zero_grad()
        assert all(each.grad is None for each in optimizer.parameters.values())
        for each in optimizer.parameters.values():
            each.grad = torch.full_like(each, gradient)
        norms.append(optimizer.step(lr=0.1, grad_clip=1.0))
    return norms


@pytest.mark.slow
def test_a_step_is_that_of_adamw_on_the_bounded_gradient_of_what_learns() -> None:
    made, other = model(), model()
    optimizer, before = Optimizer.start(made.named_parameters(), weight_decay=0.1), made.bias.clone()
    assert list(optimizer.parameters) == ["weight"]
    assert take(optimizer, 5.0, 0.1) == pytest.approx([5.0 * math.sqrt(6), 0.1 * math.sqrt(6)])
    plain, wanted = {"weight": other.weight}, AdamW.start({"weight": other.weight}, weight_decay=0.1)
    for number, gradient in enumerate((1 / math.sqrt(6), 0.1), start=1):
        other.weight.grad = torch.full_like(other.weight, gradient)
        wanted.step(plain, lr=0.1, number=number)
    torch.testing.assert_close(made.weight, other.weight, rtol=0, atol=1e-7)
    assert torch.equal(made.bias, before)
    assert optimizer.optimizer_steps == 2


@pytest.mark.parametrize("gradient", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_moves_nothing_and_counts(gradient: float) -> None:
    made = model()
    optimizer, before = Optimizer.start(made.named_parameters(), weight_decay=0.1), made.weight.detach().clone()
    assert not math.isfinite(take(optimizer, gradient)[0])
    assert torch.equal(made.weight, before)
    assert not bool(optimizer.adamw.first["weight"].any())
    assert optimizer.optimizer_steps == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_its_state_brings_it_back_bit_for_bit(dtype: torch.dtype) -> None:
    made, other = model(dtype), model(dtype)
    optimizer, fresh = (Optimizer.start(each.named_parameters(), weight_decay=0.1) for each in (made, other))
    take(optimizer, 1.0, -0.3)
    state = copy.deepcopy(optimizer.state())
    assert list(state) == ["weights", "first", "second", "master", "updates"]
    assert list(state["master"]) == (["weight"] if dtype == torch.bfloat16 else [])
    take(optimizer, 0.7)
    fresh.restore(state)
    take(fresh, 0.7)
    assert torch.equal(other.weight, made.weight)
    for part in ("first", "second", "master"):
        assert all(torch.equal(each, fresh.state()[part][name]) for name, each in optimizer.state()[part].items()), part
    assert fresh.optimizer_steps == optimizer.optimizer_steps == 3


def test_shares_in_bfloat16_add_up_as_in_float32_and_only_where_there_are_several() -> None:
    """Half a number plus 1/512 is that half again in bfloat16."""
    made = model(torch.bfloat16)
    optimizer = Optimizer.start(made.named_parameters(), weight_decay=0.0)
    for num_passes, wanted in ((512, 1.0), (1, 0.5)):
        optimizer.zero_grad()
        with optimizer.accumulating(num_passes):
            for _ in range(512):
                (made.weight.sum() / 512).backward()
                assert (made.weight.grad is None) == (num_passes > 1)
        assert made.weight.grad is not None and made.weight.grad.dtype == torch.bfloat16
        assert torch.equal(made.weight.grad, torch.full_like(made.weight, wanted))


def test_shares_of_32_bits_and_more_stay_where_they_are() -> None:
    made = model(torch.float32)
    optimizer = Optimizer.start(made.named_parameters(), weight_decay=0.0)
    with optimizer.accumulating(2):
        made.weight.sum().backward()
        assert made.weight.grad is not None


def test_a_pass_that_breaks_leaves_nothing_behind() -> None:
    made = model(torch.bfloat16)
    optimizer = Optimizer.start(made.named_parameters(), weight_decay=0.0)
    with pytest.raises(ZeroDivisionError), optimizer.accumulating(2):
        made.weight.sum().backward()
        raise ZeroDivisionError
    made.weight.sum().backward()
    assert made.weight.grad is not None and torch.equal(made.weight.grad, torch.ones_like(made.weight))


def test_a_state_of_other_names_is_refused() -> None:
    with pytest.raises(KeyError, match="weight"):
        copy_into({"weight": torch.zeros(1)}, {"bias": torch.ones(1)})
