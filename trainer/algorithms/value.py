"""What a critic is trained with, and how good it is.

The loss is per token and not yet aggregated, like a policy loss: `aggregation.aggregate` makes the step's scalar.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.algorithms.aggregation import masked_mean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ValueLosses:
    """Both [B, T]; 0 and false where the mask is off."""

    losses_BT: Tensor
    is_clipped_BT: Tensor  # the clipped term is the larger one


def value_loss(values_BT: Tensor, returns_BT: Tensor, old_BT: Tensor, mask_BT: Tensor, *, clip: float) -> ValueLosses:
    """Half the squared error; the larger one of the value and the value held within `clip` of the old one.

    `old_BT` is what the critic said before this batch; a clip of 0: none. Gradient flows into `values_BT`.
    Source: PPO as in verl core_algos.compute_value_loss and ROLL's CriticWorker.
    Example: value 2, return 0, old 0.5, clip 0.5 -> max(4, 1) / 2 = 2
    """
    values_BT = torch.where(mask_BT, values_BT, 0.0)
    returns_BT = torch.where(mask_BT, returns_BT, 0.0)
    error_BT = (values_BT - returns_BT).square()
    if not clip:
        return ValueLosses(0.5 * error_BT, torch.zeros_like(mask_BT))
    old_BT = torch.where(mask_BT, old_BT, 0.0)
    held_BT = torch.maximum(torch.minimum(values_BT, old_BT + clip), old_BT - clip)
    held_error_BT = (held_BT - returns_BT).square()
    return ValueLosses(0.5 * torch.maximum(error_BT, held_error_BT), mask_BT & (held_error_BT > error_BT))


def explained_variance(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """1 - variance of the error over variance of the returns, over the mask; a scalar.

    1: the critic knows every return; 0: as good as a constant; below: worse. 0 where the returns do not vary.
    """

    def variance(numbers_BT: Tensor) -> Tensor:
        return masked_mean((numbers_BT - masked_mean(numbers_BT, mask_BT)).square(), mask_BT)

    whole = variance(returns_BT)
    return torch.where(whole > 0, 1 - variance(returns_BT - values_BT) / whole, 0.0)
