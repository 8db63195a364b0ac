"""The interface of the engines that generate, and sampling with the built-in decoder.

Random numbers are per prompt instead of per engine where a call has seeds: the answers are then the same in any engine
and with any neighbours. The built-in engine computes each prompt once for its complete group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from trainer.models import ops
from trainer.models.ops import truncated_logprobs
from trainer.types import Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.models.decoder import Decoder

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn."""

    rollouts_per_prompt: int
    max_new_tokens: int
    temperature: float
    is_greedy: bool = False  # the likeliest token each time; the temperature then only scales the log-probabilities
    # Tokens are drawn among the `top_k` likeliest (0: all), and of these the fewest with a share of `top_p`; the
    # log-probabilities are those of that draw. A greedy answer reads neither.
    top_p: float = 1.0
    top_k: int = 0
    # One number per prompt, below 2**31, that alone decides its samples, whatever other prompts are in the call; empty:
    # the engine's own random numbers, in the order of its calls.
    seeds: tuple[int, ...] = ()


class Engine(Protocol):
    """Generates with its own weights, which change only through `load_weights`."""

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> list[tuple[Rollout, ...]]:
        """For each prompt, in order, `rollouts_per_prompt` answers; log-probabilities are those at the temperature."""

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over the values of the weights; keeps no reference to them."""

    def weights(self) -> Mapping[str, Tensor]:
        """The weights that the next answer will be drawn with, under the learner's names."""

    def sleep(self) -> None:
        """Releases device memory until `wake`; does nothing if the engine shares the learner's process and memory."""

    def wake(self) -> None:
        """Takes the memory back; the weights are to be received anew after it."""

    def random_state(self) -> Tensor:
        """The state of its random numbers."""

    def restore_random_state(self, state: Tensor) -> None:
        """Continues from a state that `random_state` gave."""


class LocalEngine:
    """What engines share whose model and random numbers are in this process."""

    _generator: torch.Generator

    def sleep(self) -> None:
        """Nothing: the weights stay, and caches live only within `generate`."""

    def wake(self) -> None:
        """Nothing: `sleep` released nothing."""

    def random_state(self) -> Tensor:
        return self._generator.get_state()

    def restore_random_state(self, state: Tensor) -> None:
        self._generator.set_state(state)


# The largest seed that every engine takes.
_LARGEST_SEED = 2**31 - 1


def new_seeds(count: int, generator: torch.Generator) -> tuple[int, ...]:
    """A seed for each of `count` prompts."""
    return tuple(torch.randint(_LARGEST_SEED, (count,), generator=generator).tolist())


def uniform(sampling: Sampling, num_prompts: int, *, dtype: torch.dtype, device: torch.device | str) -> Tensor | None:
    """A number from 0 to 1, the latter excluded, for each token of each answer [T, P*G]; None without seeds."""
    if not sampling.seeds or sampling.is_greedy:
        return None
    if len(sampling.seeds) != num_prompts:
        raise ValueError(f"{len(sampling.seeds)} seeds for {num_prompts} prompts")
    shape = (sampling.max_new_tokens, sampling.rollouts_per_prompt)
    numbers = [torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) for seed in sampling.seeds]
    return torch.cat(numbers, dim=1).to(device)


def sampling_logprobs(logits_RV: Tensor, sampling: Sampling) -> Tensor:
    """The log-probability of each token of being drawn; of a greedy answer that at the temperature."""
    top_p, top_k = (1.0, 0) if sampling.is_greedy else (sampling.top_p, sampling.top_k)
    return truncated_logprobs(logits_RV, sampling.temperature, top_p, top_k)


