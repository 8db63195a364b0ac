"""Group-relative advantages, with the details in which the frameworks disagree named by a convention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Convention:
    """What a framework does where the paper is silent. All three divide the squared deviations by n-1."""

    name: str
    epsilon: float  # added to the deviation
    group_of_one: str  # "reward": the bare reward; "zero": no signal
    smallest_deviation: float  # a group whose deviation is not above this gives 0


CONVENTIONS: Mapping[str, Convention] = {
    # core_algos.compute_grpo_outcome_advantage: a single answer has mean 0 and deviation 1
    "verl": Convention("verl", 1e-6, "reward", -1.0),
    # GRPOTrainer, scale_rewards="group"
    "trl": Convention("trl", 1e-4, "zero", -1.0),
    # agentic pipeline, grouping by traj_group_id
    "roll": Convention("roll", 1e-6, "zero", 1e-6),
}


def group_advantages(rewards_PG: Tensor, convention: Convention, *, scale_by_std: bool = True) -> Tensor:
    """Each reward minus its group's mean, over the group's sample deviation.

    Shapes: rewards_PG [prompts, rollouts per prompt] -> the same. Without `scale_by_std` only the mean is taken off.
    Source: GRPO, outcome supervision (DeepSeekMath); without the deviation: Dr. GRPO.
    Example: [[1, 0, 0, 1]] -> [[0.866, -0.866, -0.866, 0.866]]
    """
    if rewards_PG.shape[1] == 1:
        return rewards_PG.clone() if convention.group_of_one == "reward" else torch.zeros_like(rewards_PG)
    centred_PG = rewards_PG - rewards_PG.mean(dim=1, keepdim=True)
    if not scale_by_std:
        return centred_PG
    # From the centred values: rewards that are large and close together keep their spread in float32.
    variance_P1 = centred_PG.square().sum(dim=1, keepdim=True) / (rewards_PG.shape[1] - 1)
    deviation_P1 = variance_P1.sqrt()
    scaled_PG = centred_PG / (deviation_P1 + convention.epsilon)
    return torch.where(deviation_P1 > convention.smallest_deviation, scaled_PG, torch.zeros_like(scaled_PG))
