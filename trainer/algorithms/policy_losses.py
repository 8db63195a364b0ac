"""What settings change in the policy loss: losses other than the clipped one of `losses`, and corrections.

`losses.policy_loss` calls the losses, which `trainer.registry` lists by name. A loss of your own, `loss=FILE.py:NAME`,
is a function like these.

An engine computes with other kernels, in another precision, perhaps with older weights: its probabilities differ
slightly from the learner's for the same token. A weight learner / engine on each token's loss corrects this on
average, and a bound limits the effect of an unlikely token. `rejection_mask`, `off_policy_mask` and `entropy_mask`
leave tokens out instead: the learner has moved too far from the engine, or they are too certain. Weights and masks have
no gradient.

`level` "token": one weight per token. "sequence": one per answer, over all its tokens. `bound` "truncate": a ratio
above `cap` (below `floor`) is clamped to it. "mask": it becomes 0, so the token has no loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainer.algorithms.losses import TokenLosses, masked_mean, surrogate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from trainer.algorithms.conventions import Convention, Rejection
    from trainer.algorithms.losses import LossInputs
    from trainer.sections import Algorithm
    from trainer.types import Batch


def gspo(inputs: LossInputs) -> TokenLosses:
    """The clipped loss with one ratio per answer, the geometric mean of its tokens' ratios.

    Source: Zheng et al. 2025, GSPO; verl core_algos.compute_policy_loss_gspo, TRL `importance_sampling_level`,
    ROLL rlvr/actor_worker.
    """
    num_tokens_B1 = inputs.mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    log_ratios_BT = inputs.logprobs_BT - inputs.old_BT
    log_ratio_BT = (log_ratios_BT.sum(dim=1, keepdim=True) / num_tokens_B1).expand_as(inputs.logprobs_BT)
    if inputs.convention.gspo_ratio == "token":
        log_ratio_BT = inputs.logprobs_BT - inputs.logprobs_BT.detach() + log_ratio_BT.detach()
    if inputs.convention.gspo_log_ratio_limit is not None:
        log_ratio_BT = log_ratio_BT.clamp(max=inputs.convention.gspo_log_ratio_limit)
    ratios_BT = torch.where(inputs.mask_BT, log_ratio_BT, 0.0).exp()
    # verl's gspo knows no second bound
    dual_clip = "none" if inputs.convention.dual_clip == "constant" else inputs.convention.dual_clip
    return surrogate(inputs, ratios_BT, log_ratios_BT, dual_clip)


def gmpo(inputs: LossInputs) -> TokenLosses:
    """The answer's advantage times the geometric mean of its tokens' ratios, each clipped; on each of its tokens.

    Averaged over answers whatever the aggregation. verl counts answers without tokens in that mean, and weighs an
    answer by the geometric mean of a correction's weights; here it is their mean.
    Source: Zhao et al. 2025, GMPO; verl core_algos.compute_policy_loss_geo_mean.
    Example: A = 1, ratios 2 and 1/2, low = high = 0.4 -> log ratios 0.4 and -0.69, ratio 0.864, loss -0.864
    """
    log_ratios_BT, sign_BT = inputs.logprobs_BT - inputs.old_BT, inputs.advantages_BT.sign()
    clamped_BT = log_ratios_BT.clamp(-inputs.settings.low, inputs.settings.high)
    nearer_BT = sign_BT * torch.minimum(sign_BT * log_ratios_BT, sign_BT * clamped_BT)
    num_tokens_B1 = inputs.mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    ratios_BT = (nearer_BT.sum(dim=1, keepdim=True) / num_tokens_B1).exp().expand_as(inputs.logprobs_BT)
    advantage_B1 = inputs.advantages_BT.sum(dim=1, keepdim=True) / num_tokens_B1
    losses_BT = torch.where(inputs.mask_BT, -advantage_B1 * ratios_BT, 0.0)
    is_clipped_BT = inputs.mask_BT & (nearer_BT != log_ratios_BT)
    return _token_losses(losses_BT, torch.where(inputs.mask_BT, ratios_BT, 1.0), log_ratios_BT, is_clipped_BT)


def cispo(inputs: LossInputs) -> TokenLosses:
    """The log-probability times the advantage times the clipped ratio, which has no gradient.

    Source: MiniMax 2025, CISPO; verl core_algos.compute_policy_loss_cispo, TRL GRPOTrainer.
    """
    log_ratios_BT = inputs.limited_log_ratios().detach()
    ratios_BT = log_ratios_BT.exp()
    around_one = inputs.convention.cispo_bounds == "around-one"
    low, high = (1 - inputs.settings.low, 1 + inputs.settings.high) if around_one else (None, inputs.settings.high)
    clamped_BT = ratios_BT.clamp(low, high)
    losses_BT = -clamped_BT * inputs.advantages_BT * inputs.logprobs_BT
    return _token_losses(losses_BT, ratios_BT, log_ratios_BT, inputs.mask_BT & (clamped_BT != ratios_BT))


def sapo(inputs: LossInputs) -> TokenLosses:
    """The advantage times a smooth gate of the ratio, 4 / tau * sigmoid(tau (ratio - 1)), in the place of a clip.

    Averaged over answers, and in them over tokens, whatever the aggregation.
    Source: Gao et al. 2025, SAPO; verl core_algos.compute_policy_loss_sapo, TRL GRPOTrainer.
    Example: ratio 1, tau 1: gate 2, slope 1
    """
    log_ratios_BT = inputs.limited_log_ratios()
    ratios_BT = log_ratios_BT.exp()
    taus_BT = torch.full_like(ratios_BT, inputs.settings.tau_neg)
    taus_BT = taus_BT.masked_fill(inputs.advantages_BT > 0, inputs.settings.tau_pos)
    gates_BT = torch.sigmoid(taus_BT * (ratios_BT - 1)) * (4 / taus_BT)
    return _token_losses(-gates_BT * inputs.advantages_BT, ratios_BT, log_ratios_BT)


def plain(inputs: LossInputs) -> TokenLosses:
    """The log-probability times the advantage: REINFORCE; `gpg` is the same.

    Source: Williams 1992; Chu et al. 2025, GPG; verl core_algos.compute_policy_loss_reinforce and
    compute_policy_loss_gpg.
    """
    log_ratios_BT = inputs.limited_log_ratios()
    return _token_losses(-inputs.advantages_BT * inputs.logprobs_BT, log_ratios_BT.exp(), log_ratios_BT)


def clip_cov(inputs: LossInputs) -> TokenLosses:
    """The clipped loss, without some tokens whose log-probability and advantage vary together.

    `cov_ratio` of the tokens of a forward pass, one at least, among those with a covariance between `clip_cov_low` and
    `clip_cov_high`. Drawn with a fixed seed, so that a resumed run draws the same; verl draws from torch's global
    generator. `is_clipped_BT` are the tokens left out.
    Source: Cui et al. 2025, "The entropy mechanism of RL"; verl core_algos.compute_policy_loss_clip_cov.
    """
    log_ratios_BT = inputs.logprobs_BT - inputs.old_BT
    result = surrogate(inputs, log_ratios_BT.exp(), log_ratios_BT, "none")
    with torch.no_grad():
        cov_BT = (inputs.advantages_BT - masked_mean(inputs.advantages_BT, inputs.mask_BT)) * (
            inputs.logprobs_BT - masked_mean(inputs.logprobs_BT, inputs.mask_BT)
        )
        is_between_BT = (cov_BT > inputs.settings.clip_cov_low) & (cov_BT < inputs.settings.clip_cov_high)
        places = (is_between_BT & inputs.mask_BT & ~result.is_clipped_BT).flatten().nonzero().squeeze(1)
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(0)).to(places.device)
        count = max(int(inputs.settings.cov_ratio * inputs.mask_BT.sum().item()), 1)
        is_left_out_BT = torch.zeros_like(inputs.mask_BT)
        is_left_out_BT.view(-1)[places[order[:count]]] = True
    losses_BT = torch.where(is_left_out_BT, 0.0, result.losses_BT)
    return _token_losses(losses_BT, result.ratios_BT, log_ratios_BT, is_left_out_BT)


def kl_cov(inputs: LossInputs) -> TokenLosses:
    """The ratio times the advantage; where both vary together most, with a penalty on the log ratio.

    `cov_ratio` of the tokens of a forward pass, one at least. Nothing is clipped.
    Source: Cui et al. 2025, "The entropy mechanism of RL"; verl core_algos.compute_policy_loss_kl_cov.
    """
    log_ratios_BT = inputs.logprobs_BT - inputs.old_BT
    ratios_BT = log_ratios_BT.exp()
    losses_BT = -inputs.advantages_BT * ratios_BT
    with torch.no_grad():
        places = inputs.mask_BT.flatten().nonzero().squeeze(1)
        advantages_N, logprobs_N = inputs.advantages_BT.flatten()[places], inputs.logprobs_BT.flatten()[places]
        cov_N = (advantages_N - advantages_N.mean()) * (logprobs_N - logprobs_N.mean())
        count = min(max(1, int(len(places) * inputs.settings.cov_ratio)), len(places))
        is_penalised_BT = torch.zeros_like(inputs.mask_BT)
        is_penalised_BT.view(-1)[places[torch.topk(cov_N, count).indices]] = True
    penalty_BT = torch.where(is_penalised_BT, inputs.settings.kl_cov_coef * log_ratios_BT.abs(), 0.0)
    return _token_losses(losses_BT + penalty_BT, ratios_BT, log_ratios_BT)


def dppo_tv(inputs: LossInputs) -> TokenLosses:
    """The log-probability times the advantage times the ratio, where the token's probability has not moved too far.

    Too far: by more than `high` up where the advantage is above 0, by more than `low` down elsewhere. The ratio has no
    gradient and is at most `dual`.
    Source: DPPO (arXiv 2602.04879), binary total variation; verl core_algos.compute_policy_loss_dppo_tv.
    """
    moved_BT = (inputs.logprobs_BT.exp() - inputs.old_BT.exp()).detach()
    is_near_BT = torch.where(
        inputs.advantages_BT > 0, moved_BT <= inputs.settings.high, moved_BT >= -inputs.settings.low
    )
    return _near_alone(inputs, is_near_BT)


def dppo_kl(inputs: LossInputs) -> TokenLosses:
    """As `dppo_tv`, with a divergence for how far: that between the token and all others, old and new.

    At most `high` where the advantage is above 0, `low` elsewhere; a move against the advantage is never too far.
    Source: DPPO (arXiv 2602.04879), binary KL; verl core_algos.compute_policy_loss_dppo_kl.
    """
    with torch.no_grad():
        new, old = inputs.logprobs_BT.exp(), inputs.old_BT.exp()
        kl_BT = old * (inputs.old_BT - inputs.logprobs_BT) + (1 - old) * torch.log((1 - old + 1e-8) / (1 - new + 1e-8))
        is_good_BT = inputs.advantages_BT > 0
        is_near_BT = torch.where(is_good_BT, kl_BT <= inputs.settings.high, kl_BT <= inputs.settings.low)
        is_near_BT |= torch.where(is_good_BT, new <= old, new >= old)
    return _near_alone(inputs, is_near_BT)


def _near_alone(inputs: LossInputs, is_near_BT: Tensor) -> TokenLosses:
    log_ratios_BT = inputs.limited_log_ratios().detach()
    ratios_BT = log_ratios_BT.exp()
    truncated_BT = ratios_BT if inputs.settings.dual is None else ratios_BT.clamp(max=inputs.settings.dual)
    losses_BT = torch.where(is_near_BT, -inputs.advantages_BT * truncated_BT * inputs.logprobs_BT, 0.0)
    is_bounded_BT = inputs.mask_BT & is_near_BT & (truncated_BT < ratios_BT)
    return TokenLosses(losses_BT, ratios_BT, inputs.mask_BT & ~is_near_BT, is_bounded_BT, log_ratios_BT)


def _token_losses(
    losses_BT: Tensor, ratios_BT: Tensor, log_ratios_BT: Tensor, is_clipped_BT: Tensor | None = None
) -> TokenLosses:
    """Without a second bound."""
    nowhere_BT = torch.zeros_like(losses_BT, dtype=torch.bool)
    is_clipped_BT = nowhere_BT if is_clipped_BT is None else is_clipped_BT
    return TokenLosses(losses_BT, ratios_BT.detach(), is_clipped_BT, nowhere_BT, log_ratios_BT.detach())


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
        ratios_BT = _correction_ratios(difference_BT, mask_BT, convention, level)
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


def _correction_ratios(difference_BT: Tensor, mask_BT: Tensor, convention: Convention, level: str) -> Tensor:
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
