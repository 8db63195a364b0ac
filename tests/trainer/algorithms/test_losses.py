"""The policy loss: hand-worked values on both sides of each bound, masks, splits, gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trainer.algorithms.losses import Clip, masked_sum, policy_loss, token_logprobs

CLIP = Clip(low=0.2, high=0.3, dual=3.0)


def loss_at(ratio: float, advantage: float, clip: Clip = CLIP) -> tuple[float, float, int]:
    """Loss, its gradient by the log-probability, and the number of clipped tokens, for a single token."""
    new = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    found = policy_loss(
        new,
        torch.zeros(1, 1, dtype=torch.float64),
        torch.tensor([advantage], dtype=torch.float64),
        torch.ones(1, 1, dtype=torch.bool),
        clip=clip,
        num_tokens=torch.tensor(1),
    )
    found.loss.backward()
    assert new.grad is not None
    return found.loss.item(), new.grad.item(), int(found.num_clipped)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "num_clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0),  # on policy: minus the advantage
        (1.0, -2.0, 2.0, 2.0, 0),
        (1.5, 2.0, -2.6, 0.0, 1),  # above 1 + high and good: held at 1.3
        (0.5, 2.0, -1.0, -1.0, 0),  # below 1 - low and good: not held
        (0.5, -2.0, 1.6, 0.0, 1),  # below 1 - low and bad: held at 0.8
        (1.5, -2.0, 3.0, 3.0, 0),  # above and bad: not held
        (5.0, -2.0, 6.0, 0.0, 0),  # far above and bad: the dual bound of 3
        (1.25, 2.0, -2.5, -2.5, 0),  # between low and high: the bounds are not symmetric
    ],
)
def test_each_side_of_each_bound(
    ratio: float, advantage: float, loss: float, gradient: float, num_clipped: int
) -> None:
    assert loss_at(ratio, advantage) == (pytest.approx(loss), pytest.approx(gradient), num_clipped)


def test_without_the_dual_bound_a_bad_token_may_cost_anything() -> None:
    assert loss_at(5.0, -2.0, Clip(0.2, 0.3, None))[0] == pytest.approx(10.0)


def test_the_log_ratio_is_held_at_twenty() -> None:
    assert loss_at(math.exp(30), -1.0, Clip(0.2, 0.3, None))[0] == pytest.approx(math.exp(20))


def example(seed: int = 0) -> dict[str, Tensor]:
    """Four rows with 1, 3, 0 and 5 masked tokens: unequal on purpose, equal ones let a wrong denominator pass."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.tensor([[0, 1, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0] * 6, [0, 1, 1, 1, 1, 1]]).bool()
    return {
        "logprobs_BT": torch.randn(4, 6, dtype=torch.float64, generator=generator) * 0.3 - 1,
        "old_BT": torch.randn(4, 6, dtype=torch.float64, generator=generator) * 0.3 - 1,
        "advantages_B": torch.randn(4, dtype=torch.float64, generator=generator),
        "mask_BT": mask,
    }


def gradient(values: dict[str, Tensor], num_tokens: int = 9) -> tuple[float, Tensor]:
    new = values["logprobs_BT"].clone().requires_grad_()
    found = policy_loss(**{**values, "logprobs_BT": new}, clip=CLIP, num_tokens=torch.tensor(num_tokens))
    found.loss.backward()
    assert new.grad is not None
    return found.loss.item(), new.grad


def test_the_mean_agrees_with_a_slow_and_obvious_version() -> None:
    values = example()
    total, count = 0.0, 0
    for row in range(4):
        for at in range(6):
            if values["mask_BT"][row, at]:
                advantage = values["advantages_B"][row].item()
                ratio = math.exp(values["logprobs_BT"][row, at].item() - values["old_BT"][row, at].item())
                cost = max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.3))
                total += min(cost, -advantage * 3) if advantage < 0 else cost
                count += 1
    assert count == 9
    assert gradient(values)[0] == pytest.approx(total / count)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("name", ["logprobs_BT", "old_BT"])
def test_what_stands_outside_the_mask_changes_nothing(name: str, garbage: float) -> None:
    values = example()
    plain = gradient(values)
    values[name] = values[name].masked_fill(~values["mask_BT"], garbage)
    found = gradient(values)
    assert found[0] == plain[0]
    assert torch.equal(found[1], plain[1])
    assert found[1][~values["mask_BT"]].abs().max().item() == 0.0


def test_masked_sum_ignores_nan_in_value_and_gradient() -> None:
    values = torch.tensor([[1.0, math.nan, 3.0]], requires_grad=True)
    total = masked_sum(values, torch.tensor([[True, False, True]]))
    total.backward()
    assert total.item() == 4.0
    assert values.grad is not None
    assert values.grad.tolist() == [[1.0, 0.0, 1.0]]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_parts_of_unequal_size_add_up_to_the_whole(cut: int) -> None:
    values = example()
    whole = gradient(values)
    parts = [gradient({k: v[rows] for k, v in values.items()}) for rows in (slice(0, cut), slice(cut, 4))]
    assert sum(loss for loss, _ in parts) == pytest.approx(whole[0], abs=1e-14)
    assert torch.allclose(torch.cat([each for _, each in parts]), whole[1], atol=1e-15)


def test_the_order_of_rows_changes_nothing() -> None:
    values, order = example(), torch.tensor([2, 0, 3, 1])
    whole = gradient(values)
    found = gradient({name: value[order] for name, value in values.items()})
    assert found[0] == pytest.approx(whole[0], abs=1e-15)
    assert torch.equal(found[1], whole[1][order])


@pytest.mark.parametrize(("left", "right"), [(0, 3), (2, 0), (1, 4)])
def test_the_amount_of_padding_on_either_side_changes_nothing(left: int, right: int) -> None:
    values = example()
    whole = gradient(values)
    wide = {k: torch.nn.functional.pad(v, (left, right)) if v.dim() == 2 else v for k, v in values.items()}
    found = gradient(wide)
    assert found[0] == pytest.approx(whole[0], abs=1e-15)
    assert torch.equal(found[1][:, left : left + 6], whole[1])


def test_gradients_agree_with_finite_differences() -> None:
    values = example(seed=5)

    def loss(new: Tensor) -> Tensor:
        return policy_loss(**{**values, "logprobs_BT": new}, clip=CLIP, num_tokens=torch.tensor(9)).loss

    assert torch.autograd.gradcheck(loss, (values["logprobs_BT"].clone().requires_grad_(),))


def test_log_probabilities_and_entropy_of_known_distributions() -> None:
    logits = torch.tensor([[[0.0, 0.0, 0.0, 0.0], [math.log(3.0), 0.0, -math.inf, -1e9]]], dtype=torch.float64)
    logits[0, 1, 2] = -1e9
    logprobs, entropy = token_logprobs(logits, torch.tensor([[2, 0]]), temperature=1.0)
    assert logprobs.tolist()[0] == pytest.approx([math.log(0.25), math.log(0.75)])
    two_sided = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert entropy.tolist()[0] == pytest.approx([math.log(4), two_sided])


def test_a_higher_temperature_flattens() -> None:
    logits = torch.tensor([[[2.0, 0.0]]], dtype=torch.float64)
    logprobs, _ = token_logprobs(logits, torch.tensor([[0]]), temperature=2.0)
    assert logprobs.item() == pytest.approx(-math.log(1 + math.exp(-1)))


def test_log_probabilities_and_entropy_have_the_right_gradients() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    tokens = torch.tensor([[0, 4, 2], [1, 1, 3]])
    assert torch.autograd.gradcheck(lambda each: token_logprobs(each, tokens, temperature=0.7), (logits,))
