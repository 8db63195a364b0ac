"""Tokens that do not learn: the learner has moved too far from the sampler, or they are too certain.

Source of each in its docstring. Nothing here has a gradient. Letters: B rows (answers), T tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from trainer.algorithms.conventions import Convention
    from trainer.algorithms.rejection import Rejection


@torch.no_grad()
def rejection_mask(
    learner_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor, convention: Convention, rejections: Sequence[Rejection]
) -> Tensor:
    """The mask without the tokens, or whole answers, on which learner and sampler are too far apart.

    With d = log learner - log sampler: k1 = -d, k2 = d*d/2, k3 = exp(d) - d - 1; of each token, or summed, averaged or
    the largest over an answer. All rejections count. A sampler's NaN inside the mask counts as the learner's own value.
    Source: verl rollout_corr_helper.compute_rollout_rejection_mask; ROLL train_infer_corrections, ratio filters.
    Example: token_k1 within 0.5 and 2: a token that the sampler holds three times as likely as the learner is left out
    """
    difference_BT = torch.where(mask_BT & ~sampler_BT.isnan(), learner_BT - sampler_BT, 0.0)
    if (limit := convention.correction_log_ratio_limit) is not None:
        difference_BT = difference_BT.clamp(-limit, limit)
    divergences = {
        "k1": -difference_BT,
        "k2": difference_BT.square() / 2,
        "k3": difference_BT.exp() - difference_BT - 1,
    }
    num_tokens_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    remaining_BT = mask_BT
    for each in rejections:
        value_BT = torch.where(mask_BT, divergences[each.divergence], 0.0)
        if each.level in ("seq_sum", "seq_mean"):
            value_BT = value_BT.sum(dim=1, keepdim=True)
        if each.level == "seq_mean":
            value_BT = value_BT / num_tokens_B1
        if each.level == "seq_max":
            value_BT = value_BT.amax(dim=1, keepdim=True)
        remaining_BT = remaining_BT & (value_BT >= each.low) & (value_BT <= each.high)
    return remaining_BT


@torch.no_grad()
def off_policy_mask(
    logprobs_BT: Tensor, sampler_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, limit: float
) -> Tensor:
    """Where a token learns: its advantage is 0 or more, or its answer is not too far from the learner.

    That is, the mean of log sampler - log learner over the answer is at most `limit`, for the learner of this very
    update. A sampler's NaN counts as the learner's own value.
    Source: DeepSeek-V3.2, off-policy sequence masking; TRL GRPOTrainer.get_off_policy_mask.
    """
    is_known_BT = mask_BT & ~sampler_BT.isnan()
    gap_B1 = torch.where(is_known_BT, sampler_BT - logprobs_BT, 0.0).sum(dim=1, keepdim=True)
    mean_B1 = gap_B1 / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return mask_BT & ((advantages_BT >= 0) | (mean_B1 <= limit))


@torch.no_grad()
def entropy_mask(entropy_BT: Tensor, mask_BT: Tensor, *, share: float) -> Tensor:
    """Where a token learns: it is among the `share` of the tokens of a forward pass with the highest entropy.

    Source: Wang et al. 2025, "Beyond the 80/20 rule"; TRL GRPOTrainer.get_high_entropy_mask, over all ranks.
    Example: entropies 0.1, 0.2, 0.3, 0.4, 0.5 with share 0.4 -> the last two
    """
    if not bool(mask_BT.any()):
        return mask_BT
    entropy_BT = entropy_BT.float()
    return mask_BT & (entropy_BT >= torch.quantile(entropy_BT[mask_BT], 1 - share))
