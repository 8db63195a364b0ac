"""A decoder in the layout of Qwen2 or Qwen3, in float64 and as its papers have it: row by row, no cache, no packing.

Nothing of `trainer.models` is imported: what is wrong there must not be wrong here too.

Letters: B rows, T tokens of an answer, L tokens of prompt and answer, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

# In the place of the logit of a token that is not drawn: finite, so that 0 times it is 0.
_NEVER = -1e30
# Shares and logits that float32 may order otherwise.
_CLOSE = 3e-6


class TooClose(ValueError):
    """Rounding decides between two results, each of which may be right."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The rows of one rank's step, on the CPU; floats in float64."""

    sequences: Sequence[tuple[int, ...]]  # of each row prompt and answer, one after the other
    prompt_lengths: Sequence[int]
    tokens_BT: Tensor
    mask_BT: Tensor
    group_B: Sequence[int]
    rewards_B: Tensor
    rollout_BT: Tensor

    def rows(self, rows: Sequence[int]) -> Answers:
        """Some of them."""
        return Answers(
            [self.sequences[row] for row in rows],
            [self.prompt_lengths[row] for row in rows],
            self.tokens_BT[rows],
            self.mask_BT[rows],
            [self.group_B[row] for row in rows],
            self.rewards_B[rows],
            self.rollout_BT[rows],
        )


def logprobs(weights: Mapping[str, Tensor], shape: Any, answers: Answers, rollout: Any) -> tuple[Tensor, Tensor]:
    """The log-probability of each token of the answers [B, T], and the entropy at its place; 0 off the mask.

    With `top_p` or `top_k` of the distribution over the tokens that may be drawn, and the one that was.
    """
    row_N, token_N = answers.mask_BT.nonzero().unbind(1)
    logits_NV = _before(weights, shape, answers) @ _output(weights, shape).t() / rollout.temperature
    own_N1 = answers.tokens_BT[row_N, token_N][:, None]
    is_drawn_NV = drawn(logits_NV.detach(), top_p=rollout.top_p, top_k=rollout.top_k).scatter(1, own_N1, True)
    logs_NV = torch.log_softmax(logits_NV.masked_fill(~is_drawn_NV, _NEVER), dim=-1)
    chosen_N = logs_NV.gather(1, own_N1)[:, 0]
    entropy_N = -(logs_NV.exp() * logs_NV).sum(dim=-1)
    empty = torch.zeros(answers.mask_BT.shape, dtype=torch.float64)
    return empty.index_put((row_N, token_N), chosen_N), empty.index_put((row_N, token_N), entropy_N)


def drawn(logits_NV: Tensor, *, top_p: float, top_k: int) -> Tensor:
    """Which tokens may be drawn: the `top_k` likeliest (0: all), of these the fewest with a share of `top_p`.

    Raises TooClose where two shares or logits are so close that rounding decides.
    """
    falling_NV, places_NV = logits_NV.sort(dim=1, descending=True)
    is_drawn_NV = torch.ones_like(falling_NV, dtype=torch.bool)
    if 0 < top_k < falling_NV.shape[1]:
        is_drawn_NV[:, top_k:] = False
        _require_apart(falling_NV[:, top_k - 1] - falling_NV[:, top_k])
    if top_p < 1:
        shares_NV = falling_NV.masked_fill(~is_drawn_NV, -math.inf).softmax(dim=1)
        likelier_NV = shares_NV.cumsum(dim=1) - shares_NV
        _require_apart(likelier_NV - top_p)
        is_drawn_NV = is_drawn_NV & (likelier_NV < top_p)
    return torch.zeros_like(is_drawn_NV).scatter(1, places_NV, is_drawn_NV)


def _require_apart(gaps: Tensor) -> None:
    if bool((gaps.abs() < _CLOSE).any()):
        raise TooClose("rounding decides whether a token is among those of top_p or top_k")


def values(weights: Mapping[str, Tensor], head: Tensor, shape: Any, answers: Answers) -> Tensor:
    """A critic's value before each token of the answers [B, T]; 0 off the mask."""
    empty = torch.zeros(answers.mask_BT.shape, dtype=torch.float64)
    return empty.index_put(answers.mask_BT.nonzero().unbind(1), _before(weights, shape, answers) @ head)


