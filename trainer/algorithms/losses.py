"""The terms of the loss, and how they are averaged over tokens. `Learner.loss` adds them up: the policy loss, minus the
entropy bonus, plus the divergence from the reference.

Each is one number per token, [B, T]; `aggregate` makes them one number per optimizer step. Its denominators are counted
once, over everything that one optimizer step sees on all ranks, and passed in as `Totals`. Each micro batch returns its
share, and the sum of the shares (and of their gradients) does not depend on how the rows were split, ordered or padded,
unless a setting selects tokens of each forward pass (`entropy_share`, the losses `clip_cov` and `kl_cov`). A mean of
means would depend on it, because rows differ in length.

Values where the mask is off are replaced, never multiplied by 0: they may be NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from trainer.algorithms.conventions import Convention


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The options of the policy losses; each reads those it needs.

    `low` and `high` bound the ratio of new to old probability. `dual` is a second bound that keeps one token from
    dominating a batch; None: no second bound. The convention decides what it bounds: "constant" clamps the loss at
    -A dual where A < 0 (verl, above 1); "ratio" clamps the unclipped ratio at dual for both signs of A (TRL's delta,
    above 1 + high); "double" clamps the loss at -A (1 + 2 low) where A < 0 and ignores the number (ROLL).
    """

    low: float
    high: float
    dual: float | None = None
    tau_pos: float = 1.0  # sapo: how sharply the ratio's gate closes, for advantages above 0
    tau_neg: float = 1.05  # and for the others
    cov_ratio: float = 2e-4  # clip_cov, kl_cov: share of the tokens of a forward pass that are treated
    clip_cov_low: float = 1.0  # clip_cov: among those whose covariance is above this
    clip_cov_high: float = 5.0  # and below this
    kl_cov_coef: float = 0.1  # kl_cov: weight of the divergence from the old policy


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """All [B, T]."""

    losses_BT: Tensor  # 0 where the mask is off
    ratios_BT: Tensor  # new / old probability, per answer for gspo; detached; 1 where the mask is off
    is_clipped_BT: Tensor  # bool; the clipped term decides, so the token has no gradient (cispo: the bound was used)
    is_bounded_BT: Tensor  # bool; the second bound made the loss smaller (clip and gspo alone)
    log_ratios_BT: Tensor  # new to old probability of each token, limited as the ratio is; detached; 0 off the mask


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The inputs of a policy loss; tensors [B, T], 0 where the mask is off."""

    logprobs_BT: Tensor  # with gradient, which nothing else has
    old_BT: Tensor  # before this step's first update
    advantages_BT: Tensor
    mask_BT: Tensor
    settings: LossSettings
    convention: Convention

    def limited_log_ratios(self) -> Tensor:
        """Log of new to old probability, within the convention's limit."""
        log_ratios_BT, limit = self.logprobs_BT - self.old_BT, self.convention.log_ratio_limit
        return log_ratios_BT if limit is None else log_ratios_BT.clamp(-limit, limit)


Loss = Callable[[LossInputs], TokenLosses]


def policy_loss(
    loss: Loss,
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    settings: LossSettings,
    convention: Convention,
    weights_BT: Tensor | None = None,
) -> TokenLosses:
    """A loss per token (`clip`, or one of `policy_losses`), times the weight of a correction, if any.

    Example: clip with A = 1, ratio 1.5, high 0.2 -> -1.2, clipped
    """
    # Replaced before any computation, so that no NaN occurs forward or backward.
    inputs = LossInputs(
        torch.where(mask_BT, logprobs_BT, 0.0),
        torch.where(mask_BT, old_BT.detach(), 0.0),
        torch.where(mask_BT, advantages_BT.detach(), 0.0),
        mask_BT,
        settings,
        convention,
    )
    result = loss(inputs)
    if weights_BT is None:
        return result
    return replace(result, losses_BT=result.losses_BT * torch.where(mask_BT, weights_BT.detach(), 0.0))


