"""Advantages: how much better than expected an answer was, per token. GRPO's; `estimators` has all others.

A reward alone says little: each estimator subtracts a baseline (GRPO the mean of the answer's group). Differences
between frameworks are in `conventions`. Nothing here has a gradient.

Letters: B rows (answers), T tokens, G answers of one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trainer.algorithms.conventions import Convention


@dataclass(frozen=True, slots=True)
class EstimatorInputs:
    """The rewards of one step's answers, with their groups.

    The rows may be in any order; values outside of the mask may be NaN.
    """

    token_rewards_BT: Tensor  # the answer's reward on its last token, minus a divergence on every token if wanted
    mask_BT: Tensor  # bool; true on the model's own tokens
    group_B: Tensor  # int64; equal numbers share a baseline
    values_BT: Tensor | None = None  # a critic's forecast before each token; gae only
    logprobs_BT: Tensor | None = None  # of the policy before this step's first update; optimal_token_baseline only
    sum_pi_squared_BT: Tensor | None = (
        None  # sum over the vocabulary of squared probabilities; optimal_token_baseline only
    )
    baselines_B: Tensor | None = None  # the reward of a greedy answer to the same prompt; remax only
    parts_BK: Tensor | None = None  # components of each reward; gdpo only


@dataclass(frozen=True, slots=True)
class Advantages:
    """Both [B, T]; 0 where the mask is off."""

    advantages_BT: Tensor
    returns_BT: Tensor | None  # the target of a critic; None without one


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the estimators; each reads those it needs."""

    scale_by_std: bool = True  # grpo, grpo_passk, gdpo: over the group's deviation
    gamma: float = 1.0  # discount per token
    lam: float = 1.0  # gae: 0 trusts the critic, 1 the rewards
    add: Callable[[Tensor], Tensor] | None = None  # sums a tensor over all ranks, for whitening; None: there is one
    scale_by_batch: bool = False  # grpo: over the deviation of all rewards of the step in place of the group's
    part_weights: tuple[float, ...] = ()  # gdpo: of each component; empty: 1


