"""perfect values; 0: as good as a constant; below: worse. 0 if the returns do not vary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from trainer.algorithms.aggregation import masked_mean, masked_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from trainer.algorithms.conventions import Convention

__all__ = ["LOSSES", "Clip", "TokenLosses", "masked_sum", "policy_loss", "token_logprobs"]

# Numbers of logits worked on at a time. On a CPU the temporaries then stay in the cache: with entropy, forwards and
# backwards take a third of the time of log_softmax on the whole (1 thread, vocabularies of 1 000 to 152 000). Elsewhere
# few launches matter more, and the bound only keeps the temporaries small beside the logits.
CHUNK = 1 << 16
CHUNK_ELSEWHERE = 1 << 26


@dataclass(frozen=True, slots=True)
class Clip:
    """Bounds of the ratio of new to old probability.

    `dual` is a second bound that keeps one token from dominating a batch; None: no second bound. The convention decides
    what it bounds: "constant" clamps the loss at -A dual where A < 0 (verl, above 1); "ratio" clamps the unclipped
    ratio at dual for both signs of A (TRL's delta, above 1 + high); "double" clamps the loss at -A (1 + 2 low) where A
    < 0 and ignores the number (ROLL).
    """

    low: float
    high: float
    dual: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """All [B, T]."""

    losses_BT: Tensor  # 0 where the mask is off
    ratios_BT: Tensor  # new / old probability, per answer for gspo; detached; 1 where the mask is off
    is_clipped_BT: Tensor  # bool; the clipped term decides, so the token has no gradient (cispo: the bound was used)
    is_bounded_BT: Tensor  # bool; the second bound made the loss smaller (clip and gspo alone)
    log_ratios_BT: Tensor  # new to old probability of each token, limited as the ratio is; detached; 0 off the mask


def policy_loss(
    name: str,
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip: Clip,
    convention: Convention,
    weights_BT: Tensor | None = None,
) -> TokenLosses:
    """The loss of that name per token, times the weight of a correction, if any.

    `old_BT` are the log-probabilities before this step's first update. Gradient flows into `logprobs_BT` alone. Raises
    ValueError for a name that is not in `LOSSES`.
    Example: clip with A = 1, ratio 1.5, high 0.2 -> -1.2, clipped
    """
    if name not in LOSSES:
        raise ValueError(f"There is no policy loss {name!r}. Accepted: {', '.join(LOSSES)}")
    # Replaced before any computation, so that no NaN occurs forward or backward.
    logprobs_BT = torch.where(mask_BT, logprobs_BT, 0.0)
    old_BT = torch.where(mask_BT, old_BT.detach(), 0.0)
    advantages_BT = torch.where(mask_BT, advantages_BT.detach(), 0.0)
    result = LOSSES[name](logprobs_BT, old_BT, advantages_BT, mask_BT, clip=clip, convention=convention)
    if weights_BT is None:
        return result
    weights_BT = torch.where(mask_BT, weights_BT.detach(), 0.0)
    return replace(result, losses_BT=result.losses_BT * weights_BT)


def _clip(
    logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, clip: Clip, convention: Convention
) -> TokenLosses:
    log_ratios_BT = _log_ratios(logprobs_BT, old_BT, convention)
    return _surrogate(log_ratios_BT.exp(), log_ratios_BT, advantages_BT, mask_BT, clip, convention.dual_clip)


def _gspo(
    logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, clip: Clip, convention: Convention
) -> TokenLosses:
    num_tokens_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    log_ratios_BT = logprobs_BT - old_BT
    log_ratio_BT = (log_ratios_BT.sum(dim=1, keepdim=True) / num_tokens_B1).expand_as(logprobs_BT)
    if convention.gspo_ratio == "token":
        log_ratio_BT = logprobs_BT - logprobs_BT.detach() + log_ratio_BT.detach()
    if convention.gspo_log_ratio_limit is not None:
        log_ratio_BT = log_ratio_BT.clamp(max=convention.gspo_log_ratio_limit)
    ratios_BT = torch.where(mask_BT, log_ratio_BT, 0.0).exp()
    # verl's gspo knows no second bound
    dual_clip = "none" if convention.dual_clip == "constant" else convention.dual_clip
    return _surrogate(ratios_BT, log_ratios_BT, advantages_BT, mask_BT, clip, dual_clip)


def _cispo(
    logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, clip: Clip, convention: Convention
) -> TokenLosses:
    log_ratios_BT = _log_ratios(logprobs_BT, old_BT, convention).detach()
    ratios_BT = log_ratios_BT.exp()
    around_one = convention.cispo_bounds == "around-one"
    held_BT = ratios_BT.clamp(1 - clip.low, 1 + clip.high) if around_one else ratios_BT.clamp(max=clip.high)
    is_clipped_BT = mask_BT & (held_BT != ratios_BT)
    losses_BT = -held_BT * advantages_BT * logprobs_BT
    return TokenLosses(losses_BT, ratios_BT, is_clipped_BT, torch.zeros_like(mask_BT), log_ratios_BT)


def _plain(
    logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, clip: Clip, convention: Convention
) -> TokenLosses:
    log_ratios_BT = _log_ratios(logprobs_BT, old_BT, convention).detach()
    nowhere_BT = torch.zeros_like(mask_BT)
    return TokenLosses(-advantages_BT * logprobs_BT, log_ratios_BT.exp(), nowhere_BT, nowhere_BT, log_ratios_BT)


LOSSES: Mapping[str, Callable[..., TokenLosses]] = {"clip": _clip, "gspo": _gspo, "cispo": _cispo, "plain": _plain}


def _log_ratios(logprobs_BT: Tensor, old_BT: Tensor, convention: Convention) -> Tensor:
    log_ratios_BT = logprobs_BT - old_BT
    limit = convention.log_ratio_limit
    return log_ratios_BT if limit is None else log_ratios_BT.clamp(-limit, limit)


def _surrogate(
    ratios_BT: Tensor, log_ratios_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, clip: Clip, dual_clip: str
) -> TokenLosses:
    """The larger of the unclipped and the clipped term, with the second bound in the requested form."""
    clipped_BT = -advantages_BT * ratios_BT.clamp(1 - clip.low, 1 + clip.high)
    free_BT = -advantages_BT * ratios_BT
    is_clipped_BT = mask_BT & (clipped_BT > free_BT)
    once_BT = losses_BT = torch.maximum(free_BT, clipped_BT)
    if clip.dual is not None and dual_clip == "ratio":
        losses_BT = torch.maximum(-advantages_BT * ratios_BT.clamp(max=clip.dual), clipped_BT)
    if clip.dual is not None and dual_clip in ("constant", "double"):
        bound = clip.dual if dual_clip == "constant" else 1 + 2 * clip.low
        bounded_BT = torch.minimum(losses_BT, -advantages_BT * bound)
        losses_BT = torch.where(advantages_BT < 0, bounded_BT, losses_BT)
    is_bounded_BT = once_BT > losses_BT
    return TokenLosses(losses_BT, ratios_BT.detach(), is_clipped_BT, is_bounded_BT, log_ratios_BT.detach())


def token_logprobs(
    logits_BTV: Tensor, tokens_BT: Tensor, *, temperature: float = 1.0, with_entropy: bool = True
) -> tuple[Tensor, Tensor | None]:
    """The log-probability of each token and the entropy of its distribution, both [B, T].

    Any leading shape works: [N, V] logits with [N] tokens too. The logits of a row are those that predict its tokens,
    already shifted by one. Entropy in nats, at this temperature; None without `with_entropy`. Half-precision logits are
    converted to float32, the dtype of the result. A token whose results get no gradient gives none to its logits, even
    if they are NaN.
    """
    vocabulary = logits_BTV.shape[-1]
    logprobs_N, entropy_N = _TokenLogprobs.apply(
        logits_BTV.reshape(-1, vocabulary), tokens_BT.reshape(-1), temperature, with_entropy
    )  # type: ignore[no-untyped-call]
    return logprobs_N.view(tokens_BT.shape), entropy_N.view(tokens_BT.shape) if with_entropy else None


class _TokenLogprobs(torch.autograd.Function):
    """Maps logits to two numbers per row without saving anything of the logits' size for backward.

    With p the probabilities, l = log p and H the entropy: dl_token/dx = [token] - p and dH/dx = -p (l + H).
    """

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, tokens_N: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies = [], []
        for rows in _chunks(logits_NV):
            logs_NV = torch.log_softmax(_scaled(logits_NV[rows], temperature), dim=-1)
            logprobs.append(logs_NV.gather(-1, tokens_N[rows].unsqueeze(-1)).squeeze(-1))
            if with_entropy:
                entropies.append(logs_NV.exp().mul_(logs_NV).sum(dim=-1).neg_())
        logprobs_N = logprobs[0] if len(logprobs) == 1 else torch.cat(logprobs)
        entropy_N = logprobs_N.new_empty(0) if not with_entropy else torch.cat(entropies)
        ctx.save_for_backward(logits_NV, tokens_N, logprobs_N, entropy_N)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, grad_logprobs_N: Tensor | None, grad_entropy_N: Tensor | None) -> tuple[Any, ...]:
        logits_NV, tokens_N, logprobs_N, entropy_N = ctx.saved_tensors
        if grad_logprobs_N is None:
            grad_logprobs_N = torch.zeros_like(logprobs_N)
        idle_N = grad_logprobs_N == 0 if grad_entropy_N is None else (grad_logprobs_N == 0) & (grad_entropy_N == 0)
        grad_NV = torch.empty_like(logits_NV)
        for rows in _chunks(logits_NV):
            scaled_NV = _scaled(logits_NV[rows], ctx.temperature)
            tokens_N1, slope_N1 = tokens_N[rows].unsqueeze(-1), grad_logprobs_N[rows].unsqueeze(-1)
            logs_NV = scaled_NV - (scaled_NV.gather(-1, tokens_N1) - logprobs_N[rows].unsqueeze(-1))
            factor = -slope_N1
            if grad_entropy_N is not None:
                bend_N1 = grad_entropy_N[rows].unsqueeze(-1)
                factor = torch.addcmul(factor - bend_N1 * entropy_N[rows].unsqueeze(-1), logs_NV, bend_N1, value=-1)
            change_NV = logs_NV.exp_().mul_(factor).scatter_add_(-1, tokens_N1, slope_N1)
            grad_NV[rows] = change_NV if ctx.temperature == 1.0 else change_NV.div_(ctx.temperature)
        return grad_NV.index_fill_(0, idle_N.nonzero().squeeze(-1), 0.0), None, None, None


def _chunks(logits_NV: Tensor) -> list[slice]:
    bound = CHUNK if logits_NV.device.type == "cpu" else CHUNK_ELSEWHERE
    size = max(1, bound // max(1, logits_NV.shape[1]))
    return [slice(start, start + size) for start in range(0, logits_NV.shape[0], size)]


def _scaled(logits_NV: Tensor, temperature: float) -> Tensor:
    if logits_NV.dtype not in (torch.float32, torch.float64):
        logits_NV = logits_NV.float()
    return logits_NV if temperature == 1.0 else logits_NV / temperature


@dataclass(frozen=True, slots=True)
class ValueLosses:
    """Both [B, T]; 0 and false where the mask is off."""

    losses_BT: Tensor
    is_clipped_BT: Tensor  # the clipped term is the larger one


def value_loss(values_BT: Tensor, returns_BT: Tensor, old_BT: Tensor, mask_BT: Tensor, *, clip: float) -> ValueLosses:
    """Half the squared error; the larger one of the value and the value clipped to within `clip` of the old one.

    `old_BT` is the critic's value before this batch; a clip of 0: none. Gradient flows into `values_BT`.
    Source: PPO as in verl core_algos.compute_value_loss and ROLL's CriticWorker.
    Example: value 2, return 0, old 0.5, clip 0.5 -> max(4, 1) / 2 = 2
    """
    values_BT = torch.where(mask_BT, values_BT, 0.0)
    returns_BT = torch.where(mask_BT, returns_BT, 0.0)
    error_BT = (values_BT - returns_BT).square()
    if not clip:
        return ValueLosses(0.5 * error_BT, torch.zeros_like(mask_BT))
    old_BT = torch.where(mask_BT, old_BT, 0.0)
    held_BT = torch.maximum(torch.minimum(values_BT, old_BT + clip), old_BT - clip)
    held_error_BT = (held_BT - returns_BT).square()
    return ValueLosses(0.5 * torch.maximum(error_BT, held_error_BT), mask_BT & (held_error_BT > error_BT))


def explained_variance(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """1 - variance of the error over variance of the returns, over the mask; a scalar."""

    def variance(numbers_BT: Tensor) -> Tensor:
        return masked_mean((numbers_BT - masked_mean(numbers_BT, mask_BT)).square(), mask_BT)

    whole = variance(returns_BT)
    return torch.where(whole > 0, 1 - variance(returns_BT - values_BT) / whole, 0.0)
