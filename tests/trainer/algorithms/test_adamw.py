"""The optimizer's rule against torch's own."""

from __future__ import annotations

import pytest
import torch

from trainer.algorithms.adamw import AdamW


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_ten_steps_agree_with_torch(weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, dtype=torch.float64, generator=generator)
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    reference = torch.optim.AdamW([theirs], lr=0.1, weight_decay=weight_decay, eps=1e-8)
    optimizer = AdamW.start({"w": ours}, weight_decay=weight_decay)
    for number in range(1, 11):
        gradient = torch.randn(4, 3, dtype=torch.float64, generator=generator)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        reference.param_groups[0]["lr"] = 0.1 / number
        optimizer.step({"w": ours}, lr=0.1 / number, number=number)
        reference.step()
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