def greedy(
    weights: Mapping[str, Tensor], shape: Any, prompt: Sequence[int], *, end: int | None, longest: int, margin: float
) -> tuple[int, ...] | None:
    """The likeliest answer, token by token; None where two tokens are closer than `margin`: either may be right."""
    answer: list[int] = []
    while len(answer) < longest and (not answer or answer[-1] != end):
        x = _hidden(weights, shape, torch.tensor([[*prompt, *answer]]))[0, -1]
        best = (_output(weights, shape) @ x).topk(2)
        if float(best.values[0] - best.values[1]) < margin:
            return None
        answer.append(int(best.indices[0]))
    return tuple(answer)


def merged(weights: Mapping[str, Tensor], *, alpha: float, rank: int) -> dict[str, Tensor]:
    """The weights with LoRA's adapters added to those that they adapt."""
    result = {name: each for name, each in weights.items() if ".lora_" not in name}
    for name in result:
        layer = name.removesuffix(".weight")
        if f"{layer}.lora_A.weight" in weights:
            thin, tall = (weights[f"{layer}.lora_{part}.weight"] for part in "AB")
            result[name] = result[name] + alpha / rank * (tall @ thin)
    return result


def _output(weights: Mapping[str, Tensor], shape: Any) -> Tensor:
    return weights["model.embed_tokens.weight" if shape.is_tied else "lm_head.weight"]


def _before(weights: Mapping[str, Tensor], shape: Any, answers: Answers) -> Tensor:
    """The hidden state that predicts each token of the mask: that of the token before it, row by row."""
    length = max(len(row) for row in answers.sequences)
    tokens_BL = torch.tensor([[*row, *[0] * (length - len(row))] for row in answers.sequences])
    row_N, token_N = answers.mask_BT.nonzero().unbind(1)
    before_N = torch.tensor(answers.prompt_lengths)[row_N] + token_N - 1
    return _hidden(weights, shape, tokens_BL)[row_N, before_N]


def _hidden(weights: Mapping[str, Tensor], shape: Any, tokens_BL: Tensor) -> Tensor:
    x = weights["model.embed_tokens.weight"][tokens_BL]
    for number in range(shape.layers):
        x = _layer(x, weights, f"model.layers.{number}.", shape)
    return _norm(x, weights["model.norm.weight"], shape.norm_epsilon)


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / (x.pow(2).mean(dim=-1, keepdim=True) + epsilon).sqrt() * weight


def _layer(x: Tensor, weights: Mapping[str, Tensor], at: str, shape: Any) -> Tensor:
    x = x + _attention(_norm(x, weights[f"{at}input_layernorm.weight"], shape.norm_epsilon), weights, at, shape)
    y = _norm(x, weights[f"{at}post_attention_layernorm.weight"], shape.norm_epsilon)
    gate, up = (y @ weights[f"{at}mlp.{name}_proj.weight"].t() for name in ("gate", "up"))
    return x + (gate / (1 + torch.exp(-gate)) * up) @ weights[f"{at}mlp.down_proj.weight"].t()


def _attention(x: Tensor, weights: Mapping[str, Tensor], at: str, shape: Any) -> Tensor:
    heads = {"q": shape.heads, "k": shape.kv_heads, "v": shape.kv_heads}
    parts = {}
    for name, count in heads.items():
        part = x @ weights[f"{at}self_attn.{name}_proj.weight"].t()
        if f"{at}self_attn.{name}_proj.bias" in weights:
            part = part + weights[f"{at}self_attn.{name}_proj.bias"]
        part = part.view(*part.shape[:-1], count, shape.head_size)
        if shape.is_qwen3 and name != "v":
            part = _norm(part, weights[f"{at}self_attn.{name}_norm.weight"], shape.norm_epsilon)
        parts[name] = (part if name == "v" else _rotated(part, shape)).transpose(-3, -2)
    keys, values = (parts[name].repeat_interleave(shape.heads // shape.kv_heads, dim=-3) for name in "kv")
    scores = parts["q"] @ keys.transpose(-1, -2) / math.sqrt(shape.head_size)
    is_later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    mixed = torch.softmax(scores.masked_fill(is_later, -math.inf), dim=-1) @ values
    return mixed.transpose(-3, -2).flatten(-2) @ weights[f"{at}self_attn.o_proj.weight"].t()


def _rotated(x: Tensor, shape: Any) -> Tensor:
    """Each pair of coordinates turned by its place times its frequency; x is [B, L, heads, D]."""
    half = shape.head_size // 2
    frequencies = shape.rope_base ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = (torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequencies)[:, None]
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()), dim=-1)
