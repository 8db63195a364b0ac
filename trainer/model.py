"""The built-in decoder: Qwen2's layout and parameter names, at any size, from a random start.

Floor 1: knows nothing of engines or learners. RMSNorm before each half, rotary positions, grouped key-value heads,
biases on q, k, v only, SwiGLU, output tied to the input embedding. Rows carry padding on the right alone, so a causal
mask is the only mask there is. Source: transformers, models/qwen2/modeling_qwen2.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from trainer.config import Config

_ROPE_BASE = 10_000.0
_NORM_EPSILON = 1e-6
_START_DEVIATION = 0.02


@dataclass(slots=True)
class Cache:
    """Keys and values of the tokens seen so far, one pair [B, K, T, D] per layer; the decoder appends to it."""

    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return self.layers[0][0].shape[2] if self.layers else 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer, the new ones last."""
        if layer in self.layers:
            old_keys, old_values = self.layers[layer]
            keys, values = torch.cat((old_keys, keys), dim=2), torch.cat((old_values, values), dim=2)
        self.layers[layer] = keys, values
        return keys, values

    def repeat(self, times: int) -> None:
        """Each row `times` times, copies next to each other: one prompt for a whole group of answers."""
        for layer, (keys, values) in self.layers.items():
            self.layers[layer] = keys.repeat_interleave(times, dim=0), values.repeat_interleave(times, dim=0)


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x_BTH: Tensor) -> Tensor:
        return self.weight * (x_BTH * torch.rsqrt(x_BTH.square().mean(-1, keepdim=True) + _NORM_EPSILON))


def rotate(x_BKTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """The vectors turned by their position's angles; the two halves of D are the coordinates of each plane."""
    left, right = x_BKTD.chunk(2, dim=-1)
    return x_BKTD * cos_TD + torch.cat((-right, left), dim=-1) * sin_TD


def angles(positions_T: Tensor, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [T, D] of each position's angles, computed in float32 at least."""
    wide = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, size, 2, dtype=wide, device=positions_T.device) / size
    angles_TD = torch.outer(positions_T.to(wide), _ROPE_BASE**-exponents).repeat(1, 2)
    return angles_TD.cos().to(dtype), angles_TD.sin().to(dtype)


class Attention(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads = layer, config.heads, config.kv_heads
        self.size = config.hidden // config.heads
        self.q_proj = nn.Linear(config.hidden, config.heads * self.size)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * self.size)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * self.size)
        self.o_proj = nn.Linear(config.heads * self.size, config.hidden, bias=False)

    def forward(self, x_BTH: Tensor, turn: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        rows, num_tokens = x_BTH.shape[:2]

        def by_head(projected: Tensor, heads: int) -> Tensor:
            return projected.view(rows, num_tokens, heads, self.size).transpose(1, 2)

        queries = rotate(by_head(self.q_proj(x_BTH), self.heads), *turn)
        keys = rotate(by_head(self.k_proj(x_BTH), self.kv_heads), *turn)
        values = by_head(self.v_proj(x_BTH), self.kv_heads)
        if cache is not None:
            keys, values = cache.append(self.layer, keys, values)
        repeats = self.heads // self.kv_heads
        keys, values = keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)
        # A lone new token sees everything before it; the caller never adds several to a cache that holds some.
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=num_tokens > 1)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, num_tokens, -1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x_BTH: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x_BTH)) * self.up_proj(x_BTH))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden)
        self.post_attention_layernorm = RMSNorm(config.hidden)

    def forward(self, x_BTH: Tensor, turn: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        x_BTH = x_BTH + self.self_attn(self.input_layernorm(x_BTH), turn, cache)
        return x_BTH + self.mlp(self.post_attention_layernorm(x_BTH))  # type: ignore[no-any-return]


class Body(nn.Module):
    """Everything below the output: the part that transformers calls `model`."""

    def __init__(self, config: Config, vocabulary_size: int) -> None:
        super().__init__()
        self.size = config.hidden // config.heads
        self.embed_tokens = nn.Embedding(vocabulary_size, config.hidden)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.hidden)

    def forward(self, tokens_BT: Tensor, cache: Cache | None) -> Tensor:
        start = cache.num_tokens if cache is not None else 0
        positions_T = torch.arange(start, start + tokens_BT.shape[1], device=tokens_BT.device)
        x_BTH = self.embed_tokens(tokens_BT)
        turn = angles(positions_T, self.size, x_BTH.dtype)
        for layer in self.layers:
            x_BTH = layer(x_BTH, turn, cache)
        return self.norm(x_BTH)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """tokens_BT -> logits_BTV, the logits of a place predicting the token after it."""

    def __init__(self, config: Config, vocabulary_size: int) -> None:
        super().__init__()
        self.model = Body(config, vocabulary_size)

    def forward(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """With a cache: the tokens follow those in it (a single one, if it holds any), and are added to it."""
        return functional.linear(self.model(tokens_BT, cache), self.model.embed_tokens.weight)


def build(config: Config, vocabulary_size: int, *, seed: int, device: torch.device) -> Decoder:
    """A decoder with random weights: normal of deviation 0.02, biases 0, norms 1.

    Drawn on the CPU in the order of the parameters, so that a seed means the same weights on every device.
    """
    # Not built on the meta device: that imports torch's compiler for its random start, 2.7 s (torch 2.13).
    decoder = Decoder(config, vocabulary_size).to(getattr(torch, config.dtype))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.normal_(0.0, _START_DEVIATION, generator=generator)
    return decoder.to(device)
