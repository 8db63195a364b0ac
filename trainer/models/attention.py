"""Attention in which the answers to a prompt share its keys and values, and grouped heads share theirs, without copies.

Scores are scaled by 1/sqrt(D). Shapes: K key-value heads, R query heads per key-value head, D size of a head. Few
scores are materialized, which is faster on a CPU (in bfloat16 ten times, forward and backward, than torch's own
attention there); if they would take much memory torch's attention computes them in chunks.

`mix`, for a complete batch with few scores, has an explicit gradient: neighbouring values in memory are copied once
into the shapes for the products, and the gradients are written once to their location; autograd would join and split
them at every step. N rows go in, M come out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from trainer.models import ops

if TYPE_CHECKING:
    from trainer.algorithms.packing import Layout, Rectangle

# Scores of one layer that may be materialized; they are saved for backward.
MOST_SCORES = 1 << 24


@lru_cache(maxsize=8)  # every layer, and most batches, use the same one
def causal(size: int, repeats: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[size * repeats, size]: 0 where a row sees a column, else -inf. Read-only."""
    hidden = torch.ones(size, size, dtype=torch.bool, device=device).triu(1)
    mask = torch.zeros(size, size, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
    return mask.repeat_interleave(repeats, dim=0)


def of_prompts(queries_PSKRD: Tensor, keys_PKSD: Tensor, values_PKSD: Tensor) -> Tensor:
    """Causal attention within each prompt [P, S, K, R, D]; tokens after its end are not visible to those before it."""
    prompts, length, kv_heads, repeats, size = queries_PSKRD.shape
    if prompts * kv_heads * repeats * length * length > MOST_SCORES:
        queries = queries_PSKRD.flatten(2, 3).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            queries, keys_PKSD, values_PKSD, is_causal=True, enable_gqa=True
        )
        return mixed.transpose(1, 2).reshape(queries_PSKRD.shape)
    queries = queries_PSKRD.transpose(1, 2).reshape(prompts * kv_heads, length * repeats, size)
    mask = causal(length, repeats, queries.dtype, queries.device)
    weights = torch.softmax(scores(queries, keys_PKSD.flatten(0, 1), mask), dim=-1)
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
    weights = two_weights(queries, own[0], prompt[0], own_mask=own_mask, prompt_mask=prompt_mask)
    return two_sums(weights, own[1], prompt[1])


def two_weights(
    queries: Tensor, own_keys: Tensor, prompt_keys: Tensor, *, own_mask: Tensor | None, prompt_mask: Tensor | None
) -> Tensor:
    """The attention weights of each row over the prompt's values, then over its own: [P*K, G*n, S + T], every row's sum
    1.
    """
    batch, rows, size = queries.shape
    of_own = scores(queries.reshape(len(own_keys), -1, size), own_keys, own_mask).view(batch, rows, -1)
    return torch.softmax(torch.cat((scores(queries, prompt_keys, prompt_mask), of_own), dim=2), dim=-1)


def two_sums(weights: Tensor, own_values: Tensor, prompt_values: Tensor) -> Tensor:
    """The values of both parts, mixed by those weights: [P*K, G*n, D]."""
    batch, rows, _ = weights.shape
    of_prompt, of_own = torch.split(weights, [prompt_values.shape[1], own_values.shape[1]], dim=2)
    mixed = torch.bmm(of_own.reshape(len(own_values), -1, own_values.shape[1]), own_values)
    return torch.baddbmm(mixed.view(batch, rows, -1), of_prompt, prompt_values)


