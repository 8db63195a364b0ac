"""The interface of a policy, and the built-in decoder: Qwen2's and Qwen3's layout and parameter names, at any size.

RMSNorm before each half, rotary positions, grouped key-value heads, SwiGLU. Qwen2 has biases on q, k and v; Qwen3 has
none, and a norm on each head's query and key instead. Source: transformers, models/qwen2/modeling_qwen2.py and
models/qwen3/modeling_qwen3.py.

A function of `gradients` gives what that of the same name in `ops` does, with its backward written out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from trainer.models import gradients, ops
from trainer.models.layout import Layout, lay_out

if TYPE_CHECKING:
    from trainer.types import Batch


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """The policy's log-probability of each answer token, with gradient; float32 at least, 0 where the mask is off."""

    logprobs_BT: Tensor  # of the token itself, at the requested temperature
    entropy_BT: Tensor  # of the distribution, in nats; all 0 unless requested
    sum_pi_squared_BT: Tensor | None = None  # over the vocabulary; None unless requested


class Model(nn.Module, ABC):
    """A policy. Its parameters carry transformers' names."""

    top_p, top_k = 1.0, 0  # as the engine draws: the policy is the distribution of the tokens that may be drawn
    is_gathered = False  # whether its weights are gathered from all ranks before each use and freed after it

    def gather_weights(self) -> None:
        """Marks the weights as gathered: every rank then computes each layer equally often and does not modify them."""
        self.is_gathered = True

    @abstractmethod
    def token_logprobs(
        self, batch: Batch, *, temperature: float, with_entropy: bool = True, with_sum_pi_squared: bool = False
    ) -> ModelOutput:
        """The log-probability of each masked token of the answers; a prompt is computed once for all its answers.

        `with_sum_pi_squared`, in the place of the entropy, is for passes without a gradient.
        """


Rotary = tuple[Tensor, Tensor]  # cosine and sine [N, 1, D] of each token's place


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder, and which of the two layouts it has."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-6
    is_tied: bool = True  # the output's weights are the input embedding
    is_qwen3: bool = False


class RMSNorm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return gradients.norm(x, self.weight, self.epsilon)


def angles(num_positions: int, shape: Shape, like: Tensor) -> Rotary:
    """Of the first so many places, computed in float32 at least."""
    wide = torch.promote_types(like.dtype, torch.float32)
    exponents = torch.arange(0, shape.head_size, 2, dtype=wide, device=like.device) / shape.head_size
    places = torch.arange(num_positions, dtype=wide, device=like.device)
    angles_L1D = torch.outer(places, shape.rope_base**-exponents).repeat(1, 2)[:, None]
    return angles_L1D.cos().to(like.dtype), angles_L1D.sin().to(like.dtype)


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return gradients.linear(x, self.weight, self.bias)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = shape.heads, shape.kv_heads, shape.head_size
        self.repeats = shape.heads // shape.kv_heads
        has_bias = not shape.is_qwen3
        self.q_proj = Linear(shape.hidden, self.heads * self.size, bias=has_bias)
        self.k_proj = Linear(shape.hidden, self.kv_heads * self.size, bias=has_bias)
        self.v_proj = Linear(shape.hidden, self.kv_heads * self.size, bias=has_bias)
        self.o_proj = Linear(self.heads * self.size, shape.hidden, bias=False)
        self.q_norm = RMSNorm(self.size, shape.norm_epsilon) if shape.is_qwen3 else None
        self.k_norm = RMSNorm(self.size, shape.norm_epsilon) if shape.is_qwen3 else None

    def project(self, x_NH: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [N, K, R, D]; keys and values [N, K, D]."""
        queries, keys, values = (
            linear(x_NH).view(len(x_NH), -1, self.size) for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = ops.rotate(queries, *rotary), ops.rotate(keys, *rotary)
        return queries.view(len(x_NH), self.kv_heads, self.repeats, self.size), keys, values

    def forward(self, x_NH: Tensor, rotary: Rotary, layout: Layout, *, is_last: bool) -> Tensor:
        """Mixed values [N, heads * D]; in the last layer of each prompt's last token and the answers alone."""
        mix = ops.mix_small if ops.is_small(layout, self.heads) else ops.mix_large
        return mix(*self.project(x_NH, rotary), layout, is_last=is_last)


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x_NH: Tensor) -> Tensor:
        if all(type(each) is Linear for each in (self.gate_proj, self.up_proj, self.down_proj)):
            weights = self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight
            return gradients.mlp(x_NH, *weights)
        return self.down_proj(nn.functional.silu(self.gate_proj(x_NH)) * self.up_proj(x_NH))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_epsilon)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_epsilon)

    def forward(self, x_NH: Tensor, rotary: Rotary, layout: Layout, is_last: bool) -> Tensor:
        """[N, H] -> the same; from the last layer [P + A, H]."""
        mixed = self.self_attn(self.input_layernorm(x_NH), rotary, layout, is_last=is_last)
        if is_last:
            x_NH = x_NH.index_select(0, layout.output_M)
        return self.finish(x_NH, mixed)

    def finish(self, x_NH: Tensor, mixed_NH: Tensor) -> Tensor:
        """The part of a layer after attention."""
        x_NH = x_NH + self.self_attn.o_proj(mixed_NH.to(x_NH.dtype))
        return x_NH + self.mlp(self.post_attention_layernorm(x_NH))  # type: ignore[no-any-return]