def pick(probs_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """The token of each row in whose interval of the cumulated probabilities the row's number falls.

    Intervals are half-open, so a token with probability 0 is never drawn.
    """
    bounds_RV = probs_RV.cumsum(dim=1)
    return (bounds_RV[:, :-1] <= uniform_R[:, None] * bounds_RV[:, -1:]).sum(dim=1)


def until_end(tokens: list[int], logprobs: list[float], end: int | None) -> Rollout:
    """One answer of the tokens up to the first end token, that included, or of all of them."""
    if end is None or end not in tokens:
        return Rollout(tuple(tokens), tuple(logprobs), Stop.LENGTH)
    length = tokens.index(end) + 1
    return Rollout(tuple(tokens[:length]), tuple(logprobs[:length]), Stop.END)


# Up to so many tokens, the bounds between their chances are exact enough to draw by, and faster.
_FEW_TOKENS = 1024


class BuiltinEngine(LocalEngine):
    """A decoder and the random generator of its samples."""

    def __init__(self, decoder: Decoder, *, end: int | None, seed: int) -> None:
        self._decoder = decoder.requires_grad_(False)
        self._parameters = dict(decoder.named_parameters())
        self._end = end
        weight = decoder.output_weight
        self._device, self._wide = weight.device, torch.promote_types(weight.dtype, torch.float32)
        self._generator = torch.Generator(device=self._device).manual_seed(seed)

    @torch.no_grad()
    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> list[tuple[Rollout, ...]]:
        """For each prompt, in order, its answers; rows that have ended leave the computation before long."""
        size = sampling.rollouts_per_prompt
        run = CachedGeneration(self._decoder, prompts, size, sampling.max_new_tokens)
        tokens_TB = torch.zeros(sampling.max_new_tokens, len(prompts) * size, dtype=torch.int64, device=self._device)
        logprobs_TB = torch.zeros(tokens_TB.shape, dtype=self._wide, device=self._device)
        rows_R = torch.arange(tokens_TB.shape[1], device=self._device)
        is_needed_R, is_compacted = torch.ones_like(rows_R, dtype=torch.bool), False
        uniform_TB = uniform(sampling, len(prompts), dtype=self._wide, device=self._device)
        logits_RV = run.start().repeat_interleave(size, dim=0)
        for step in range(sampling.max_new_tokens):
            uniform_R = None if uniform_TB is None else uniform_TB[step, rows_R]
            tokens_R, logprobs_R = self._sample_tokens(logits_RV, sampling, uniform_R)
            # A row that has ended is sampled further for a while; tokens after its end are ignored.
            if is_compacted:
                rows_N = rows_R[is_needed_R]
                tokens_TB[step, rows_N], logprobs_TB[step, rows_N] = tokens_R[is_needed_R], logprobs_R[is_needed_R]
            else:
                tokens_TB[step], logprobs_TB[step] = tokens_R, logprobs_R
            if step + 1 == sampling.max_new_tokens:
                break
            if self._end is not None:
                is_needed_R &= tokens_R != self._end
                if not bool(is_needed_R.any()):
                    break
                # Before the last step it costs more than it saves.
                compacted = run.compact(is_needed_R) if step + 2 < sampling.max_new_tokens else None
                if compacted is not None:
                    (slots_R, is_needed_R), is_compacted = compacted, True
                    rows_R, tokens_R = rows_R[slots_R], tokens_R[slots_R]
            logits_RV = run.step(tokens_R)
        pairs = zip(tokens_TB.T.tolist(), logprobs_TB.T.tolist(), strict=True)
        rollouts = [until_end(tokens, logprobs, self._end) for tokens, logprobs in pairs]
        return [tuple(rollouts[at : at + size]) for at in range(0, len(rollouts), size)]

    def _sample_tokens(self, logits_RV: Tensor, sampling: Sampling, uniform_R: Tensor | None) -> tuple[Tensor, Tensor]:
        """Each row's token and its log-probability at the temperature; `uniform_R` decides, if it is given."""
        logprobs_RV = sampling_logprobs(logits_RV.to(self._wide), sampling)
        tokens_R = logprobs_RV.argmax(dim=1) if sampling.is_greedy else self._pick(logprobs_RV.exp(), uniform_R)
        return tokens_R, logprobs_RV.gather(1, tokens_R[:, None]).squeeze(1)

    def _pick(self, probs_RV: Tensor, uniform_R: Tensor | None = None) -> Tensor:
        """A token of each row, as likely as its chance."""
        if uniform_R is not None:
            return pick(probs_RV, uniform_R)
        if probs_RV.shape[1] > _FEW_TOKENS:
            return torch.multinomial(probs_RV, 1, generator=self._generator).squeeze(1)
        # One random number a row, not one a token.
        uniform_R = torch.rand(len(probs_RV), generator=self._generator, dtype=self._wide, device=self._device)
        return pick(probs_RV, uniform_R)

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        torch._foreach_copy_(list(self._parameters.values()), [weights[name] for name in self._parameters])

    def weights(self) -> Mapping[str, Tensor]:
        return dict(self._parameters)


# The answers' keys get room for so many tokens at a time, and all of it is multiplied: products of contiguous keys need
# no copy, and where kernels are made for each shape few shapes arise.
_BLOCK = 16
# Moving the rows together copies their keys; it is done when at most this share of the slots is still needed.
_COMPACT_BELOW = 0.75


@dataclass(slots=True)
class _Cache:
    """Keys and values of a layer: of the prompts [P, K, S, D], of the answers [P, K, G, T, D]."""

    prompt: tuple[Tensor, Tensor]
    own: tuple[Tensor, Tensor]


class CachedGeneration:
    """Rows that are being generated, in P*G slots; the cache belongs to it alone. `start`, then `step` by step."""

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], group: int, max_new_tokens: int) -> None:
        self._decoder, self._weight = decoder, decoder.output_weight
        device = self._weight.device
        self._longest, self._group, self._done = max(len(prompt) for prompt in prompts), group, 0
        padded = [[*prompt, *[0] * (self._longest - len(prompt))] for prompt in prompts]
        self._prompts_PS = torch.tensor(padded, dtype=torch.int64, device=device)
        self._lengths_P = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64, device=device)
        self._is_pad_PS: Tensor | None = None
        if any(len(prompt) < self._longest for prompt in prompts):
            self._is_pad_PS = torch.arange(self._longest, device=device) >= self._lengths_P[:, None]
        self._cos, self._sin = decoder.angles(self._longest + max_new_tokens)
        self._caches: list[_Cache] = []

    @property
    def num_slots(self) -> int:
        return len(self._lengths_P) * self._group

    def start(self) -> Tensor:
        """Logits [P, V] of each prompt's first new token."""
        body, num_prompts = self._decoder.model, len(self._prompts_PS)
        x_NH = body.embed_tokens(self._prompts_PS.flatten())
        device = x_NH.device
        positions_N = torch.arange(self._longest, device=device).repeat(num_prompts)
        rotary = self._cos[positions_N], self._sin[positions_N]
        last_P = torch.arange(num_prompts, device=device) * self._longest + self._lengths_P - 1
        for layer in body.stack():
            queries, keys, values = ops.factors(*layer.self_attn.project(layer.input_layernorm(x_NH), rotary))
            prompt = self._add_cache(keys, values)
            if len(self._caches) < len(body.layers):
                mixed = ops.of_prompts(queries.view(num_prompts, -1, *queries.shape[1:]), *prompt).flatten(0, 1)
            else:
                mixed = ops.of_last(queries[last_P], *prompt, self._is_pad_PS)
                x_NH = x_NH[last_P]
            x_NH = layer.finish(x_NH, mixed.flatten(1))
        return ops.linear(body.norm(x_NH), self._weight)

    def _add_cache(self, keys_NKD: Tensor, values_NKD: Tensor) -> tuple[Tensor, Tensor]:
        num_prompts, (_, kv_heads, size) = len(self._prompts_PS), keys_NKD.shape
        keys, values = (
            each.reshape(num_prompts, -1, kv_heads, size).transpose(1, 2).contiguous()
            for each in (keys_NKD, values_NKD)
        )
        own = keys.new_empty(num_prompts, kv_heads, self._group, 0, size)
        self._caches.append(_Cache((keys, values), (own, own)))
        return keys, values

    def step(self, tokens_R: Tensor) -> Tensor:
        """Logits [R, V] of each slot's next token, after the ones just drawn."""
        decoder, shape = self._decoder, (len(self._lengths_P), self._group)
        if self._done % _BLOCK == 0:
            self._add_room()
        rotary, pads, like = self._rotary(), None, self._caches[0].own[0]
        if self._is_pad_PS is not None:
            pads = ops.pad_mask(self._is_pad_PS, decoder.shape.kv_heads, like)
        mask_T = like.new_zeros(like.shape[3])
        mask_T[self._done + 1 :] = -torch.inf
        x_RH = decoder.model.embed_tokens(tokens_R)
        for layer, cache in zip(decoder.model.stack(), self._caches, strict=True):
            queries, keys, values = ops.factors(*layer.self_attn.project(layer.input_layernorm(x_RH), rotary))
            for buffer, each in zip(cache.own, (keys, values), strict=True):
                buffer[:, :, :, self._done] = each.reshape(*shape, *each.shape[1:]).transpose(1, 2)
            mixed = self._mix(queries.view(*shape, *queries.shape[1:]), cache, mask_T, pads)
            x_RH = layer.finish(x_RH, mixed)
        self._done += 1
        return ops.linear(decoder.model.norm(x_RH), self._weight)

    def _rotary(self) -> tuple[Tensor, Tensor]:
        """Of the place that comes next in each slot; a single one where all prompts are equally long."""
        if self._is_pad_PS is None:
            at = slice(self._longest + self._done, self._longest + self._done + 1)
            return self._cos[at], self._sin[at]
        positions_R = self._lengths_P.repeat_interleave(self._group) + self._done
        return self._cos[positions_R], self._sin[positions_R]

    def _add_room(self) -> None:
        for cache in self._caches:
            room = cache.own[0].new_zeros(*cache.own[0].shape[:3], _BLOCK, cache.own[0].shape[4])
            cache.own = torch.cat((cache.own[0], room), dim=3), torch.cat((cache.own[1], room), dim=3)

    def _mix(self, queries_PGKRD: Tensor, cache: _Cache, mask_T: Tensor, pads: Tensor | None) -> Tensor:
        prompts, group, kv_heads, repeats, size = queries_PGKRD.shape
        queries = queries_PGKRD.transpose(1, 2).reshape(prompts * kv_heads, group * repeats, size)
        mixed = ops.two_parts(
            queries,
            (cache.own[0].flatten(0, 2), cache.own[1].flatten(0, 2)),
            (cache.prompt[0].flatten(0, 1), cache.prompt[1].flatten(0, 1)),
            own_mask=mask_T,
            prompt_mask=pads,
        )
        return mixed.view(prompts, kv_heads, group, repeats, size).transpose(1, 2).flatten(2).flatten(0, 1)

    def compact(self, is_needed_R: Tensor) -> tuple[Tensor, Tensor] | None:
        """Moves the rows still needed (some are) into fewer slots if that is worth it; None: they are not moved.

        Returns the old slot of each new one, and which of the new ones are needed: if fewer rows of a line are needed
        than of others, it is filled by repeating one of them.
        """
        is_needed_PG = is_needed_R.view(-1, self._group)
        counts_P = is_needed_PG.sum(1)
        lines, group, num_needed = counts_P.nonzero()[:, 0], int(counts_P.max()), int(counts_P.sum())
        if num_needed > _COMPACT_BELOW * self.num_slots:
            return None
        if num_needed <= _COMPACT_BELOW * len(lines) * group:
            # Some lines need many more slots than others: each row gets its own line, with a copy of its prompt.
            lines, order_P = is_needed_PG.nonzero().unbind(1)
            group, order_PG, is_needed_PG = 1, order_P[:, None], torch.ones_like(order_P[:, None], dtype=torch.bool)
        else:
            order_PG = torch.argsort(is_needed_PG[lines].int(), dim=1, descending=True, stable=True)[:, :group]
            is_needed_PG = torch.arange(group, device=lines.device) < counts_P[lines, None]
            order_PG = torch.where(is_needed_PG, order_PG, order_PG[:, :1])
        for cache in self._caches:
            cache.prompt = cache.prompt[0][lines], cache.prompt[1][lines]
            keys, values = (each[lines[:, None], :, order_PG].transpose(1, 2).contiguous() for each in cache.own)
            cache.own = keys, values
        slots_R = (lines[:, None] * self._group + order_PG).flatten()
        self._lengths_P, self._group = self._lengths_P[lines], group
        if self._is_pad_PS is not None:
            self._is_pad_PS = self._is_pad_PS[lines]
        return slots_R, is_needed_PG.flatten()
