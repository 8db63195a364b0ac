"""The numbers of an optimizer step: each micro batch gives its share of them, and the shares are combined.

`token_metrics` and `weight_shares` give shares given the denominators of the whole step; those in `MAXIMA` are maxima
over its tokens, the others add up. `UpdateMetrics` has those that are reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.algorithms.losses import Totals, masked_sum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.algorithms.losses import TokenLosses
    from trainer.algorithms.policy_losses import Correction
    from trainer.sections import Algorithm
    from trainer.types import Batch

MAXIMA = {"ratio_max", "logprob_diff_max", "weight_max", "weight_min_negated"}


@dataclass(frozen=True, slots=True)
class WeightMetrics:
    """The weights of a step's tokens under verl's names (`rollout_corr/rollout_is_mean` and so on)."""

    mean: float
    std: float
    max: float  # of complete rows: before the bound
    min: float  # likewise
    eff_sample_size: float  # 1: all weights equal; near 0: few tokens carry the step
    ratio_fraction_high: float  # tokens (for "sequence": rows) whose ratio was above the cap
    ratio_fraction_low: float  # or below the floor; without one below 1 / cap


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """The statistics of a batch, averaged over its optimizer steps unless noted; per-token means are over the masked
    tokens.
    """

    loss: float
    policy_loss: float
    kl: float  # from the reference policy, by the configured estimator; 0 without a reference
    entropy: float
    clip_fraction: float
    clip_fraction_lower: float  # tokens whose loss the second bound made smaller
    ppo_kl: float  # of the old policy from the new one, mean of log old - log new; 0 in the first optimizer step
    ratio_mean: float
    ratio_max: float  # of all optimizer steps
    grad_norm: float  # before clipping
    lr: float  # of the last optimizer step
    logprob_diff_mean: float  # engine against learner, before the first optimizer step
    logprob_diff_max: float
    rollout_kl: float  # estimate of KL(engine || learner) over the same tokens, k3
    rollout_kl_direct: float  # another one, mean of log engine - log learner
    value_loss: float  # 0 without a critic
    weights: WeightMetrics | None  # of the correction between engine and learner; None: there is none

    @classmethod
    def mean(cls, steps: Sequence[Mapping[str, float]], *, value_loss: float) -> UpdateMetrics:
        """Of the metrics of each optimizer step."""
        means = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
        for name in MAXIMA & set(means):
            means[name] = float(torch.tensor([step[name] for step in steps]).max())  # unlike max(), keeps a NaN
        means["lr"] = steps[-1]["lr"]
        parts = {name: means.pop(name) for name in list(means) if name.startswith("weight_")}
        return cls(**means, value_loss=value_loss, weights=weight_metrics(parts) if parts else None)


@torch.no_grad()
def token_metrics(
    micro_batch: Batch,
    old_BT: Tensor,
    policy: TokenLosses,
    corrected: Correction | None,
    totals: Totals,
    algorithm: Algorithm,
) -> dict[str, Tensor]:
    """A micro batch's share of the metrics over tokens."""
    mask_BT = micro_batch.mask_BT
    gap_BT = torch.where(mask_BT, old_BT - micro_batch.rollout_logprobs_BT, torch.zeros_like(old_BT))
    metrics = {
        "clip_fraction": masked_sum(policy.is_clipped_BT.to(policy.losses_BT.dtype), mask_BT) / totals.num_tokens,
        "clip_fraction_lower": policy.is_bounded_BT.sum() / totals.num_tokens,
        "ppo_kl": -policy.log_ratios_BT.sum() / totals.num_tokens,
        "ratio_mean": masked_sum(policy.ratios_BT, mask_BT) / totals.num_tokens,
        "ratio_max": policy.ratios_BT.max(),
        "logprob_diff_mean": gap_BT.abs().sum() / totals.num_tokens,
        "logprob_diff_max": gap_BT.abs().max(),
        "rollout_kl": (gap_BT.exp() - gap_BT - 1).sum() / totals.num_tokens,
        "rollout_kl_direct": -gap_BT.sum() / totals.num_tokens,
    }
    if corrected is None:
        return metrics
    level, cap, floor = algorithm.correction, algorithm.correction_cap, algorithm.correction_floor
    return {**metrics, **weight_shares(corrected, mask_BT, totals, level=level, cap=cap, floor=floor)}


@torch.no_grad()
def weight_shares(
    corrected: Correction, mask_BT: Tensor, totals: Totals, *, level: str, cap: float, floor: float = 0.0
) -> dict[str, Tensor]:
    """A micro batch's contribution to the weights' statistics, given the denominators of the total; scalars."""
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


def weight_metrics(whole: Mapping[str, float]) -> WeightMetrics:
    """The numbers to report of what `weight_shares` gave for all parts of a step.

    Source: verl 0.9.1, rollout_corr_helper.compute_is_metrics.
    Example: weights 2, 1, 0.25 -> mean 1.083, deviation 0.717, effective sample 0.695
    """
    excess, square = whole["weight_excess"], whole["weight_square"]
    mean, squares = 1 + excess, 1 + 2 * excess + square
    return WeightMetrics(
        mean=mean,
        std=max(square - excess * excess, 0.0) ** 0.5,
        max=whole["weight_max"],
        min=whole["weight_max"] if whole["weight_min_negated"] == -math.inf else -whole["weight_min_negated"],
        eff_sample_size=mean * mean / squares if squares > 0 else 0.0,
        ratio_fraction_high=whole["weight_high"],
        ratio_fraction_low=whole["weight_low"],
    )