def clip(inputs: LossInputs) -> TokenLosses:
    """The clipped ratio times the advantage.

    Source: Schulman et al. 2017, PPO, eq. 7; verl core_algos.compute_policy_loss_vanilla, TRL GRPOTrainer, ROLL
    base_worker.
    """
    log_ratios_BT = inputs.limited_log_ratios()
    return surrogate(inputs, log_ratios_BT.exp(), log_ratios_BT, inputs.convention.dual_clip)


def surrogate(inputs: LossInputs, ratios_BT: Tensor, log_ratios_BT: Tensor, dual_clip: str) -> TokenLosses:
    """The larger of the unclipped and the clipped term, with the second bound in the requested form."""
    advantages_BT, settings = inputs.advantages_BT, inputs.settings
    clipped_BT = -advantages_BT * ratios_BT.clamp(1 - settings.low, 1 + settings.high)
    free_BT = -advantages_BT * ratios_BT
    is_clipped_BT = inputs.mask_BT & (clipped_BT > free_BT)
    once_BT = losses_BT = torch.maximum(free_BT, clipped_BT)
    if settings.dual is not None and dual_clip == "ratio":
        losses_BT = torch.maximum(-advantages_BT * ratios_BT.clamp(max=settings.dual), clipped_BT)
    if settings.dual is not None and dual_clip in ("constant", "double"):
        bound = settings.dual if dual_clip == "constant" else 1 + 2 * settings.low
        bounded_BT = torch.minimum(losses_BT, -advantages_BT * bound)
        losses_BT = torch.where(advantages_BT < 0, bounded_BT, losses_BT)
    is_bounded_BT = once_BT > losses_BT
    return TokenLosses(losses_BT, ratios_BT.detach(), is_clipped_BT, is_bounded_BT, log_ratios_BT.detach())


MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")


@dataclass(frozen=True, slots=True)
class Totals:
    """The denominators of one optimizer step: counted over all its micro batches and all ranks."""

    num_tokens: Tensor | float  # where the mask is on
    num_rows: Tensor | float  # rows in the mean over rows; whether one without tokens counts is the convention's
    width: int  # tokens of the padded rows
    # What seq-mean-token-sum-norm divides a row by: the tokens that an answer may have. None: the width, which is that
    # only where rows are padded to it.
    scale: float | None = None
    norm_by_rows: bool = True  # seq-mean-token-sum-norm divides by num_rows too


def count(mask_BT: Tensor, convention: Convention, *, scale: float | None = None) -> Totals:
    """The totals of a step whose rows are all in this mask; on several ranks add up num_tokens and num_rows."""
    num_rows: Tensor | float = mask_BT.shape[0] if convention.counts_empty_rows else mask_BT.any(dim=1).sum()
    return Totals(mask_BT.sum(), num_rows, mask_BT.shape[1], scale, convention.norm_by_rows)


def masked_sum(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The sum where the mask is on; other values have no effect, and no gradient."""
    return torch.where(mask_BT, values_BT, 0.0).sum()


def masked_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean where the mask is on; 0 where it is on nowhere."""
    return masked_sum(values_BT, mask_BT) / mask_BT.sum().clamp(min=1)


def aggregate(losses_BT: Tensor, mask_BT: Tensor, mode: str, totals: Totals) -> Tensor:
    """This part's share of the step's loss, a scalar; the shares of all parts add up to the loss.

    token-mean: sum of all tokens over num_tokens (DAPO). seq-mean-token-sum: a row's sum, averaged over rows.
    seq-mean-token-sum-norm: that over `scale` (Dr. GRPO). seq-mean-token-mean: a row's mean, averaged (GRPO).
    Raises ValueError for any other mode. Source: verl core_algos.agg_loss; TRL names them dapo, -, dr_grpo, grpo.
    Example: rows [1, 3] and [5, -] -> token-mean 3, seq-mean-token-sum 4.5, over width 2.25, seq-mean-token-mean 3.5
    """
    masked_BT = torch.where(mask_BT, losses_BT, 0.0)
    if mode == "token-mean":
        return masked_BT.sum() / totals.num_tokens
    if mode == "seq-mean-token-sum":
        return masked_BT.sum() / totals.num_rows
    if mode == "seq-mean-token-sum-norm":
        share = masked_BT.sum() / (totals.width if totals.scale is None else totals.scale)
        return share / totals.num_rows if totals.norm_by_rows else share
    if mode == "seq-mean-token-mean":
        return (masked_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)).sum() / totals.num_rows
    raise ValueError(f"There is no aggregation {mode!r}. Accepted: {', '.join(MODES)}")


