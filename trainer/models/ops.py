"""The decoder's arithmetic: the forward alone, partly in place; `gradients` has it with a backward.

In attention the answers to a prompt share its keys and values, and grouped heads share theirs, without copies. Scores
are scaled by 1/sqrt(D). Shapes: K key-value heads, R query heads per key-value head, D size of a head. Few scores are
materialized, which is faster on a CPU (in bfloat16 ten times, forward and backward, than torch's own attention there);
if they would take much memory torch's attention computes them in chunks. `mix_small` and `mix_large` are for a
complete batch with few and with many scores; N rows go in, M come out.
"""

from __future__ import annotations

import math
import platform
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

if TYPE_CHECKING:
    from trainer.models.layout import Layout, Rectangle

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


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The vectors turned by their position's angles; the two halves of the last axis are each plane's coordinates."""
    low, high = x.chunk(2, dim=-1)
    return (x * cos).addcmul_(torch.cat((-high, low), dim=-1), sin)


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


# Scores of one layer that may be materialized; they are saved for backward.
MOST_ATTENTION_SCORES = 1 << 24


def causal(size: int, repeats: int, like: Tensor) -> Tensor:
    """[size * repeats, size]: 0 where a row sees a column, else -inf."""
    return _causal(size, repeats, like.dtype, like.device)


@lru_cache(maxsize=8)  # every layer, and most batches, use the same one: read-only
def _causal(size: int, repeats: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    hidden = torch.ones(size, size, dtype=torch.bool, device=device).triu(1)
    mask = torch.zeros(size, size, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
    return mask.repeat_interleave(repeats, dim=0)


def of_prompts(queries_PSKRD: Tensor, keys_PKSD: Tensor, values_PKSD: Tensor) -> Tensor:
    """Causal attention within each prompt [P, S, K, R, D]; tokens after its end are not visible to those before it."""
    prompts, length, kv_heads, repeats, size = queries_PSKRD.shape
    if prompts * kv_heads * repeats * length * length > MOST_ATTENTION_SCORES:
        queries = queries_PSKRD.flatten(2, 3).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            queries, keys_PKSD, values_PKSD, is_causal=True, enable_gqa=True
        )
        return mixed.transpose(1, 2).reshape(queries_PSKRD.shape)
    queries = queries_PSKRD.transpose(1, 2).reshape(prompts * kv_heads, length * repeats, size)
    mask = causal(length, repeats, queries)
    weights = torch.softmax(attention_scores(queries, keys_PKSD.flatten(0, 1), mask), dim=-1)
    mixed = torch.bmm(weights, values_PKSD.flatten(0, 1))
    return mixed.view(prompts, kv_heads, length, repeats, size).transpose(1, 2)


def of_last(queries_PKRD: Tensor, keys_PKSD: Tensor, values_PKSD: Tensor, is_pad_PS: Tensor | None) -> Tensor:
    """Attention of each prompt's last token over its prompt [P, K, R, D]."""
    scores_PKRS = (queries_PKRD * queries_PKRD.shape[-1] ** -0.5) @ keys_PKSD.transpose(2, 3)
    if is_pad_PS is not None:
        scores_PKRS = scores_PKRS.masked_fill(is_pad_PS[:, None, None, :], -torch.inf)
    return torch.softmax(scores_PKRS, dim=-1) @ values_PKSD


def pad_mask(is_pad_PS: Tensor, kv_heads: int, like: Tensor) -> Tensor:
    """[P*K, 1, S]: -inf beyond the end of a prompt."""
    mask = like.new_zeros(is_pad_PS.shape).masked_fill_(is_pad_PS, -torch.inf)
    return mask[:, None].repeat_interleave(kv_heads, dim=0)


