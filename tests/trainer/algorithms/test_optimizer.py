"""Parameters with their optimizer: a step, the step that is left out, and the state that brings both back."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.optim.adamw import adamw

from trainer.algorithms.optimizer import AdamW, Optimizer, clip_grad_norm, copy_into


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


# The optimizer's rule against torch's own.


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_ten_steps_agree_with_torch(weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, dtype=torch.float64, generator=generator)
    ours, theirs = start.clone().requires_grad_(), start.clone()
    # The function under torch.optim.AdamW: making one of the class imports a compiler, for 3 s.
    means, squares, steps = torch.zeros_like(start), torch.zeros_like(start), torch.tensor(0.0)
    optimizer = AdamW.start({"w": ours}, weight_decay=weight_decay)
    for number in range(1, 11):
        gradient = torch.randn(4, 3, dtype=torch.float64, generator=generator)
        ours.grad = gradient.clone()
        optimizer.step({"w": ours}, lr=0.1 / number, number=number)
        adamw(
            [theirs], [gradient], [means], [squares], [], [steps],
            amsgrad=False, beta1=0.9, beta2=0.999, lr=0.1 / number, weight_decay=weight_decay, eps=1e-8, maximize=False,
        )  # fmt: skip
    assert torch.allclose(ours, theirs, atol=1e-13, rtol=0)


def test_the_first_step_has_the_size_of_the_learning_rate() -> None:
    weight = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
    weight.grad = torch.tensor([5.0, -0.01, 0.0], dtype=torch.float64)
    AdamW.start({"w": weight}, weight_decay=0.0).step({"w": weight}, lr=0.1, number=1)
    assert weight.tolist() == pytest.approx([0.9, 1.1, 1.0], abs=1e-6)


def test_a_learning_rate_of_nothing_moves_nothing() -> None:
    weight = torch.tensor([1.0], requires_grad=True)
    weight.grad = torch.tensor([5.0])
    AdamW.start({"w": weight}, weight_decay=0.1).step({"w": weight}, lr=0.0, number=1)
    assert weight.item() == 1.0


@pytest.mark.parametrize("largest", [0.5, 100.0])
@pytest.mark.slow
def test_gradients_are_clipped_as_torch_clips_them(largest: float) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(size, generator=generator, dtype=torch.float64) for size in (3, 7)]
    theirs = [torch.zeros_like(each).requires_grad_() for each in ours]
    for own, other in zip(ours, theirs, strict=True):
        other.grad = own.clone()
    norm = clip_grad_norm([*ours, None], largest)
    assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs, largest)), rel=1e-12)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other.grad, rtol=1e-12, atol=0)


def test_gradients_that_are_not_finite_stay_as_they_are() -> None:
    gradient = torch.tensor([3.0, float("nan")])
    assert clip_grad_norm([gradient], 1.0) != clip_grad_norm([gradient], 1.0)
    assert gradient[0].item() == 3.0
    assert clip_grad_norm([None], 1.0) == 0.0