class Body(nn.Module):
    """Everything below the output: the part that transformers calls `model`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_epsilon)

    def stack(self) -> list[Layer]:
        """The layers, from the input to the output."""
        return cast("list[Layer]", list(self.layers))


class Decoder(Model):
    """A policy whose `score` computes each prompt once for all its answers."""

    def __init__(self, shape: Shape, *, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.shape, self.gradient_checkpointing = shape, gradient_checkpointing
        self.model = Body(shape)
        self.lm_head = None if shape.is_tied else nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self._angles: Rotary | None = None  # of the places seen so far

    def angles(self, num_positions: int) -> Rotary:
        """Cosine and sine [L, 1, D] of at least so many positions, in the weights' dtype; cached for the next call."""
        like, cached = self.model.embed_tokens.weight, self._angles
        is_same_kind = cached is not None and (cached[0].dtype, cached[0].device) == (like.dtype, like.device)
        if cached is None or not is_same_kind or len(cached[0]) < num_positions:
            self._angles = cached = angles(max(64, 1 << (num_positions - 1).bit_length()), self.shape, like)
        return cached

    @property
    def output_weight(self) -> Tensor:
        """[V, H]"""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def hidden(self, layout: Layout) -> Tensor:
        """Normed hidden states [P + A, H] of each prompt's last token, then of the answers' tokens but their last."""
        x_NH = self.model.embed_tokens(layout.tokens_N)
        cos, sin = self.angles(layout.num_positions)
        rotary = cos[layout.positions_N], sin[layout.positions_N]
        for number, layer in enumerate(self.model.stack(), start=1):
            x_NH = self._through(layer, x_NH, rotary, layout, number == self.shape.layers)
        return self.model.norm(x_NH)  # type: ignore[no-any-return]

    def _through(self, layer: nn.Module, x_NH: Tensor, rotary: Rotary, layout: Layout, is_last: bool) -> Tensor:
        if not (self.gradient_checkpointing and torch.is_grad_enabled()):
            return layer(x_NH, rotary, layout, is_last)  # type: ignore[no-any-return]
        # a recomputation begins with gathering: torch's hooks handle only torch's own checkpointing
        if self.is_gathered:
            from torch.utils.checkpoint import checkpoint

            return checkpoint(layer, x_NH, rotary, layout, is_last, use_reentrant=False)  # type: ignore[no-any-return]
        return gradients.checkpoint(lambda x_NH: layer(x_NH, rotary, layout, is_last), x_NH, layer.parameters())

    def token_logprobs(
        self, batch: Batch, *, temperature: float, with_entropy: bool = True, with_sum_pi_squared: bool = False
    ) -> ModelOutput:
        """Each masked token's log-probability [B, T], and the entropy of its distribution; both 0 elsewhere."""
        layout = lay_out(batch)
        logprobs_C, statistic_C = self(layout, temperature, with_entropy, with_sum_pi_squared)
        empty = logprobs_C.new_zeros(batch.mask_BT.numel())
        logprobs_BT = empty.index_copy(0, layout.place_C, logprobs_C).view_as(batch.mask_BT)
        if not (with_entropy or with_sum_pi_squared):
            return ModelOutput(logprobs_BT, empty.view_as(batch.mask_BT))
        statistic_BT = empty.index_copy(0, layout.place_C, statistic_C).view_as(batch.mask_BT)
        if with_sum_pi_squared:
            return ModelOutput(logprobs_BT, empty.view_as(batch.mask_BT), statistic_BT)
        return ModelOutput(logprobs_BT, statistic_BT)

    def forward(
        self, layout: Layout, temperature: float, with_entropy: bool, with_sum_pi_squared: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `gradients.token_logprobs`, for each masked token."""
        hidden_MH = self.hidden(layout)
        if layout.source_M is not None:
            hidden_MH = hidden_MH.index_select(0, layout.source_M)
        return gradients.token_logprobs(
            hidden_MH,
            self.output_weight,
            source_C=layout.source_C,
            target_C=layout.target_C,
            temperature=temperature,
            with_entropy=with_entropy,
            with_sum_pi_squared=with_sum_pi_squared,
            top_p=self.top_p,
            top_k=self.top_k,
        )
