"""Log-probabilities, entropy and the clipped policy loss.

Every sum is over the mask only and is divided by a count that the caller gives, so that parts of a batch add up to
the whole whatever their size. Values outside the mask are replaced, never multiplied by 0: they may be NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class Clip:
    """Bounds of the ratio of new to old probability: 1 - low, 1 + high; `dual` bounds it where A < 0 (None: not)."""

    low: float
    high: float
    dual: float | None


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss with what it was made of; the counts are numbers of tokens."""

    loss: Tensor  # sum over the mask / num_tokens
    ratios_BT: Tensor  # detached; 1 where the mask is off
    num_clipped: Tensor  # tokens whose clipped term is the larger one


def token_logprobs(logits_BTV: Tensor, tokens_BT: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """The log-probability of each token, and the entropy of the distribution it was drawn from, both [B, T].

    The logits of a row are those that predict its tokens: already shifted by one. Entropy in nats, of the
    distribution at this temperature.
    """
    all_BTV = torch.log_softmax(logits_BTV / temperature, dim=-1)
    logprobs_BT = all_BTV.gather(-1, tokens_BT.unsqueeze(-1)).squeeze(-1)
    return logprobs_BT, -(all_BTV.exp() * all_BTV).sum(dim=-1)


def masked_sum(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The sum where the mask is on; what stands elsewhere does not matter, nor does its gradient."""
    return torch.where(mask_BT, values_BT, torch.zeros_like(values_BT)).sum()


def policy_loss(
    logprobs_BT: Tensor, old_BT: Tensor, advantages_B: Tensor, mask_BT: Tensor, *, clip: Clip, num_tokens: Tensor
) -> PolicyLoss:
    """The clipped surrogate, negated: max(-A r, -A clip(r)), and for A < 0 at most -A dual.

    `num_tokens` is the number of masked tokens of everything that one optimizer step sees, not of this part of it.
    Source: PPO; dual clip: Ye et al. 2020; asymmetric bounds: DAPO; log ratio held in +-20 as in verl core_algos.
    Example: A = 1, ratio 1.5, high 0.2 -> -1.2, clipped.
    """
    zeros_BT = torch.zeros_like(logprobs_BT)
    log_ratios_BT = torch.where(mask_BT, logprobs_BT - old_BT, zeros_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratios_BT = log_ratios_BT.exp()
    advantages_B1 = advantages_B.unsqueeze(1)
    plain_BT = -advantages_B1 * ratios_BT
    clipped_BT = -advantages_B1 * ratios_BT.clamp(1 - clip.low, 1 + clip.high)
    losses_BT = torch.maximum(plain_BT, clipped_BT)
    if clip.dual is not None:
        bounded_BT = torch.minimum(losses_BT, -advantages_B1 * clip.dual)
        losses_BT = torch.where(advantages_B1 < 0, bounded_BT, losses_BT)
    return PolicyLoss(
        loss=masked_sum(losses_BT, mask_BT) / num_tokens,
        ratios_BT=ratios_BT.detach(),
        num_clipped=(mask_BT & (clipped_BT > plain_BT)).sum(),
    )
