"""Advantage estimators: how much better than expected an answer was, per token.

A reward alone says little: each estimator subtracts a baseline (its group's mean, the other answers' rewards, a
critic's value). Choose one by name with `advantages`; `ESTIMATORS` lists them. Differences between frameworks are in
`conventions`. Nothing here has a gradient.

Letters: B rows (answers), T tokens, G answers of one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.algorithms.conventions import CONVENTIONS, Convention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

__all__ = ["CONVENTIONS", "ESTIMATORS", "Advantages", "Convention", "Scores", "Settings", "advantages", "whiten"]


@dataclass(frozen=True, slots=True)
class Scores:
    """The rewards of one step's answers, with their groups.

    The rows may be in any order; values outside of the mask may be NaN.
    """

    token_rewards_BT: Tensor  # the answer's reward on its last token, minus a divergence on every token if wanted
    mask_BT: Tensor  # bool; true on the model's own tokens
    lengths_B: Tensor  # int64; tokens of the row, including observations
    group_B: Tensor  # int64; equal numbers share a baseline
    values_BT: Tensor | None = None  # a critic's forecast before each token; gae only


@dataclass(frozen=True, slots=True)
class Advantages:
    """Both [B, T]; 0 where the mask is off."""

    advantages_BT: Tensor
    returns_BT: Tensor | None  # the target of a critic; None without one


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the estimators; each reads those it needs."""

    scale_by_std: bool = True  # grpo: over the group's deviation
    gamma: float = 1.0  # discount per token
    lam: float = 1.0  # gae: 0 trusts the critic, 1 the rewards
    add: Callable[[Tensor], Tensor] | None = None  # sums a tensor over all ranks, for whitening; None: there is one