def _k3(difference_BT: Tensor, convention: Convention) -> Tensor:
    limit = convention.kl_log_ratio_limit
    if limit is not None:
        # exp stays far from overflow
        difference_BT = difference_BT.clamp(-limit, limit)
    value_BT = difference_BT.exp() - difference_BT - 1
    limit = convention.kl_value_limit
    return value_BT if limit is None else value_BT.clamp(-limit, limit)


def _straight_through(estimator: Callable[[Tensor, Convention], Tensor]) -> Callable[[Tensor, Convention], Tensor]:
    def value_with_gradient_of_k2(difference_BT: Tensor, convention: Convention) -> Tensor:
        squared_BT = 0.5 * difference_BT.square()
        return squared_BT - squared_BT.detach() + estimator(difference_BT, convention).detach()

    return value_with_gradient_of_k2


# Each takes d = reference - policy.
DIVERGENCES: Mapping[str, Callable[[Tensor, Convention], Tensor]] = {
    "low_var": _k3,
    "k1": lambda difference_BT, _: -difference_BT,
    "k2": lambda difference_BT, _: 0.5 * difference_BT.square(),
    "k3": _k3,
    "abs": lambda difference_BT, _: difference_BT.abs(),
    "k1+": _straight_through(lambda difference_BT, _: -difference_BT),
    "k3+": _straight_through(_k3),
}


def divergence(
    name: str,
    logprobs_BT: Tensor,
    reference_BT: Tensor,
    convention: Convention,
    *,
    mask_BT: Tensor | None = None,
    old_BT: Tensor | None = None,
) -> Tensor:
    """One estimate per token, [B, T], in nats; gradient flows into `logprobs_BT`.

    With d = log q - log p, p the policy and q the reference, both of the sampled token:

    - k1 = -d: unbiased, may be negative; as a loss its expected gradient is 0, so it belongs in the reward.
    - k2 = d*d/2: biased value, unbiased gradient.
    - k3 = exp(d) - d - 1, also called low_var: unbiased, never negative. Its clamps are the convention's; beyond them
      the gradient is 0.
    - k3+: the value of k3 with the gradient of k2, which is not clamped. k1+ likewise.
    - abs = |d|.

    Where the mask is off the result is 0. Without a mask every token counts, and a NaN anywhere reaches the gradient:
    pass it whenever a gradient is taken. With `old_BT`, a k3 in the loss is multiplied by the ratio of new to old
    probability if the convention says so (TRL, `use_bias_correction_kl`).
    Source: Schulman, "Approximating KL divergence"; straight-through form: verl core_algos.kl_penalty.
    Example: policy log-probability -1, reference -2: k1 1, k2 0.5, k3 0.368
    """
    difference_BT = reference_BT - logprobs_BT
    if mask_BT is not None:
        difference_BT = torch.where(mask_BT, difference_BT, 0.0)
    estimate_BT = DIVERGENCES[name](difference_BT, convention)
    if old_BT is not None and convention.kl_times_ratio and DIVERGENCES[name] is _k3:
        log_ratio_BT = logprobs_BT - old_BT
        if mask_BT is not None:
            log_ratio_BT = torch.where(mask_BT, log_ratio_BT, 0.0)
        estimate_BT = estimate_BT * log_ratio_BT.exp()
    return estimate_BT
