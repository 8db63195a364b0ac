"""A slow, obvious decoder on one plain row, and batches of unequal rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from trainer.algorithms.packing import make_batch
from trainer.models import fill
from trainer.models.decoder import Decoder, Shape
from trainer.types import Group, Prompt, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.models.decoder import Model
    from trainer.types import Batch

VOCABULARY, PAD, END = 19, 17, 18
QWEN2 = Shape(vocabulary=VOCABULARY, hidden=16, layers=2, heads=4, kv_heads=2, head_size=4, intermediate=24)
QWEN3 = Shape(
    vocabulary=VOCABULARY,
    hidden=16,
    layers=3,
    heads=4,
    kv_heads=1,
    head_size=6,
    intermediate=24,
    rope_base=500.0,
    norm_epsilon=1e-5,
    is_tied=False,
    is_qwen3=True,
)


def decoder(shape: Shape = QWEN2, dtype: torch.dtype = torch.float64, *, seed: int = 0) -> Decoder:
    """Every weight random, biases and norms too, so that leaving one out would show."""
    made = Decoder(shape).to(dtype)
    fill(made, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return made


def batch_of(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], *, seed: int = 0, words: bool = False
) -> Batch:
    """Random tokens: prompts of these lengths, answers to each of these lengths; `words`: some are an environment's."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(16, (length,), generator=generator).tolist())

    def rollout(length: int) -> Rollout:
        said = tuple(not words or at % 3 != 1 for at in range(length))
        return Rollout((*tokens(length - 1), END), (-1.0,) * length, Stop.END, said)

    groups = [
        Group(Prompt("", tokens(length), ""), tuple(rollout(each) for each in lengths))
        for (length,), lengths in zip(prompts, answers, strict=True)
    ]
    rows = [rollout for group in groups for rollout in group.rollouts]
    return make_batch(groups, torch.zeros(1, len(rows), dtype=torch.float64), pad=PAD)


UNEVEN = [[3], [1], [6]], [[4, 1, 6], [2], [5, 5]]
EVEN = [[5], [5]], [[4, 4, 4], [4, 4, 4]]
SINGLE_TOKENS = [[2], [4]], [[1, 1], [1]]


def naive_logits(weights: Mapping[str, Tensor], shape: Shape, tokens: Sequence[int]) -> Tensor:
    """Logits [L, V] of one row, head by head, with every score written out."""
    x = weights["model.embed_tokens.weight"][torch.tensor(tokens)]
    for layer in range(shape.layers):
        own = {
            name.removeprefix(f"model.layers.{layer}."): weight
            for name, weight in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        x = x + _attend(own, shape, _norm(x, own["input_layernorm.weight"], shape)) @ own["self_attn.o_proj.weight"].T
        y = _norm(x, own["post_attention_layernorm.weight"], shape)
        gate, up = y @ own["mlp.gate_proj.weight"].T, y @ own["mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ own["mlp.down_proj.weight"].T
    head = weights["model.embed_tokens.weight"] if shape.is_tied else weights["lm_head.weight"]
    return _norm(x, weights["model.norm.weight"], shape) @ head.T


def _norm(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + shape.norm_epsilon).sqrt() * weight


def _attend(own: Mapping[str, Tensor], shape: Shape, x: Tensor) -> Tensor:
    size, repeats = shape.head_size, shape.heads // shape.kv_heads

    def head(kind: str, number: int) -> Tensor:
        rows = slice(number * size, (number + 1) * size)
        made = x @ own[f"self_attn.{kind}_proj.weight"][rows].T
        if not shape.is_qwen3:
            made = made + own[f"self_attn.{kind}_proj.bias"][rows]
        elif kind != "v":
            made = _norm(made, own[f"self_attn.{kind}_norm.weight"], shape)
        return made

    places, planes = torch.arange(len(x), dtype=torch.float64), torch.arange(size // 2, dtype=torch.float64)
    angles = places[:, None] * shape.rope_base ** (-2 * planes / size)

    def turn(each: Tensor) -> Tensor:
        a, b = each[:, : size // 2], each[:, size // 2 :]
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)

    mixed = []
    for number in range(shape.heads):
        queries, keys = turn(head("q", number)), turn(head("k", number // repeats))
        scores = queries @ keys.T / size**0.5
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        mixed.append(torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1) @ head("v", number // repeats))
    return torch.cat(mixed, dim=-1)


def naive_score(made: Decoder, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [B, T] of the masked tokens, each row computed alone and whole; 0 elsewhere."""
    weights, logprobs, entropies = dict(made.named_parameters()), [], []
    for row in range(len(batch.tokens_BT)):
        prompt = int(batch.prompt_of_B[row])
        question = batch.prompts_PS[prompt, : int(batch.prompt_lengths_P[prompt])].tolist()
        answer = batch.tokens_BT[row, : int(batch.lengths_B[row])].tolist()
        logits = naive_logits(weights, made.shape, [*question, *answer])[len(question) - 1 : -1]
        every = torch.log_softmax(logits / temperature, dim=-1)
        own = every[torch.arange(len(answer)), torch.tensor(answer)]
        room = (0, batch.tokens_BT.shape[1] - len(answer))
        logprobs.append(functional.pad(own, room))
        entropies.append(functional.pad(-(every.exp() * every).sum(-1), room))
    return tuple(torch.where(batch.mask_BT, torch.stack(each), 0.0) for each in (logprobs, entropies))  # type: ignore[return-value]


def gradients(made: Model, logprobs_BT: Tensor, entropy_BT: Tensor) -> dict[str, Tensor]:
    """Of an uneven sum of both, so that no two places have the same share."""
    shares = torch.linspace(-1.0, 2.0, logprobs_BT.numel(), dtype=logprobs_BT.dtype).view_as(logprobs_BT)
    parameters = {name: each for name, each in made.named_parameters() if each.requires_grad}
    loss = (shares * logprobs_BT).sum() + (shares.flip(0) * entropy_BT).sum()
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
