"""Sampling with the built-in decoder: each prompt is computed once for its complete group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.engines.sampling import pick, uniform
from trainer.models.generation import Run
from trainer.types import Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.engines.base import Sampling, Tokens
    from trainer.models.decoder import Decoder


# Up to so many tokens, the bounds between their chances are exact enough to draw by, and faster.
_FEW_TOKENS = 1024


class Sampler:
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
        run = Run(self._decoder, prompts, size, sampling.max_new_tokens)
        tokens_TB = torch.zeros(sampling.max_new_tokens, len(prompts) * size, dtype=torch.int64, device=self._device)
        logprobs_TB = torch.zeros(tokens_TB.shape, dtype=self._wide, device=self._device)
        rows_R = torch.arange(tokens_TB.shape[1], device=self._device)
        is_needed_R, is_moved = torch.ones_like(rows_R, dtype=torch.bool), False
        chances_TB = uniform(sampling, len(prompts), dtype=self._wide, device=self._device)
        logits_RV = run.start().repeat_interleave(size, dim=0)
        for step in range(sampling.max_new_tokens):
            chance_R = None if chances_TB is None else chances_TB[step, rows_R]
            drawn_R, chosen_R = self._draw(logits_RV, sampling, chance_R)
            # A row that has ended is sampled further for a while; tokens after its end are ignored.
            if is_moved:
                rows_N = rows_R[is_needed_R]
                tokens_TB[step, rows_N], logprobs_TB[step, rows_N] = drawn_R[is_needed_R], chosen_R[is_needed_R]
            else:
                tokens_TB[step], logprobs_TB[step] = drawn_R, chosen_R
            if step + 1 == sampling.max_new_tokens:
                break
            if self._end is not None:
                is_needed_R &= drawn_R != self._end
                if not bool(is_needed_R.any()):
                    break
                # Before the last step it costs more than it saves.
                moved = run.compact(is_needed_R) if step + 2 < sampling.max_new_tokens else None
                if moved is not None:
                    (slots_R, is_needed_R), is_moved = moved, True
                    rows_R, drawn_R = rows_R[slots_R], drawn_R[slots_R]
            logits_RV = run.step(drawn_R)
        pairs = zip(tokens_TB.T.tolist(), logprobs_TB.T.tolist(), strict=True)
        rollouts = [_until_end(tokens, logprobs, self._end) for tokens, logprobs in pairs]
        return [tuple(rollouts[at : at + size]) for at in range(0, len(rollouts), size)]

    def _draw(self, logits_RV: Tensor, sampling: Sampling, chance_R: Tensor | None) -> tuple[Tensor, Tensor]:
        """Each row's token and its log-probability at the temperature; `chance_R` decides, if it is given."""
        logits_RV = logits_RV.to(self._wide)
        if sampling.temperature != 1.0:
            logits_RV = logits_RV / sampling.temperature
        logprobs_RV = torch.log_softmax(logits_RV, dim=-1)
        drawn_R = logprobs_RV.argmax(dim=1) if sampling.is_greedy else self._pick(logprobs_RV.exp(), chance_R)
        return drawn_R, logprobs_RV.gather(1, drawn_R[:, None]).squeeze(1)

    def _pick(self, chances_RV: Tensor, chance_R: Tensor | None = None) -> Tensor:
        """A token of each row, as likely as its chance."""
        if chance_R is not None:
            return pick(chances_RV, chance_R)
        if chances_RV.shape[1] > _FEW_TOKENS:
            return torch.multinomial(chances_RV, 1, generator=self._generator).squeeze(1)
        # One random number a row, not one a token.
        uniform_R = torch.rand(len(chances_RV), generator=self._generator, dtype=self._wide, device=self._device)
        return pick(chances_RV, uniform_R)

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        torch._foreach_copy_(list(self._parameters.values()), [weights[name] for name in self._parameters])

    def weights(self) -> Mapping[str, Tensor]:
        return dict(self._parameters)

    def sleep(self) -> None:
        """Nothing: the weights share the learner's memory, and buffers live only within `generate`."""

    def wake(self) -> None:
        """Nothing: `sleep` gave nothing up."""

    def random_state(self) -> Tensor:
        return self._generator.get_state()

    def restore_random_state(self, state: Tensor) -> None:
        self._generator.set_state(state)


def _until_end(tokens: list[int], logprobs: list[float], end: int | None) -> Rollout:
    if end is None or end not in tokens:
        return Rollout(tuple(tokens), tuple(logprobs), Stop.LENGTH)
    length = tokens.index(end) + 1
    return Rollout(tuple(tokens[:length]), tuple(logprobs[:length]), Stop.END)
