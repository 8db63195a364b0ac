"""Attention in which the answers to a prompt share its keys and values, and grouped heads share theirs, without copies.

Scores are scaled by 1/sqrt(D). Shapes: K key-value heads, R query heads per key-value head, D size of a head. Few
scores are materialized, which is faster on a CPU (in bfloat16 ten times, forward and backward, than torch's own
attention there); if they would take much memory torch's attention computes them in chunks.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

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
    found = (queries_PKRD * queries_PKRD.shape[-1] ** -0.5) @ keys_PKSD.transpose(2, 3)
    if is_pad_PS is not None:
        found = found.masked_fill(is_pad_PS[:, None, None, :], -torch.inf)
    return torch.softmax(found, dim=-1) @ values_PKSD


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
