"""The optimizer's rule against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch.optim.adamw import adamw

from trainer.algorithms.optimizer import AdamW, clip_grad_norm


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