def advantages(
    name: str,
    scores: Scores,
    convention: Convention,
    *,
    scale_by_std: bool = True,
    gamma: float = 1.0,
    lam: float = 1.0,
    add: Callable[[Tensor], Tensor] | None = None,
) -> Advantages:
    """The advantage of each token by the estimator of that name.

    A group is on one rank; with `add`, which sums over ranks, whitening is over the tokens of all. Raises ValueError
    for a name that is not in `ESTIMATORS`, for gae without a critic's values, and for whitening fewer than two tokens
    if the convention treats that as an error.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"There is no estimator {name!r}. Accepted: {', '.join(ESTIMATORS)}")
    with torch.no_grad():
        return ESTIMATORS[name](scores, convention, settings=Settings(scale_by_std, gamma, lam, add))


def grpo(scores: Scores, convention: Convention, *, settings: Settings) -> Advantages:
    """An answer's reward minus its group's mean, over the group's sample deviation, on each of its tokens.

    Without `scale_by_std` only the mean is taken off (Dr. GRPO).
    Source: GRPO, outcome supervision (DeepSeekMath); verl core_algos.compute_grpo_outcome_advantage,
    TRL GRPOTrainer, ROLL agentic/utils.get_score_normalize_fn.
    Example: a group's rewards 1, 0, 0, 1 -> 0.866, -0.866, -0.866, 0.866
    """

    def scaled(rewards_G: Tensor) -> Tensor:
        centred_G = rewards_G - _mean(rewards_G, convention)
        if not settings.scale_by_std:
            return centred_G
        deviation = _deviation(rewards_G, convention)
        # Only if needed: one synchronization with the device per group takes most of this function's time.
        if convention.smallest_deviation >= 0 and bool(deviation <= convention.smallest_deviation):
            return torch.zeros_like(rewards_G)
        return centred_G / (deviation + convention.deviation_epsilon)

    return _per_answer(scaled, scores, convention, settings)


def rloo(scores: Scores, convention: Convention, *, settings: Settings) -> Advantages:
    """An answer's reward minus the mean reward of the others in its group.

    Source: Ahmadian et al. 2024; verl core_algos.compute_rloo_outcome_advantage, TRL RLOOTrainer.
    Example: a group's rewards 1, 0, 0, 1 -> 2/3, -2/3, -2/3, 2/3
    """

    def without_the_others(rewards_G: Tensor) -> Tensor:
        if convention.skips_nan_rewards:
            others = (~rewards_G.isnan()).sum() - 1
            return rewards_G - (rewards_G.nansum() - rewards_G) / others
        number = rewards_G.numel()
        if number == 1:
            return rewards_G
        return rewards_G * number / (number - 1) - rewards_G.mean() * number / (number - 1)

    return _per_answer(without_the_others, scores, convention, settings)


def opo(scores: Scores, convention: Convention, *, settings: Settings) -> Advantages:
    """An answer's reward minus the mean of its group weighted by the number of tokens.

    A group without any token has no baseline and gives its bare rewards on no token.
    Source: Hao et al. 2025, "On-policy RL with optimal reward baseline"; verl core_algos.compute_opo_outcome_advantage.
    Example: rewards 1, 0 of 1 and 3 tokens: baseline 1/4 -> 0.75, -0.25
    """
    num_tokens_B = scores.mask_BT.sum(dim=1)
    rewards_B = _answer_rewards(scores)
    result_B = rewards_B.clone()
    for rows in _groups(scores.group_B):
        if len(rows) > 1:
            weights_G = num_tokens_B[rows]
            result_B[rows] -= (weights_G * rewards_B[rows]).sum() / weights_G.sum()
        elif convention.group_of_one == "zero":
            result_B[rows] = 0.0
    return _spread(result_B, scores, convention, settings)


def reinforce(scores: Scores, convention: Convention, *, settings: Settings) -> Advantages:
    """The discounted sum of the rewards from each token on, nothing taken off.

    Source: Williams 1992; ROLL functionals.compute_reinforce_return.
    Example: rewards 0, 0, 1 with gamma 0.5 -> 0.25, 0.5, 1
    """
    returns_BT = _rewards_to_go(scores, convention, settings.gamma)
    return Advantages(returns_BT, returns_BT)


def reinforce_plus_plus(scores: Scores, convention: Convention, *, settings: Settings) -> Advantages:
    """The discounted sum of the rewards from each token on, whitened over all tokens of the step.

    Source: Hu 2025, "REINFORCE++"; verl core_algos.compute_reinforce_plus_plus_outcome_advantage.
    """
    returns_BT = _rewards_to_go(scores, convention, settings.gamma)
    return Advantages(whiten(returns_BT, scores.mask_BT, convention, add=settings.add), returns_BT)


def reinforce_plus_plus_baseline(scores: Scores, convention: Convention, *, settings: Settings) -> Advantages:
    """An answer's reward minus its group's mean, whitened over all tokens of the step.

    Source: Hu 2025; verl core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage.
    """

    def centred(rewards_G: Tensor) -> Tensor:
        return rewards_G - _mean(rewards_G, convention)

    per_answer = _per_answer(centred, scores, convention, settings)
    whitened_BT = whiten(per_answer.advantages_BT, scores.mask_BT, convention, add=settings.add)
    return Advantages(whitened_BT, None)


def gae(scores: Scores, convention: Convention, *, settings: Settings) -> Advantages:
    """Generalized advantage estimation: later rewards minus the critic's value, discounted by gamma and lambda.

    Whitened over all tokens if the convention does so; the returns (advantage plus value) never are.
    Source: Schulman et al. 2016, eq. 16; verl core_algos and ROLL functionals, compute_gae_advantage_return.
    Example: values 0.5, 0.5, rewards 0, 1, gamma = lambda = 1 -> returns 1, 1; advantages before whitening 0.5, 0.5
    """
    if scores.values_BT is None:
        raise ValueError("gae needs the values of a critic")
    mask_BT = scores.mask_BT
    values_BT = torch.where(mask_BT, scores.values_BT, 0.0)
    rewards_BT = torch.where(mask_BT, scores.token_rewards_BT, 0.0)
    passes_BT = mask_BT if convention.skips_observations else torch.ones_like(mask_BT)
    plain_BT = torch.zeros_like(values_BT)
    next_value_B, running_B = torch.zeros_like(values_BT[:, 0]), torch.zeros_like(values_BT[:, 0])
    for t in range(values_BT.shape[1] - 1, -1, -1):
        error_B = rewards_BT[:, t] + settings.gamma * next_value_B - values_BT[:, t]
        running_B = torch.where(passes_BT[:, t], error_B + settings.gamma * settings.lam * running_B, running_B)
        next_value_B = torch.where(passes_BT[:, t], values_BT[:, t], next_value_B)
        plain_BT[:, t] = running_B
    returns_BT = torch.where(mask_BT, plain_BT + values_BT, 0.0)
    plain_BT = torch.where(mask_BT, plain_BT, 0.0)
    if convention.whitens_gae:
        plain_BT = whiten(plain_BT, mask_BT, convention, add=settings.add)
    return Advantages(plain_BT, returns_BT)


ESTIMATORS: Mapping[str, Callable[..., Advantages]] = {
    "grpo": grpo,
    "rloo": rloo,
    "reinforce": reinforce,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "opo": opo,
    "gae": gae,
}


def whiten(
    values_BT: Tensor, mask_BT: Tensor, convention: Convention, *, add: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """The values shifted to mean 0 and scaled to deviation 1 over the mask (of all ranks, with `add`); 0 elsewhere.

    Sample variance, 1e-8 added to it. Fewer than two values: ValueError, or the values as they are, by convention.
    Source: verl torch_functional and ROLL functionals, masked_whiten; equal values keep their order of operations,
    because the tiny floor makes rounding visible there.
    """
    kept_BT = torch.where(mask_BT, values_BT, 0.0)
    sums = torch.stack([mask_BT.sum().to(kept_BT.dtype), kept_BT.sum()])
    number, total = (sums if add is None else add(sums)).unbind()
    if number < 2:
        if convention.whitening_of_few == "error":
            raise ValueError(f"whitening needs two tokens or more, and there are {int(number)}")
        return kept_BT
    centred_BT = torch.where(mask_BT, kept_BT - total / number, 0.0)
    squares = centred_BT.square().sum()
    variance = (squares if add is None else add(squares)) / number * (number / (number - 1))
    return centred_BT * torch.rsqrt(variance + 1e-8)


def _groups(group_B: Tensor) -> Iterator[Tensor]:
    """The row numbers of each group."""
    yield from torch.split(*_by_group(group_B))


def _by_group(group_B: Tensor) -> tuple[Tensor, list[int]]:
    """The row numbers group by group, and how many rows each group has."""
    _, counts = torch.unique(group_B, return_counts=True)
    return torch.argsort(group_B, stable=True), counts.tolist()


def _mean(rewards_G: Tensor, convention: Convention) -> Tensor:
    if len(rewards_G) == 1 and convention.group_of_one == "reward":
        return torch.zeros_like(rewards_G[0])
    return rewards_G.nanmean() if convention.skips_nan_rewards else rewards_G.mean()


def _deviation(rewards_G: Tensor, convention: Convention) -> Tensor:
    """With n-1; of a single reward 1 if the convention keeps its value, else 0."""
    if len(rewards_G) == 1:
        return torch.full_like(rewards_G[0], 1.0 if convention.group_of_one == "reward" else 0.0)
    if not convention.skips_nan_rewards:
        return rewards_G.std()
    number = (~rewards_G.isnan()).sum()
    variance = (rewards_G - rewards_G.nanmean()).square().nanmean() * (number / (number - 1))
    return variance.sqrt()


def _answer_rewards(scores: Scores) -> Tensor:
    """The sum of each row's rewards. A finite one outside the mask counts: a row of no token has its reward there."""
    counts_BT = scores.mask_BT | scores.token_rewards_BT.isfinite()
    return torch.where(counts_BT, scores.token_rewards_BT, 0.0).sum(dim=1)


