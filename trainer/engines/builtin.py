"""Sampling with the built-in decoder: each prompt is computed once for its whole group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.model import Cache, Decoder
from trainer.types import Group, Prompt, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.engines.base import Sampling


class Sampler:
    """A decoder of its own, and a generator that decides its draws."""

    def __init__(self, decoder: Decoder, *, end: int, seed: int) -> None:
        self._decoder = decoder.requires_grad_(False)
        self._end = end
        self._device = next(decoder.parameters()).device
        self._generator = torch.Generator(device=self._device).manual_seed(seed)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Group]:
        """Prompts of one length are computed together: then no prompt needs padding."""
        by_length: dict[int, list[int]] = {}
        for index, prompt in enumerate(prompts):
            by_length.setdefault(len(prompt.tokens), []).append(index)
        rollouts: dict[int, tuple[Rollout, ...]] = {}
        for indices in by_length.values():
            made = self._rollouts([prompts[index].tokens for index in indices], sampling)
            size = sampling.rollouts_per_prompt
            rollouts |= {index: tuple(made[at * size : (at + 1) * size]) for at, index in enumerate(indices)}
        return [Group(prompt, rollouts[index]) for index, prompt in enumerate(prompts)]

    @torch.no_grad()
    def _rollouts(self, prompts: Sequence[tuple[int, ...]], sampling: Sampling) -> list[Rollout]:
        cache = Cache()
        logits_PV = self._decoder(torch.tensor(prompts, device=self._device), cache)[:, -1]
        cache.repeat(sampling.rollouts_per_prompt)
        logits_BV = logits_PV.repeat_interleave(sampling.rollouts_per_prompt, dim=0)
        tokens: list[Tensor] = []
        logprobs: list[Tensor] = []
        is_done_B = torch.zeros(len(logits_BV), dtype=torch.bool, device=self._device)
        for _ in range(sampling.max_new_tokens):
            if tokens:
                logits_BV = self._decoder(tokens[-1].unsqueeze(1), cache)[:, -1]
            all_BV = torch.log_softmax(logits_BV / sampling.temperature, dim=-1)
            tokens.append(self._draw(all_BV, is_greedy=sampling.is_greedy))
            logprobs.append(all_BV.gather(1, tokens[-1].unsqueeze(1)).squeeze(1))
            is_done_B |= tokens[-1] == self._end
            if bool(is_done_B.all()):
                break
        # Rows that are done go on being computed with the others; what they say after the end is cut off here.
        pairs = zip(torch.stack(tokens, dim=1).tolist(), torch.stack(logprobs, dim=1).tolist(), strict=True)
        return [_until_end(row, values, self._end) for row, values in pairs]

    def _draw(self, logprobs_BV: Tensor, *, is_greedy: bool) -> Tensor:
        if is_greedy:
            return logprobs_BV.argmax(dim=1)
        return torch.multinomial(logprobs_BV.exp(), 1, generator=self._generator).squeeze(1)

    @torch.no_grad()
    def receive(self, weights: Mapping[str, Tensor]) -> None:
        for name, own in self._decoder.named_parameters():
            own.copy_(weights[name])

    def weights(self) -> Mapping[str, Tensor]:
        return dict(self._decoder.named_parameters())

    def random_state(self) -> Tensor:
        return self._generator.get_state()

    def restore_random_state(self, state: Tensor) -> None:
        self._generator.set_state(state)


def _until_end(tokens: list[int], logprobs: list[float], end: int) -> Rollout:
    if end not in tokens:
        return Rollout(tuple(tokens), tuple(logprobs), Stop.LENGTH)
    length = tokens.index(end) + 1
    return Rollout(tuple(tokens[:length]), tuple(logprobs[:length]), Stop.END)
