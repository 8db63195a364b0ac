"""Advantage estimators other than GRPO: other baselines, rewards per token, a critic's values.

`ESTIMATORS` lists all by name. Differences between frameworks are in `conventions`. Nothing here has a gradient.

Letters: B rows (answers), T tokens, G answers of one group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.algorithms.advantages import (
    Advantages,
    answer_rewards,
    by_group,
    group_mean,
    grpo,
    per_answer,
    rewards_to_go,
    spread_over_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from trainer.algorithms.advantages import Scores, Settings
    from trainer.algorithms.conventions import Convention


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

    return per_answer(without_the_others, scores, convention, settings)


def opo(scores: Scores, convention: Convention, *, settings: Settings) -> Advantages:
    """An answer's reward minus the mean of its group weighted by the number of tokens.

    A group without any token has no baseline and gives its bare rewards on no token.
    Source: Hao et al. 2025, "On-policy RL with optimal reward baseline"; verl core_algos.compute_opo_outcome_advantage.
    Example: rewards 1, 0 of 1 and 3 tokens: baseline 1/4 -> 0.75, -0.25
    """
    num_tokens_B = scores.mask_BT.sum(dim=1)
    rewards_B = answer_rewards(scores)
    result_B = rewards_B.clone()
    for rows in torch.split(*by_group(scores.group_B)):
        if len(rows) > 1:
            weights_G = num_tokens_B[rows]
            result_B[rows] -= (weights_G * rewards_B[rows]).sum() / weights_G.sum()
        elif convention.group_of_one == "zero":
            result_B[rows] = 0.0
    return spread_over_tokens(result_B, scores, convention, settings)


def reinforce(scores: Scores, convention: Convention, *, settings: Settings) -> Advantages:
    """The discounted sum of the rewards from each token on, nothing taken off.

    Source: Williams 1992; ROLL functionals.compute_reinforce_return.
    Example: rewards 0, 0, 1 with gamma 0.5 -> 0.25, 0.5, 1
    """
    returns_BT = rewards_to_go(scores, convention, settings.gamma)
    return Advantages(returns_BT, returns_BT)


def reinforce_plus_plus(scores: Scores, convention: Convention, *, settings: Settings) -> Advantages:
    """The discounted sum of the rewards from each token on, whitened over all tokens of the step.

    Source: Hu 2025, "REINFORCE++"; verl core_algos.compute_reinforce_plus_plus_outcome_advantage.
    """
    returns_BT = rewards_to_go(scores, convention, settings.gamma)
    return Advantages(whiten(returns_BT, scores.mask_BT, convention, add=settings.add), returns_BT)


def reinforce_plus_plus_baseline(scores: Scores, convention: Convention, *, settings: Settings) -> Advantages:
    """An answer's reward minus its group's mean, whitened over all tokens of the step.

    Source: Hu 2025; verl core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage.
    """

    def centred(rewards_G: Tensor) -> Tensor:
        return rewards_G - group_mean(rewards_G, convention)

    centred_BT = per_answer(centred, scores, convention, settings).advantages_BT
    whitened_BT = whiten(centred_BT, scores.mask_BT, convention, add=settings.add)
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
    masked_BT = torch.where(mask_BT, values_BT, 0.0)
    sums = torch.stack([mask_BT.sum().to(masked_BT.dtype), masked_BT.sum()])
    number, total = (sums if add is None else add(sums)).unbind()
    if number < 2:
        if convention.whitening_of_few == "error":
            raise ValueError(f"whitening needs two tokens or more, and there are {int(number)}")
        return masked_BT
    centred_BT = torch.where(mask_BT, masked_BT - total / number, 0.0)
    squares = centred_BT.square().sum()
    variance = (squares if add is None else add(squares)) / number * (number / (number - 1))
    return centred_BT * torch.rsqrt(variance + 1e-8)