def _per_answer(
    change: Callable[[Tensor], Tensor], scores: Scores, convention: Convention, settings: Settings
) -> Advantages:
    """Each group's rewards changed, and each result on all tokens of its answer.

    One group at a time: groups may differ in size, and the order of summation is that of the frameworks.
    """
    rewards_B = _answer_rewards(scores)
    order_B, sizes = _by_group(scores.group_B)
    is_zero_alone = convention.group_of_one == "zero"
    changed = [
        torch.zeros_like(rewards_G) if is_zero_alone and len(rewards_G) == 1 else change(rewards_G)
        for rewards_G in torch.split(rewards_B[order_B], sizes)
    ]
    result_B = torch.empty_like(rewards_B)
    result_B[order_B] = torch.cat(changed)
    if convention.skips_nan_rewards:
        result_B = result_B.nan_to_num(nan=0.0)
    return _spread(result_B, scores, convention, settings)


def _spread(result_B: Tensor, scores: Scores, convention: Convention, settings: Settings) -> Advantages:
    """An answer's number on each of its tokens, or on the last one and discounted from there."""
    if not convention.discounts_groups or settings.gamma == 1.0:
        return Advantages(torch.where(scores.mask_BT, result_B.unsqueeze(1), 0.0), None)
    positions_T = torch.arange(scores.mask_BT.shape[1], device=result_B.device)
    last_B1 = torch.where(scores.mask_BT, positions_T, -1).amax(dim=1, keepdim=True)
    placed_BT = torch.where(positions_T == last_B1, result_B.unsqueeze(1), 0.0)
    placed = Scores(placed_BT, scores.mask_BT, scores.lengths_B, scores.group_B)
    return Advantages(_rewards_to_go(placed, convention, settings.gamma), None)


def _rewards_to_go(scores: Scores, convention: Convention, gamma: float) -> Tensor:
    """From each token on the discounted rewards; 0 outside the mask."""
    mask_BT = scores.mask_BT
    rewards_BT = torch.where(mask_BT, scores.token_rewards_BT, 0.0)
    returns_BT = torch.zeros_like(rewards_BT)
    running_B = torch.zeros_like(rewards_BT[:, 0])
    for t in range(rewards_BT.shape[1] - 1, -1, -1):
        reached_B = rewards_BT[:, t] + gamma * running_B
        running_B = torch.where(mask_BT[:, t], reached_B, running_B) if convention.skips_observations else reached_B
        returns_BT[:, t] = torch.where(mask_BT[:, t], running_B, 0.0)
    return returns_BT
