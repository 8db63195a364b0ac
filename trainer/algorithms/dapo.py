"""DAPO's two changes to the rewards: groups without a signal are left out, and overlong answers cost reward.

Source: Yu et al. 2025, DAPO; verl, recipe and reward manager of the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.algorithms.conventions import Convention


def overlong_penalty(lengths_B: Tensor, *, limit: int, buffer: int, factor: float) -> Tensor:
    """The penalty added to each answer's reward: 0 up to limit - buffer tokens, then falling to -factor at the limit.

    Shapes: lengths_B, tokens per answer -> [B], float32. A buffer of 0 costs nothing at any length.
    Source: verl DAPO reward manager, min(-(length - (limit - buffer)) / buffer * factor, 0).
    Example: limit 10, buffer 4, factor 1: lengths 6, 7, 10 -> 0, -0.25, -1
    """
    over_B = (lengths_B - (limit - buffer)).float()
    if buffer <= 0:
        return over_B * 0
    return (-over_B / buffer * factor).clamp(max=0.0)


def has_signal(rewards_PG: Tensor, convention: Convention) -> Tensor:
    """Whether a group has a signal, [P] bool: its rewards are not all equal.

    A group of one has a signal if the convention keeps its bare reward. A group with a NaN has one only if the
    convention leaves NaN out and the rest differs.
    """
    if rewards_PG.shape[1] == 1:
        alone_P = ~rewards_PG[:, 0].isnan()
        return alone_P if convention.group_of_one == "reward" else alone_P & False
    if not convention.skips_nan_rewards:
        return rewards_PG.amax(dim=1) > rewards_PG.amin(dim=1)
    missing_PG = rewards_PG.isnan()
    highest_P = rewards_PG.masked_fill(missing_PG, -float("inf")).amax(dim=1)
    return highest_P > rewards_PG.masked_fill(missing_PG, float("inf")).amin(dim=1)