def grpo(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """An answer's reward minus its group's mean, over the group's sample deviation, on each of its tokens.

    Without `scale_by_std` only the mean is taken off (Dr. GRPO).
    Source: GRPO, outcome supervision (DeepSeekMath); verl core_algos.compute_grpo_outcome_advantage,
    TRL GRPOTrainer (and its `scale_rewards="batch"`), ROLL agentic/utils.get_score_normalize_fn.
    Example: a group's rewards 1, 0, 0, 1 -> 0.866, -0.866, -0.866, 0.866
    """
    of_batch = _batch_deviation(answer_rewards(inputs), convention, settings) if settings.scale_by_batch else None

    def scaled(rewards_G: Tensor) -> Tensor:
        centred_G = rewards_G - group_mean(rewards_G, convention)
        if not settings.scale_by_std:
            return centred_G
        deviation = deviation_of(rewards_G, convention) if of_batch is None else of_batch
        # Only if needed: one synchronization with the device per group takes most of this function's time.
        if convention.smallest_deviation >= 0 and bool(deviation <= convention.smallest_deviation):
            return torch.zeros_like(rewards_G)
        return centred_G / (deviation + convention.deviation_epsilon)

    return per_answer(scaled, inputs, convention, settings)


def by_group(group_B: Tensor) -> tuple[Tensor, list[int]]:
    """The row numbers group by group, and how many rows each group has."""
    _, counts = torch.unique(group_B, return_counts=True)
    return torch.argsort(group_B, stable=True), counts.tolist()


def group_mean(rewards_G: Tensor, convention: Convention) -> Tensor:
    if len(rewards_G) == 1 and convention.group_of_one == "reward":
        return torch.zeros_like(rewards_G[0])
    return rewards_G.nanmean() if convention.skips_nan_rewards else rewards_G.mean()


def deviation_of(rewards_G: Tensor, convention: Convention) -> Tensor:
    """With n-1; of a single reward 1 if the convention keeps its value, else 0."""
    if len(rewards_G) == 1:
        return torch.full_like(rewards_G[0], 1.0 if convention.group_of_one == "reward" else 0.0)
    if not convention.skips_nan_rewards:
        return rewards_G.std()
    number = (~rewards_G.isnan()).sum()
    variance = (rewards_G - rewards_G.nanmean()).square().nanmean() * (number / (number - 1))
    return variance.sqrt()


def has_signal(rewards_PG: Tensor, convention: Convention) -> Tensor:
    """Whether a group has a signal, [P] bool: its rewards are not all equal.

    A group of one has a signal if the convention keeps its bare reward. A group with a NaN has one only if the
    convention leaves NaN out and the rest differs. DAPO draws groups without one again.
    Source: Yu et al. 2025, DAPO; verl, recipe of that name.
    """
    if rewards_PG.shape[1] == 1:
        alone_P = ~rewards_PG[:, 0].isnan()
        return alone_P if convention.group_of_one == "reward" else alone_P & False
    if not convention.skips_nan_rewards:
        return rewards_PG.amax(dim=1) > rewards_PG.amin(dim=1)
    missing_PG = rewards_PG.isnan()
    highest_P = rewards_PG.masked_fill(missing_PG, -float("inf")).amax(dim=1)
    return highest_P > rewards_PG.masked_fill(missing_PG, float("inf")).amin(dim=1)


def _batch_deviation(rewards_B: Tensor, convention: Convention, settings: Settings) -> Tensor:
    """With n-1, of the rewards of all ranks; 0 of fewer than two."""
    counts_B = ~rewards_B.isnan() if convention.skips_nan_rewards else torch.ones_like(rewards_B, dtype=torch.bool)
    add = settings.add or (lambda sums: sums)
    number, total = add(torch.stack((counts_B.sum().to(rewards_B), rewards_B[counts_B].sum())))
    squares = add((rewards_B[counts_B] - total / number).square().sum())
    deviation: Tensor = (squares / (number - 1).clamp(min=1)).sqrt()
    return deviation


def answer_rewards(inputs: EstimatorInputs) -> Tensor:
    """The sum of each row's rewards. A finite one outside the mask counts: a row of no token has its reward there."""
    counts_BT = inputs.mask_BT | inputs.token_rewards_BT.isfinite()
    return torch.where(counts_BT, inputs.token_rewards_BT, 0.0).sum(dim=1)


def per_answer(
    change: Callable[[Tensor], Tensor], inputs: EstimatorInputs, convention: Convention, settings: Settings
) -> Advantages:
    """Each group's rewards changed, and each result on all tokens of its answer.

    One group at a time: groups may differ in size, and the order of summation is that of the frameworks.
    """
    rewards_B = answer_rewards(inputs)
    order_B, sizes = by_group(inputs.group_B)
    is_zero_alone = convention.group_of_one == "zero"
    results = [
        torch.zeros_like(rewards_G) if is_zero_alone and len(rewards_G) == 1 else change(rewards_G)
        for rewards_G in torch.split(rewards_B[order_B], sizes)
    ]
    result_B = torch.empty_like(rewards_B)
    result_B[order_B] = torch.cat(results)
    if convention.skips_nan_rewards:
        result_B = result_B.nan_to_num(nan=0.0)
    return spread_over_tokens(result_B, inputs, convention, settings)


def spread_over_tokens(
    result_B: Tensor, inputs: EstimatorInputs, convention: Convention, settings: Settings
) -> Advantages:
    """An answer's number on each of its tokens, or on the last one and discounted from there."""
    if not convention.discounts_groups or settings.gamma == 1.0:
        return Advantages(torch.where(inputs.mask_BT, result_B.unsqueeze(1), 0.0), None)
    positions_T = torch.arange(inputs.mask_BT.shape[1], device=result_B.device)
    last_B1 = torch.where(inputs.mask_BT, positions_T, -1).amax(dim=1, keepdim=True)
    last_token_BT = torch.where(positions_T == last_B1, result_B.unsqueeze(1), 0.0)
    last_token_inputs = EstimatorInputs(last_token_BT, inputs.mask_BT, inputs.group_B)
    return Advantages(rewards_to_go(last_token_inputs, convention, settings.gamma), None)


def rewards_to_go(inputs: EstimatorInputs, convention: Convention, gamma: float) -> Tensor:
    """From each token on the discounted rewards; 0 outside the mask."""
    mask_BT = inputs.mask_BT
    rewards_BT = torch.where(mask_BT, inputs.token_rewards_BT, 0.0)
    returns_BT = torch.zeros_like(rewards_BT)
    running_B = torch.zeros_like(rewards_BT[:, 0])
    for t in range(rewards_BT.shape[1] - 1, -1, -1):
        reached_B = rewards_BT[:, t] + gamma * running_B
        running_B = torch.where(mask_BT[:, t], reached_B, running_B) if convention.skips_observations else reached_B
        returns_BT[:, t] = torch.where(mask_BT[:, t], running_B, 0.0)
    return returns_BT
