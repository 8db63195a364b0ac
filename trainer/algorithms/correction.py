"""Importance weights for the difference between the sampling policy and the learning policy.

A sampler computes with other kernels, in another precision, perhaps with older weights: its probabilities differ
slightly from the learner's for the same token. A weight learner / sampler on each token's loss corrects this on
average, and a bound limits the effect of an unlikely token. Nothing here has a gradient.

`level` "token": one weight per token. "sequence": one per answer, over all its tokens. `bound` "truncate": a ratio
above `cap` (below `floor`) is clamped to it. "mask": it becomes 0, so the token has no loss.

`shares` measures the weights of a part of a step so that the parts can be combined; `spread` computes the reported
numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.algorithms.losses import Totals, masked_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from trainer.algorithms.conventions import Convention


@dataclass(frozen=True, slots=True)
class Correction:
    """The weights and their inputs, both [B, T] and 0 where the mask is off."""

    weights_BT: Tensor
    ratios_BT: Tensor  # learner / sampler, before the bound; for "sequence" equal on each token of a row


@dataclass(frozen=True, slots=True)
class Spread:
    """The weights of a step's tokens under verl's names (`rollout_corr/rollout_is_mean` and so on)."""

    mean: float
    std: float
    max: float  # of complete rows: before the bound
    min: float  # likewise
    eff_sample_size: float  # 1: all weights equal; near 0: few tokens carry the step
    ratio_fraction_high: float  # tokens (for "sequence": rows) whose ratio was above the cap
    ratio_fraction_low: float  # or below the floor; without one below 1 / cap


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
    """The weight of each token, from log-probabilities of the same tokens by both policies.

    A sampler's NaN inside the mask counts as the learner's own value: ratio 1.
    Raises ValueError for a level or a bound that does not exist.
    Source: truncated importance sampling, Yao et al. 2025; masked: IcePop, Ling team 2025;
    verl rollout_corr_helper.compute_rollout_correction_weights, TRL `vllm_importance_sampling_mode`,
    ROLL rlvr/actor_worker.
    Example: learner log 0.6, sampler log 0.2: ratio 3; with cap 2 the weight is 2, or 0 when masked
    """
    if level not in ("token", "sequence") or bound not in ("truncate", "mask"):
        raise ValueError(f"level is token or sequence, bound truncate or mask, not {level!r} and {bound!r}")
    with torch.no_grad():
        difference_BT = torch.where(mask_BT & ~sampler_BT.isnan(), learner_BT - sampler_BT, 0.0)
        ratios_BT = _ratios(difference_BT, mask_BT, convention, level)
        beyond_BT = mask_BT & ((ratios_BT > cap) | (ratios_BT < floor))
        clamped_BT = ratios_BT.clamp(floor, cap) if bound == "truncate" else torch.where(beyond_BT, 0.0, ratios_BT)
        return Correction(torch.where(mask_BT, clamped_BT, 0.0), torch.where(mask_BT, ratios_BT, 0.0))


# Of these the parts of a step give the largest; the others add up.
MAXIMA = ("weight_max", "weight_min_negated")


@torch.no_grad()
def shares(
    corrected: Correction, mask_BT: Tensor, totals: Totals, *, level: str, cap: float, floor: float = 0.0
) -> dict[str, Tensor]:
    """A part's contribution to the weights' statistics, given the denominators of the total; scalars."""
    # Squares of the distance from 1, the usual weight, to avoid cancellation in the deviation.
    excess_BT = corrected.weights_BT - 1
    is_of_rows = level == "sequence"
    reported_BT = corrected.ratios_BT if is_of_rows else corrected.weights_BT
    high_BT, low_BT = mask_BT & (corrected.ratios_BT > cap), mask_BT & (corrected.ratios_BT < (floor or 1 / cap))
    number = totals.num_rows if is_of_rows else totals.num_tokens
    high, low = (each.any(dim=1) if is_of_rows else each for each in (high_BT, low_BT))
    return {
        "weight_excess": masked_sum(excess_BT, mask_BT) / totals.num_tokens,
        "weight_square": masked_sum(excess_BT.square(), mask_BT) / totals.num_tokens,
        "weight_high": high.sum() / number,
        "weight_low": low.sum() / number,
        "weight_max": reported_BT.max(),
        "weight_min_negated": torch.where(mask_BT, -reported_BT, -math.inf).max(),  # nothing on: never the largest
    }


def spread(whole: Mapping[str, float]) -> Spread:
    """The numbers to report of what `shares` gave for all parts of a step.

    Source: verl 0.9.1, rollout_corr_helper.compute_is_metrics.
    Example: weights 2, 1, 0.25 -> mean 1.083, deviation 0.717, effective sample 0.695
    """
    excess, square = whole["weight_excess"], whole["weight_square"]
    mean, squares = 1 + excess, 1 + 2 * excess + square
    return Spread(
        mean=mean,
        std=max(square - excess * excess, 0.0) ** 0.5,
        max=whole["weight_max"],
        min=whole["weight_max"] if whole["weight_min_negated"] == -math.inf else -whole["weight_min_negated"],
        eff_sample_size=mean * mean / squares if squares > 0 else 0.0,
        ratio_fraction_high=whole["weight_high"],
        ratio_fraction_low=whole["weight_low"],
    )


def _ratios(difference_BT: Tensor, mask_BT: Tensor, convention: Convention, level: str) -> Tensor:
    if level == "sequence":
        whole_B1 = difference_BT.sum(dim=1, keepdim=True)
        if convention.sequence_ratio == "mean":
            whole_B1 = whole_B1 / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
        difference_BT = whole_B1.expand_as(difference_BT)
    limit = convention.correction_log_ratio_limit
    return (difference_BT if limit is None else difference_BT.clamp(-limit, limit)).exp()