def two_parts(
    queries: Tensor,
    own: tuple[Tensor, Tensor],
    prompt: tuple[Tensor, Tensor],
    *,
    own_mask: Tensor | None,
    prompt_mask: Tensor | None,
) -> Tensor:
    """One softmax over the keys of the prompt and the row's own.

    Queries [P*K, G*n, D] (n rows of scores per answer), own keys and values [P*K*G, T, D], the prompt's [P*K, S, D];
    masks, if any, are added to [P*K*G, n, T] and [P*K, G*n, S] -> [P*K, G*n, D].
    """
    batch, rows, size = queries.shape
    length, width = prompt[0].shape[1], own[0].shape[1]
    of_own = attention_scores(queries.reshape(len(own[0]), -1, size), own[0], own_mask).view(batch, rows, -1)
    scores = torch.cat((attention_scores(queries, prompt[0], prompt_mask), of_own), dim=2)
    of_prompt, of_own = torch.split(torch.softmax(scores, dim=-1), [length, width], dim=2)
    mixed = torch.bmm(of_own.reshape(len(own[1]), -1, width), own[1])
    return torch.baddbmm(mixed.view(batch, rows, -1), of_prompt, prompt[1])


def attention_scores(queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled, with the mask added: [b, n, D] and [b, m, D] -> [b, n, m]."""
    start, share = (queries.new_empty(1, 1, 1), 0.0) if mask is None else (mask, 1.0)
    return torch.baddbmm(start, queries, keys.transpose(1, 2), beta=share, alpha=queries.shape[-1] ** -0.5)


def mix_large(queries: Tensor, keys: Tensor, values: Tensor, layout: Layout, *, is_last: bool) -> Tensor:
    """The mixed values [M, heads * D] of many scores, from queries [N, K, R, D], keys and values [N, K, D].

    Each token of a prompt attends to its prompt up to itself, each of an answer to its complete prompt and the answer
    up to itself. `is_last`: of each prompt only its last token comes out.
    """
    queries, keys, values = factors(queries, keys, values)
    cut = layout.num_prompt_tokens
    prompt_keys, prompt_values = (
        layout.prompts.pad(each[:cut]).transpose(1, 2).contiguous() for each in (keys, values)
    )
    if is_last:
        parts = [of_last(queries[layout.last_P], prompt_keys, prompt_values, layout.is_pad_PS).flatten(1)]
    else:
        mixed = of_prompts(layout.prompts.pad(queries[:cut]), prompt_keys, prompt_values)
        parts = [layout.prompts.unpad(mixed).flatten(1)]
    if layout.answers.shape[-1]:
        own_queries, *own = (layout.answers.pad(each[cut:]) for each in (queries, keys, values))
        mixed = of_answers(own_queries, (own[0], own[1]), (prompt_keys, prompt_values), layout.is_pad_PS)
        parts.append(layout.answers.unpad(mixed).flatten(1))
    return torch.cat(parts)


def of_answers(
    queries_PGTKRD: Tensor, own: tuple[Tensor, Tensor], prompt: tuple[Tensor, Tensor], is_pad_PS: Tensor | None
) -> Tensor:
    """Attention [P, G, T, K, R, D] of the answers' tokens over their complete prompt, and causally over their answer.

    `own` keys and values [P, G, T, K, D], the prompt's [P, K, S, D]; by torch's attention, with the prompt's keys
    repeated for each of its answers.
    """
    prompts, group, width, kv_heads, _, size = queries_PGTKRD.shape
    length = prompt[0].shape[2]

    def both(of_prompt: Tensor, of_own: Tensor) -> Tensor:
        shared = of_prompt[:, None].expand(prompts, group, kv_heads, length, size)
        return torch.cat((shared, of_own.transpose(2, 3)), dim=3).flatten(0, 1)

    sees = torch.ones(width, length + width, dtype=torch.bool, device=own[0].device).tril(length)
    if is_pad_PS is not None:
        pads = functional.pad(is_pad_PS, (0, width))[:, None, None, None, :]
        sees = (sees & ~pads).expand(prompts, group, 1, width, length + width).flatten(0, 1)
    mixed = functional.scaled_dot_product_attention(
        queries_PGTKRD.flatten(3, 4).flatten(0, 1).transpose(1, 2),
        both(prompt[0], own[0]),
        both(prompt[1], own[1]),
        attn_mask=sees,
        enable_gqa=True,
    )
    return mixed.transpose(1, 2).reshape(queries_PGTKRD.shape)


def is_small(layout: Layout, heads: int) -> bool:
    """Whether a layer's scores are few enough to be materialized and saved."""
    (prompts, length), (_, group, width) = layout.prompts.shape, layout.answers.shape
    of_answers = prompts * heads * group * width * (length + width)
    return max(prompts * heads * length * length, of_answers) <= MOST_ATTENTION_SCORES


def to_batches(x_NHD: Tensor, home: Rectangle, kv_heads: int) -> Tensor:
    """Packed [N, K * n, D] -> [batches, tokens * n, D]: a batch is a prompt's head [P*K], rows its tokens in order."""
    x = home.pad(x_NHD)
    prompts, size, each = home.shape[0], x.shape[-1], x.shape[-2] // kv_heads
    by_head = x.reshape(prompts, -1, kv_heads, each, size).transpose(1, 2)
    return by_head.reshape(prompts * kv_heads, -1, size).contiguous()


def to_packed(x_BND: Tensor, home: Rectangle, kv_heads: int) -> Tensor:
    """The way back: [P*K, tokens * n, D] -> packed [N, K * n * D]."""
    prompts, num_tokens, size = home.shape[0], math.prod(home.shape[1:]), x_BND.shape[2]
    x = x_BND.view(prompts, kv_heads, num_tokens, -1, size).transpose(1, 2)
    return home.unpad(x.reshape(*home.shape, -1))


def mix_small(queries: Tensor, keys: Tensor, values: Tensor, layout: Layout, *, is_last: bool) -> Tensor:
    """As `mix_large`, of few scores."""
    with saved_narrow(keys):
        queries, keys, values = factors(queries.flatten(1, 2), keys, values)
        return _mix_small(queries, keys, values, layout, is_last=is_last)


def saved_narrow(x: Tensor) -> AbstractContextManager[object]:
    """Products of x that are computed in float32 are kept for the way back in the dtype of x."""
    if not is_widened(x):
        return nullcontext()
    return saved_tensors_hooks(
        lambda kept: kept.to(x.dtype) if kept.dtype == torch.float32 else kept,
        lambda kept: kept.float() if kept.dtype == x.dtype else kept,
    )


def _mix_small(queries: Tensor, keys: Tensor, values: Tensor, layout: Layout, *, is_last: bool) -> Tensor:
    """From queries [N, K * R, D]."""
    kv_heads, cut = keys.shape[1], layout.num_prompt_tokens
    length, repeats = layout.prompts.shape[1], queries.shape[1] // kv_heads
    (p_keys, a_keys), (p_values, a_values) = (torch.split(each, [cut, len(each) - cut]) for each in (keys, values))
    p_keys, p_values = (to_batches(each, layout.prompts, kv_heads) for each in (p_keys, p_values))
    pads = None if layout.is_pad_PS is None else pad_mask(layout.is_pad_PS, kv_heads, keys)
    p_queries, a_queries = torch.split(queries, [cut, len(queries) - cut])
    if is_last:
        p_queries, mask = queries[layout.last_P].view(-1, repeats, queries.shape[2]), pads
    else:
        p_queries, mask = to_batches(p_queries, layout.prompts, kv_heads), causal(length, repeats, keys)
    mixed = torch.bmm(torch.softmax(attention_scores(p_queries, p_keys, mask), dim=-1), p_values)
    mixed = mixed.view(len(layout.last_P), -1) if is_last else to_packed(mixed, layout.prompts, kv_heads)
    width = layout.answers.shape[-1]
    if not width:
        return mixed
    own_keys, own_values = (
        to_batches(each, layout.answers, kv_heads).view(-1, width, each.shape[2]) for each in (a_keys, a_values)
    )
    of_answers = two_parts(
        to_batches(a_queries, layout.answers, kv_heads),
        (own_keys, own_values),
        (p_keys, p_values),
        own_mask=causal(width, repeats, keys),
        prompt_mask=pads,
    )
    return torch.cat((mixed, to_packed(of_answers, layout.answers, kv_heads)))
