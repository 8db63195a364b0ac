"""Advantage estimators other than GRPO: other baselines, rewards per token, a critic's values.

`trainer.registry` lists all by name. An estimator of your own, `estimator=FILE.py:NAME`, is a function like these.
Differences between frameworks are in `conventions`. Nothing here has a gradient.

Letters: B rows (answers), T tokens, G answers of one group, K components of a reward.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trainer.algorithms.advantages import (
    Advantages,
    answer_rewards,
    by_group,
    deviation_of,
    group_mean,
    grpo,
    per_answer,
    rewards_to_go,
    spread_over_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trainer.algorithms.advantages import EstimatorInputs, Settings
    from trainer.algorithms.conventions import Convention
    from trainer.sections import Algorithm


def rloo(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
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

    return per_answer(without_the_others, inputs, convention, settings)


def opo(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """An answer's reward minus the mean of its group weighted by the number of tokens.

    A group without any token has no baseline and gives its bare rewards on no token.
    Source: Hao et al. 2025, "On-policy RL with optimal reward baseline"; verl core_algos.compute_opo_outcome_advantage.
    Example: rewards 1, 0 of 1 and 3 tokens: baseline 1/4 -> 0.75, -0.25
    """
    num_tokens_B = inputs.mask_BT.sum(dim=1)
    rewards_B = answer_rewards(inputs)
    result_B = rewards_B.clone()
    for rows in torch.split(*by_group(inputs.group_B)):
        if len(rows) > 1:
            weights_G = num_tokens_B[rows]
            result_B[rows] -= (weights_G * rewards_B[rows]).sum() / weights_G.sum()
        elif convention.group_of_one == "zero":
            result_B[rows] = 0.0
    return spread_over_tokens(result_B, inputs, convention, settings)


def reinforce(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """The discounted sum of the rewards from each token on, nothing taken off.

    Source: Williams 1992; ROLL functionals.compute_reinforce_return.
    Example: rewards 0, 0, 1 with gamma 0.5 -> 0.25, 0.5, 1
    """
    returns_BT = rewards_to_go(inputs, convention, settings.gamma)
    return Advantages(returns_BT, returns_BT)


def reinforce_plus_plus(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """The discounted sum of the rewards from each token on, whitened over all tokens of the step.

    Source: Hu 2025, "REINFORCE++"; verl core_algos.compute_reinforce_plus_plus_outcome_advantage.
    """
    returns_BT = rewards_to_go(inputs, convention, settings.gamma)
    return Advantages(whiten(returns_BT, inputs.mask_BT, convention, add=settings.add), returns_BT)


def reinforce_plus_plus_baseline(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """An answer's reward minus its group's mean, whitened over all tokens of the step.

    Source: Hu 2025; verl core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage.
    """

    def centred(rewards_G: Tensor) -> Tensor:
        return rewards_G - group_mean(rewards_G, convention)

    centred_BT = per_answer(centred, inputs, convention, settings).advantages_BT
    whitened_BT = whiten(centred_BT, inputs.mask_BT, convention, add=settings.add)
    return Advantages(whitened_BT, None)


def gae(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """Generalized advantage estimation: later rewards minus the critic's value, discounted by gamma and lambda.

    Whitened over all tokens if the convention does so; the returns (advantage plus value) never are.
    Source: Schulman et al. 2016, eq. 16; verl core_algos and ROLL functionals, compute_gae_advantage_return.
    Example: values 0.5, 0.5, rewards 0, 1, gamma = lambda = 1 -> returns 1, 1; advantages before whitening 0.5, 0.5
    """
    if inputs.values_BT is None:
        raise ValueError("gae needs the values of a critic")
    mask_BT = inputs.mask_BT
    values_BT = torch.where(mask_BT, inputs.values_BT, 0.0)
    rewards_BT = torch.where(mask_BT, inputs.token_rewards_BT, 0.0)
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


def maxrl(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """An answer's reward minus its group's mean, over that mean: rare successes count more.

    A group whose mean is not above 0 gives 0.
    Source: Tajwar et al. 2026, "Maximum likelihood reinforcement learning" (arXiv 2602.02710); SkyRL
    ppo_utils.compute_maxrl_advantage.
    Example: a group's rewards 1, 0, 0, 0 -> 3, -1, -1, -1
    """

    def over_mean(rewards_G: Tensor) -> Tensor:
        if len(rewards_G) == 1:
            return rewards_G
        mean = group_mean(rewards_G, convention)
        return torch.where(mean > 0, (rewards_G - mean) / (mean + convention.deviation_epsilon), 0.0)

    return per_answer(over_mean, inputs, convention, settings)


def grpo_passk(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """What the best answer of a group has over the second best, over the group's deviation; the others get 0.

    Source: Tang et al. 2025 (arXiv 2503.19595); verl core_algos.compute_grpo_passk_outcome_advantage, which refuses a
    group of one.
    Example: a group's rewards 1, 0.5, 0 -> 1, 0, 0
    """

    def best_alone(rewards_G: Tensor) -> Tensor:
        if len(rewards_G) == 1:
            return torch.zeros_like(rewards_G)
        known_G = rewards_G.nan_to_num(nan=-torch.inf) if convention.skips_nan_rewards else rewards_G
        (best, second), (place, _) = (each.unbind() for each in torch.topk(known_G, 2))
        lead = torch.where(second.isinf(), 0.0, best - second)
        if settings.scale_by_std:
            lead = lead / (deviation_of(rewards_G, convention) + convention.deviation_epsilon)
        return torch.where(torch.arange(len(rewards_G), device=lead.device) == place, lead, 0.0)

    return per_answer(best_alone, inputs, convention, settings)


def gpg(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """An answer's reward minus its group's mean, times all answers of the step over those with a reward.

    Source: Chu et al. 2025, GPG (arXiv 2504.02546); verl core_algos.compute_gpg_outcome_advantage with f_norm 1.
    Example: a step of two groups, rewards 1, 0 and 0, 0: times 4 -> 2, -2, 0, 0
    """
    rewards_B = answer_rewards(inputs)
    counts = torch.stack((rewards_B.new_tensor(len(rewards_B)), rewards_B.count_nonzero().to(rewards_B)))
    number, number_rewarded = counts if settings.add is None else settings.add(counts)
    times = number / number_rewarded.clamp(min=1)

    def centred(rewards_G: Tensor) -> Tensor:
        return (rewards_G - group_mean(rewards_G, convention)).mul(times)

    return per_answer(centred, inputs, convention, settings)


def remax(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """The sum of the rewards from each token on, minus the reward of a greedy answer to the same prompt.

    Source: Li et al. 2023, ReMax (arXiv 2310.10505); verl core_algos.compute_remax_outcome_advantage.
    Example: rewards 0, 0, 1 and a greedy answer's 0.25 -> 0.75, 0.75, 0.75
    """
    if inputs.baselines_B is None:
        raise ValueError("remax needs the reward of a greedy answer to each prompt")
    returns_BT = rewards_to_go(inputs, convention, settings.gamma)
    advantages_BT = torch.where(inputs.mask_BT, returns_BT - inputs.baselines_B.unsqueeze(1), 0.0)
    return Advantages(advantages_BT, returns_BT)


def gdpo(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """The weighted sum of GRPO's advantages of each component of the reward, whitened over all tokens of the step.

    Source: GDPO (arXiv 2601.05242); verl core_algos.compute_gdpo_outcome_advantage. (TRL's
    `multi_objective_aggregation="normalize_then_sum"` whitens over answers.)
    """
    if inputs.parts_BK is None:
        raise ValueError("gdpo needs the components of each reward: reward_parts names them")
    weights = settings.part_weights or (1.0,) * inputs.parts_BK.shape[1]
    summed_BT = torch.zeros_like(inputs.token_rewards_BT)
    for weight, part_B in zip(weights, inputs.parts_BK.unbind(1), strict=True):
        of_part = replace(inputs, token_rewards_BT=_on_first(part_B, inputs.mask_BT))
        summed_BT = summed_BT + weight * grpo(of_part, convention, settings=settings).advantages_BT
    return Advantages(whiten(summed_BT, inputs.mask_BT, convention, add=settings.add), None)


def _on_first(rewards_B: Tensor, mask_BT: Tensor) -> Tensor:
    """The rewards of complete answers on their first place [B, T]."""
    empty_BT = rewards_B.new_zeros(mask_BT.shape)
    return torch.cat((rewards_B.unsqueeze(1), empty_BT[:, 1:]), dim=1)


def optimal_token_baseline(inputs: EstimatorInputs, convention: Convention, *, settings: Settings) -> Advantages:
    """The sum of the rewards from each token on, minus its mean over the group at the same token of the model.

    An answer counts in that mean by the gradient's expected square up to the token: the sum of 1 - 2 p + sum of all p
    squared. Alone in its group, or beyond the end of all others, an answer has no baseline.
    Source: verl core_algos.compute_optimal_token_baseline_advantage, and its multi-turn form, which counts the model's
    tokens as here; without importance weights.
    """
    if inputs.logprobs_BT is None or inputs.sum_pi_squared_BT is None:
        raise ValueError("optimal_token_baseline needs the probabilities of the tokens and their squares' sum")
    mask_BT = inputs.mask_BT
    returns_BT = rewards_to_go(inputs, convention, 1.0)
    of_gradient_BT = torch.where(mask_BT, 1 - 2 * inputs.logprobs_BT.exp() + inputs.sum_pi_squared_BT, 0.0)
    energy_BT = torch.where(mask_BT, of_gradient_BT.cumsum(dim=1), 0.0)
    # The model's own tokens first: the baseline is taken at the same number of them, whatever stands between.
    order_BT = torch.argsort((~mask_BT).int(), dim=1, stable=True)
    lengths_B = mask_BT.sum(dim=1)
    own_returns_BT, own_energy_BT = returns_BT.gather(1, order_BT), energy_BT.gather(1, order_BT)
    baselines_BT = torch.zeros_like(returns_BT)
    for rows in torch.split(*by_group(inputs.group_B)):
        rows = rows[lengths_B[rows] > 0]
        if len(rows) < 2:
            continue
        weights_GT = own_energy_BT[rows]
        mean_T = (own_returns_BT[rows] * weights_GT).sum(dim=0) / (weights_GT.sum(dim=0) + 1e-8)
        second = lengths_B[rows].topk(2).values[1]
        places_T = torch.arange(len(mean_T), device=mean_T.device)
        baselines_BT[rows] = torch.where(places_T < second, mean_T, 0.0)
    baselines_BT = torch.zeros_like(baselines_BT).scatter(1, order_BT, baselines_BT)
    return Advantages(torch.where(mask_BT, returns_BT - baselines_BT, 0.0), returns_BT)


def whitened_and_clipped(
    advantages: Advantages,
    mask_BT: Tensor,
    convention: Convention,
    *,
    is_whitened: bool,
    limit: float,
    add: Callable[[Tensor], Tensor] | None = None,
) -> Advantages:
    """The advantages whitened over all tokens of the step, then held within +-limit (0: no limit).

    Source: ROLL functionals.compute_advantage, `whiten_advantages` and `advantage_clip`.
    """
    advantages_BT = advantages.advantages_BT
    if is_whitened:
        advantages_BT = whiten(advantages_BT, mask_BT, convention, add=add)
    if limit:
        advantages_BT = advantages_BT.clamp(-limit, limit)
    return replace(advantages, advantages_BT=advantages_BT)


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


def next_kl_coef(
    algorithm: Algorithm, coef: float, kl_BT: Tensor, mask_BT: Tensor, *, add: Callable[[Tensor], Tensor]
) -> float:
    """The coefficient of the step after one with these divergences from the reference, by the adaptive controller."""
    sums = torch.stack(
        [kl_BT.sum().double(), mask_BT.sum().double(), kl_BT.new_tensor(len(kl_BT), dtype=torch.float64)]
    )
    kl, num_tokens, num_rows = add(sums).tolist()
    mean, target, horizon = kl / max(num_tokens, 1.0), algorithm.kl_target, algorithm.kl_horizon
    return adapted_kl_coef(coef, mean, round(num_rows), target=target, horizon=horizon)


def adapted_kl_coef(coef: float, kl: float, rows: int, *, target: float, horizon: int) -> float:
    """The divergence's coefficient after a step: larger if the divergence is above its target, smaller if below.

    Multiplied by 1 + error * rows / horizon, the relative error held in +-0.2. `target` in nats per token; `horizon`
    in rows, after which a constant error of 20 % has moved the coefficient by about a factor of 1.2.
    Source: Ziegler et al., "Fine-tuning language models from human preferences", section 2.2.
    Example: coefficient 0.1, target 1, horizon 100: a divergence of 5 over 50 rows makes it 0.11
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coef * (1 + error * rows / horizon)
