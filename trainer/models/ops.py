"""The decoder's building blocks: the forward alone, partly in place; `gradients` has them with a backward."""

from __future__ import annotations

import platform
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

# Logits held at once, as numbers: rows of the output layer are taken in parts of about this size.
LOGITS_AT_ONCE = 1 << 22


def wide(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@cache
def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16, and torch uses them; False where it cannot tell.

    Without them torch's products take 2.5 times (AVX-512) to 10 to 80 times (AVX2) as long as those of float32.
    """
    try:
        is_used = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # on x86 also true where oneDNN emulates them
        return is_used and (platform.machine() == "aarch64" or torch.cpu._is_avx512_bf16_supported())
    except AttributeError:
        return False


def is_widened(x: Tensor) -> bool:
    """Whether products of x are computed in float32."""
    return x.dtype == torch.bfloat16 and x.device.type == "cpu" and not multiplies_bfloat16()


def factors(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """What is multiplied: the tensors, or bfloat16 in float32 on a CPU without instructions for it; None stays None."""
    if tensors[0] is None or not is_widened(tensors[0]):
        return tensors  # type: ignore[return-value]
    return tuple(each if each is None else each.float() for each in tensors)  # type: ignore[misc]


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in the dtype of `left`, rounded once; `right` may be a result of `factors`."""
    wide_left, wide_right = factors(left, right)
    return (wide_left @ wide_right).to(left.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b in the dtype of x, rounded once."""
    return functional.linear(*factors(x, weight, bias)).to(x.dtype)


def scales(x_NH: Tensor, epsilon: float) -> Tensor:
    """[N, 1]: one over the root of each row's mean square, in float32 at least; one pass over the rows."""
    kind = torch.promote_types(x_NH.dtype, torch.float32)
    lengths: Tensor = torch.linalg.vector_norm(x_NH, dim=-1, keepdim=True, dtype=kind)
    return lengths.square_().div_(x_NH.shape[-1]).add_(epsilon).rsqrt_()


def normed(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return (x * scale).to(x.dtype).mul_(weight)


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm over the last axis; the mean square in float32 at least."""
    return normed(x, weight, scales(x, epsilon))


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The vectors turned by their position's angles; the two halves of the last axis are each plane's coordinates."""
    half = x.shape[-1] // 2
    rotated = torch.mul(x, cos, out=out)
    rotated[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    rotated[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return rotated


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `apply_rotary`, also on the way to a gradient."""
    if not torch.is_grad_enabled():
        return apply_rotary(x, cos, sin)
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def mlp(x_NH: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor) -> Tensor:
    """down(silu(gate(x)) * up(x))"""
    opened = functional.silu(linear(x_NH, gate_weight))
    return linear(opened.mul_(linear(x_NH, up_weight)), down_weight)


SamplingParams = tuple[float, float, int]  # temperature, top_p, top_k


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    source: Tensor,
    target: Tensor,
    params: SamplingParams,
    with_entropy: bool,
    with_sum_pi_squared: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target under the output layer's row `source` (rising) [C]; a statistic of each row [M].

    The statistic is the entropy or, with `with_sum_pi_squared`, the sum of squared probabilities; without either zeros
    [C]. With `top_p` or `top_k` of the distribution over the tokens that may be sampled, which the target belongs to in
    any case. Never holds more logits than a few million.
    """
    own, statistics = [], []
    (weight,) = factors(weight)
    for rows, picks in logit_parts(hidden, weight, source):
        logs = truncated_log_softmax(hidden[rows], weight, source[picks] - rows.start, target[picks], params)
        own.append(logs[source[picks] - rows.start, target[picks]])
        if with_sum_pi_squared:
            statistics.append(logs.mul_(2).exp_().sum(-1))
        elif with_entropy:
            statistics.append(torch.exp(logs).mul_(logs).sum(-1).neg_())
    logprobs = own[0] if len(own) == 1 else torch.cat(own)
    return logprobs, torch.cat(statistics) if statistics else torch.zeros_like(logprobs)


# In the place of the logit of a token that cannot be sampled: finite, so that 0 times it is 0.
_MASKED = -1e30


def truncated_log_softmax(
    hidden: Tensor, weight: Tensor, rows: Tensor, targets: Tensor, params: SamplingParams
) -> Tensor:
    """Log-probabilities of all tokens, in float32 at least; with `top_p` or `top_k` a row has one target.

    That one is in the distribution even if rounding, or another policy, leaves it out.
    """
    temperature, top_p, top_k = params
    logits = wide(product(hidden, weight.t()))
    logits = logits if temperature == 1.0 else logits.div_(temperature)
    if top_p < 1 or top_k:
        is_allowed = top_p_top_k_mask(logits, top_p, top_k)
        is_allowed[rows, targets] = True
        logits.masked_fill_(~is_allowed, _MASKED)
    return torch.log_softmax(logits, dim=-1)


def top_p_top_k_mask(logits_RV: Tensor, top_p: float, top_k: int) -> Tensor:
    """Which tokens are among the `top_k` likeliest (0: all), and of these among the fewest with a share of `top_p`.

    Source: vllm v1/sample/ops/topk_topp_sampler.py, transformers' TopKLogitsWarper and TopPLogitsWarper.
    Example: probabilities 0.5, 0.3, 0.2 with top_p 0.6 -> the first two
    """
    is_allowed = torch.ones_like(logits_RV, dtype=torch.bool)
    if 0 < top_k < logits_RV.shape[1]:
        is_allowed = logits_RV >= logits_RV.topk(top_k, dim=1).values[:, -1:]
    if top_p < 1:
        rising, places = logits_RV.masked_fill(~is_allowed, -torch.inf).sort(dim=1)
        is_left_out = rising.softmax(dim=1).cumsum(dim=1) <= 1 - top_p
        is_left_out[:, -1] = False
        is_allowed &= ~is_left_out.scatter(1, places, is_left_out)
    return is_allowed


def truncated_logprobs(logits_RV: Tensor, temperature: float, top_p: float, top_k: int) -> Tensor:
    """The log-probability of each token of being drawn."""
    logits_RV = logits_RV if temperature == 1.0 else logits_RV / temperature
    if top_p < 1 or top_k:
        logits_RV = logits_RV.masked_fill(~top_p_top_k_mask(logits_RV, top_p, top_k), _MASKED)
    return torch.log_softmax(logits_RV, dim=-1)


def logit_parts(hidden: Tensor, weight: Tensor, source: Tensor) -> list[tuple[slice, slice]]:
    """Rows of the hidden states, and the targets that they predict."""
    size = max(1, LOGITS_AT_ONCE // len(weight))
    bounds = [*range(0, len(hidden), size), len(hidden)]
    if len(bounds) <= 2:
        return [(slice(0, len(hidden)), slice(0, len(source)))]
    places = torch.searchsorted(source, torch.tensor(bounds, device=source.device)).tolist()
    return [(slice(bounds[at], bounds[at + 1]), slice(places[at], places[at + 1])) for at in range(len(bounds) - 1)]