def scores(queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled, with the mask added: [b, n, D] and [b, m, D] -> [b, n, m]."""
    start, share = (queries.new_empty(1, 1, 1), 0.0) if mask is None else (mask, 1.0)
    return torch.baddbmm(start, queries, keys.transpose(1, 2), beta=share, alpha=queries.shape[-1] ** -0.5)


def of_answers(
    queries_PGTKRD: Tensor,
    own: tuple[Tensor, Tensor],
    prompt: tuple[Tensor, Tensor],
    is_pad_PS: Tensor | None,
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
    return max(prompts * heads * length * length, of_answers) <= MOST_SCORES


def mix(parts_NHD: Tensor, rotary: tuple[Tensor, Tensor], layout: Layout, kv_heads: int, *, is_last: bool) -> Tensor:
    """Heads of queries, keys and values [N, heads + 2 K, D], before rotary embedding -> mixed values [M, heads * D].

    Each token of a prompt attends to its prompt up to itself, each of an answer to its complete prompt and the answer
    up to itself. `is_last`: of each prompt only its last token comes out.
    """
    if not torch.is_grad_enabled():
        return _mix(parts_NHD, *rotary, layout, kv_heads, is_last)[0]
    return _Mix.apply(parts_NHD, *rotary, layout, kv_heads, is_last)  # type: ignore[no-any-return, no-untyped-call]


def _in(x_NHD: Tensor, home: Rectangle, kv_heads: int) -> Tensor:
    """Packed [N, K * n, D] -> [batches, tokens * n, D]: a batch is a prompt's head [P*K], rows its tokens in order."""
    x = home.spread(x_NHD)
    prompts, size, each = home.shape[0], x.shape[-1], x.shape[-2] // kv_heads
    by_head = x.reshape(prompts, -1, kv_heads, each, size).transpose(1, 2)
    return by_head.reshape(prompts * kv_heads, -1, size).contiguous()


def _out(x_BND: Tensor, home: Rectangle, kv_heads: int, heads: int) -> Tensor:
    """The way back: [P*K, tokens * n, D] -> packed [N, K, n, D]."""
    x = x_BND.view(home.shape[0], kv_heads, -1, heads // kv_heads, x_BND.shape[-1]).transpose(1, 2)
    return home.collect(x.reshape(*home.shape, *x.shape[2:]))


def _mix(
    parts: Tensor, cos: Tensor, sin: Tensor, layout: Layout, kv_heads: int, is_last: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """The mixed values, and the tensors saved for backward."""
    heads, cut, size = parts.shape[1] - 2 * kv_heads, layout.num_prompt_tokens, parts.shape[2]
    rotated = ops.apply_rotary(parts[:, : heads + kv_heads], cos, sin)
    queries, keys, values = rotated[:, :heads], rotated[:, heads:], parts[:, heads + kv_heads :]
    p_keys, p_values = (_in(each[:cut], layout.prompts, kv_heads) for each in (keys, values))
    pads = None if layout.is_pad_PS is None else pad_mask(layout.is_pad_PS, kv_heads, parts)
    repeats, length = heads // kv_heads, layout.prompts.shape[1]
    if is_last:
        p_queries, mask = queries[layout.last_P].view(-1, repeats, size), pads
    else:
        p_queries = _in(queries[:cut], layout.prompts, kv_heads)
        mask = causal(length, repeats, parts.dtype, parts.device)
    p_weights = torch.softmax(scores(p_queries, p_keys, mask), dim=-1)
    p_mixed = torch.bmm(p_weights, p_values)
    if is_last:
        mixed = p_mixed.view(-1, heads * size)
    else:
        mixed = _out(p_mixed, layout.prompts, kv_heads, heads).reshape(-1, heads * size)
    prompt = (p_queries, p_keys, p_values, p_weights)
    if not layout.answers.shape[-1]:
        return mixed, (*prompt, None, None, None, None)
    width = layout.answers.shape[2]
    a_queries = _in(queries[cut:], layout.answers, kv_heads)
    a_keys, a_values = (_in(each[cut:], layout.answers, kv_heads).view(-1, width, size) for each in (keys, values))
    a_weights = two_weights(
        a_queries,
        a_keys,
        p_keys,
        own_mask=causal(width, repeats, parts.dtype, parts.device),
        prompt_mask=pads,
    )
    a_mixed = two_sums(a_weights, a_values, p_values)
    of_answers = _out(a_mixed, layout.answers, kv_heads, heads).reshape(-1, heads * size)
    return torch.cat((mixed, of_answers)), (*prompt, a_queries, a_keys, a_values, a_weights)


def _to_scores(to_weights: Tensor, weights: Tensor, size: int) -> Tensor:
    """The gradient of scores, with the factor that queries and keys get."""
    return torch._softmax_backward_data(to_weights, weights, -1, weights.dtype).mul_(size**-0.5)


class _Mix(Function):
    @staticmethod
    def forward(
        ctx: Any, parts: Tensor, cos: Tensor, sin: Tensor, layout: Layout, kv_heads: int, is_last: bool
    ) -> Tensor:
        mixed, saved = _mix(parts, cos, sin, layout, kv_heads, is_last)
        ctx.save_for_backward(cos, sin, *saved)
        ctx.layout, ctx.kv_heads, ctx.is_last, ctx.shape = layout, kv_heads, is_last, parts.shape
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        cos, sin, *saved = ctx.saved_tensors
        layout, kv_heads, (num, all_heads, size) = ctx.layout, ctx.kv_heads, ctx.shape
        heads, cut = all_heads - 2 * kv_heads, layout.num_prompt_tokens
        gradient = gradients[0].reshape(-1, heads, size)
        num_prompt_rows = len(layout.last_P) if ctx.is_last else cut
        p_queries, p_keys, p_values, p_weights = saved[:4]
        if ctx.is_last:
            to_mixed = gradient[:num_prompt_rows].reshape(p_queries.shape)
        else:
            to_mixed = _in(gradient[:num_prompt_rows], layout.prompts, kv_heads)
        to_values = torch.bmm(p_weights.transpose(1, 2), to_mixed)
        scores = _to_scores(torch.bmm(to_mixed, p_values.transpose(1, 2)), p_weights, size)
        to_queries, to_keys = torch.bmm(scores, p_keys), torch.bmm(scores.transpose(1, 2), p_queries)
        to_rotated = gradient.new_empty(num, heads + kv_heads, size)
        to_parts = gradient.new_empty(num, all_heads, size)
        if saved[4] is not None:
            to_mixed = _in(gradient[num_prompt_rows:], layout.answers, kv_heads)
            own = _back_of_answers(to_mixed, saved, to_keys, to_values)
            to_rotated[cut:, :heads].view(-1, kv_heads, heads // kv_heads, size).copy_(
                _out(own[0], layout.answers, kv_heads, heads)
            )
            for home, part in ((to_rotated[cut:, heads:], own[1]), (to_parts[cut:, heads + kv_heads :], own[2])):
                part = part.view(len(p_keys), -1, size)
                home.copy_(_out(part, layout.answers, kv_heads, kv_heads)[:, :, 0])
        if ctx.is_last:
            to_rotated[:cut, :heads] = 0
            to_rotated[layout.last_P, :heads] = to_queries.view(-1, heads, size)
        else:
            to_rotated[:cut, :heads].view(-1, kv_heads, heads // kv_heads, size).copy_(
                _out(to_queries, layout.prompts, kv_heads, heads)
            )
        to_rotated[:cut, heads:] = _out(to_keys, layout.prompts, kv_heads, kv_heads)[:, :, 0]
        to_parts[:cut, heads + kv_heads :] = _out(to_values, layout.prompts, kv_heads, kv_heads)[:, :, 0]
        ops.apply_rotary(to_rotated, cos, -sin, out=to_parts[:, : heads + kv_heads])
        return to_parts, None, None, None, None, None


def _back_of_answers(
    to_mixed: Tensor, saved: list[Tensor], to_prompt_keys: Tensor, to_prompt_values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the answers' queries, keys and values; adds to those of the prompt's, in place."""
    _, p_keys, p_values, _, queries, keys, values, weights = saved
    (batch, rows, size), length, count = queries.shape, p_keys.shape[1], len(keys)
    of_prompt, of_own = weights[:, :, :length], weights[:, :, length:].reshape(count, -1, values.shape[1])
    each = to_mixed.view(count, -1, size)
    to_values = torch.bmm(of_own.transpose(1, 2), each)
    to_prompt_values.baddbmm_(of_prompt.transpose(1, 2), to_mixed)
    to_own = torch.bmm(each, values.transpose(1, 2)).view(batch, rows, -1)
    to_weights = torch.cat((torch.bmm(to_mixed, p_values.transpose(1, 2)), to_own), dim=2)
    scores = _to_scores(to_weights, weights, size)
    of_prompt, of_own = scores[:, :, :length], scores[:, :, length:].reshape(count, -1, values.shape[1])
    to_keys = torch.bmm(of_own.transpose(1, 2), queries.view(count, -1, size))
    to_prompt_keys.baddbmm_(of_prompt.transpose(1, 2), queries)
    to_queries = torch.bmm(of_own, keys).view(batch, rows, size).baddbmm_(of_prompt, p_keys)
    return to_queries, to_keys, to_values
