"""Weights for the gap between the policy that said a token and the policy that learns from it.

A sampler computes with other kernels, in another precision, perhaps with older weights: its probabilities differ a
little from the learner's for the same token. A weight learner / sampler on each token's loss takes that out on
average, and a bound keeps one unlikely token from ruling the batch. Nothing here has a gradient.

`level` "token": one weight per token. "sequence": one per answer, of all its tokens. `bound` "truncate": a ratio
above `cap` (below `floor`) is held there. "mask": it becomes 0, so the token is not learnt from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.algorithms.aggregation import masked_mean

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.algorithms.conventions import Convention


@dataclass(frozen=True, slots=True)
class Correction:
    """The weights with what they were made of; scalars over the mask, ready to be logged."""

    weights_BT: Tensor  # 0 where the mask is off
    ratio_mean: Tensor  # of learner to sampler, before the bound
    ratio_max: Tensor
    ratio_min: Tensor
    share_bounded: Tensor  # tokens whose ratio was beyond the bound
    effective_sample: Tensor  # 1: all weights equal; near 0: few tokens carry the step
    kl: Tensor  # sampler from learner, mean of log sampler - log learner


def correction(
    learner_BT: Tensor,
    sampler_BT: Tensor,
    mask_BT: Tensor,
    convention: Convention,
    *,
    level: str,
    cap: float,
    floor: float = 0.0,
    bound: str = "truncate",
) -> Correction:
    """The weight of each token and its statistics, from log-probabilities of the same tokens by both policies.

    A sampler's NaN inside the mask counts as the learner's own value: ratio 1.
    Raises ValueError for a level or a bound that does not exist.
    Source: truncated importance sampling, Yao et al. 2025; verl rollout_corr_helper.compute_rollout_correction_weights,
    TRL `vllm_importance_sampling_mode`, ROLL rlvr/actor_worker.
    Example: learner log 0.6, sampler log 0.2: ratio 3; with cap 2 the weight is 2, or 0 when masked
    """
    if level not in ("token", "sequence") or bound not in ("truncate", "mask"):
        raise ValueError(f"level is token or sequence, bound truncate or mask, not {level!r} and {bound!r}")
    with torch.no_grad():
        difference_BT = torch.where(mask_BT & ~sampler_BT.isnan(), learner_BT - sampler_BT, 0.0)
        ratios_BT = _ratios(difference_BT, mask_BT, convention, level)
        beyond_BT = mask_BT & ((ratios_BT > cap) | (ratios_BT < floor))
        held_BT = ratios_BT.clamp(floor, cap) if bound == "truncate" else torch.where(beyond_BT, 0.0, ratios_BT)
        weights_BT = torch.where(mask_BT, held_BT, 0.0)
        mean = masked_mean(weights_BT, mask_BT)
        squares = masked_mean(weights_BT.square(), mask_BT)
        return Correction(
            weights_BT=weights_BT,
            ratio_mean=masked_mean(ratios_BT, mask_BT),
            ratio_max=torch.where(mask_BT, ratios_BT, 0.0).max(),
            ratio_min=torch.where(mask_BT, ratios_BT, float("inf")).min(),
            share_bounded=masked_mean(beyond_BT.to(weights_BT.dtype), mask_BT),
            effective_sample=torch.where(squares > 0, mean.square() / squares, 0.0),
            kl=masked_mean(-difference_BT, mask_BT),
        )


def _ratios(difference_BT: Tensor, mask_BT: Tensor, convention: Convention, level: str) -> Tensor:
    if level == "sequence":
        whole_B1 = difference_BT.sum(dim=1, keepdim=True)
        if convention.sequence_ratio == "mean":
            whole_B1 = whole_B1 / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
        difference_BT = whole_B1.expand_as(difference_BT)
    limit = convention.correction_log_ratio_limit
    return (difference_BT if limit is None else difference_BT.clamp(-limit, limit)).exp()
