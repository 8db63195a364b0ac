"""Importance weights for the difference between the sampling policy and the learning policy.

An engine computes with other kernels, in another precision, perhaps with older weights: its probabilities differ
slightly from the learner's for the same token. A weight learner / engine on each token's loss corrects this on
average, and a bound limits the effect of an unlikely token. Nothing here has a gradient.

`rejection_mask`, `off_policy_mask` and `entropy_mask` leave tokens out instead: the learner has moved too far from the
engine, or they are too certain.

`level` "token": one weight per token. "sequence": one per answer, over all its tokens. `bound` "truncate": a ratio
above `cap` (below `floor`) is clamped to it. "mask": it becomes 0, so the token has no loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from trainer.algorithms.conventions import Convention
    from trainer.algorithms.rejection import Rejection
    from trainer.sections import Algorithm
    from trainer.types import Batch


@dataclass(frozen=True, slots=True)
class Correction:
    """The weights and their inputs, both [B, T] and 0 where the mask is off."""

    weights_BT: Tensor
    ratios_BT: Tensor  # learner / engine, before the bound; for "sequence" equal on each token of a row


def correction(
    learner_BT: Tensor,
    rollout_BT: Tensor,
    mask_BT: Tensor,
    convention: Convention,
    *,
    level: str,
    cap: float,
    floor: float = 0.0,
    bound: str = "truncate",
) -> Correction:
    """The weight of each token, from log-probabilities of the same tokens by both policies.

    An engine's NaN inside the mask counts as the learner's own value: ratio 1.
    Raises ValueError for a level or a bound that does not exist.
    Source: truncated importance sampling, Yao et al. 2025; masked: IcePop, Ling team 2025;
    verl rollout_corr_helper.compute_rollout_correction_weights, TRL `vllm_importance_sampling_mode`,
    ROLL rlvr/actor_worker.
    Example: learner log 0.6, engine log 0.2: ratio 3; with cap 2 the weight is 2, or 0 when masked
    """
    if level not in ("token", "sequence") or bound not in ("truncate", "mask"):
        raise ValueError(f"level is token or sequence, bound truncate or mask, not {level!r} and {bound!r}")
    with torch.no_grad():
        difference_BT = torch.where(mask_BT & ~rollout_BT.isnan(), learner_BT - rollout_BT, 0.0)
        ratios_BT = _ratios(difference_BT, mask_BT, convention, level)
        beyond_BT = mask_BT & ((ratios_BT > cap) | (ratios_BT < floor))
        clamped_BT = ratios_BT.clamp(floor, cap) if bound == "truncate" else torch.where(beyond_BT, 0.0, ratios_BT)
        return Correction(torch.where(mask_BT, clamped_BT, 0.0), torch.where(mask_BT, ratios_BT, 0.0))


def importance_weights(
    algorithm: Algorithm, old_BT: Tensor, micro_batch: Batch, convention: Convention
) -> Correction | None:
    """The `correction` of the settings; None: there is none."""
    if algorithm.correction == "none":
        return None
    return correction(
        old_BT,
        micro_batch.rollout_logprobs_BT,
        micro_batch.mask_BT,
        convention,
        level=algorithm.correction,
        cap=algorithm.correction_cap,
        floor=algorithm.correction_floor,
        bound=algorithm.correction_bound,
    )


def _ratios(difference_BT: Tensor, mask_BT: Tensor, convention: Convention, level: str) -> Tensor:
    if level == "sequence":
        whole_B1 = difference_BT.sum(dim=1, keepdim=True)
        if convention.sequence_ratio == "mean":
            whole_B1 = whole_B1 / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
        difference_BT = whole_B1.expand_as(difference_BT)
    limit = convention.correction_log_ratio_limit
    return (difference_BT if limit is None else difference_BT.clamp(-limit, limit)).exp()


@torch.no_grad()
def rejection_mask(
    learner_BT: Tensor, rollout_BT: Tensor, mask_BT: Tensor, convention: Convention, rejections: Sequence[Rejection]
) -> Tensor:
    """The mask without the tokens, or whole answers, on which learner and engine are too far apart.

    With d = log learner - log engine: k1 = -d, k2 = d*d/2, k3 = exp(d) - d - 1; of each token, or summed, averaged or
    the largest over an answer. All rejections count. An engine's NaN inside the mask counts as the learner's own value.
    Source: verl rollout_corr_helper.compute_rollout_rejection_mask; ROLL train_infer_corrections, ratio filters.
    Example: token_k1 within 0.5 and 2: a token that the engine holds three times as likely as the learner is left out
    """
    difference_BT = torch.where(mask_BT & ~rollout_BT.isnan(), learner_BT - rollout_BT, 0.0)
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
    logprobs_BT: Tensor, rollout_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, limit: float
) -> Tensor:
    """Where a token learns: its advantage is 0 or more, or its answer is not too far from the learner.

    That is, the mean of log engine - log learner over the answer is at most `limit`, for the learner of this very
    update. An engine's NaN counts as the learner's own value.
    Source: DeepSeek-V3.2, off-policy sequence masking; TRL GRPOTrainer.get_off_policy_mask.
    """
    is_known_BT = mask_BT & ~rollout_BT.isnan()
    gap_B1 = torch.where(is_known_BT, rollout_BT - logprobs_BT, 0.0).sum(dim=1, keepdim=True)
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


def learns(
    algorithm: Algorithm, logprobs_BT: Tensor, entropy_BT: Tensor, micro_batch: Batch, advantages_BT: Tensor
) -> Tensor:
    """Where a token has a loss: on the mask, unless `off_policy_mask` or `entropy_share` leaves it out."""
    learns_BT = mask_BT = micro_batch.mask_BT
    if limit := algorithm.off_policy_mask:
        rollout_BT = micro_batch.rollout_logprobs_BT
        learns_BT = off_policy_mask(logprobs_BT, rollout_BT, advantages_BT, mask_BT, limit=limit)
    if algorithm.entropy_share < 1:
        learns_BT = learns_BT & entropy_mask(entropy_BT, mask_BT, share=algorithm.entropy_share)
    return learns_BT
