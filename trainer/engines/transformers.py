"""Sampling with `generate` of any causal model of the package transformers.

The tokens are sampled here, by a logits processor that leaves `generate` only one choice: `generate` itself samples
from torch's global generator, which a checkpoint cannot save separately, and returns log-probabilities only with the
logits of the complete vocabulary for every token (20 GB for 128 answers of 256 tokens and 152 k vocabulary). Prompts
are padded on the left, as `generate` requires; a prompt is computed once for its group.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.config import BadSetting
from trainer.engines.engine import LocalEngine, pick, sampling_logprobs, uniform, until_end
from trainer.models.pretrained import causal_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.engines.engine import Sampling, Tokens
    from trainer.engines.generator_client import EngineSpec
    from trainer.types import Rollout


class SamplingProcessor:
    """A logits processor: draws each row's token, notes its log-probability, and forbids all others."""

    def __init__(self, sampling: Sampling, generator: torch.Generator, uniform_TB: Tensor | None) -> None:
        self._sampling = sampling
        self._generator = generator
        self._chances_TB = uniform_TB  # they decide instead of the generator, if they are given
        self.logprobs: list[Tensor] = []  # [B] for each step

    def __call__(self, tokens_BT: Tensor, logits_BV: Tensor) -> Tensor:
        logprobs_BV = sampling_logprobs(logits_BV.float(), self._sampling)
        if self._sampling.is_greedy:
            chosen_B = logprobs_BV.argmax(dim=1)
        elif self._chances_TB is not None:
            chosen_B = pick(logprobs_BV.exp(), self._chances_TB[len(self.logprobs)])
        else:
            chosen_B = torch.multinomial(logprobs_BV.exp(), 1, generator=self._generator).squeeze(1)
        self.logprobs.append(logprobs_BV.gather(1, chosen_B[:, None]).squeeze(1))
        return torch.full_like(logits_BV, -torch.inf).scatter(1, chosen_B[:, None], 0.0)


class Generator(LocalEngine):
    """A model and the random numbers of its samples."""

    def __init__(self, model: Any, *, end: int | None, pad: int, seed: int) -> None:
        from transformers import GenerationConfig

        self._model = model.eval().requires_grad_(False)
        # A model's folder may set a repetition penalty or the like, which would change the sampled policy.
        self._model.generation_config = GenerationConfig(do_sample=False, eos_token_id=end, pad_token_id=pad)
        self._end, self._pad = end, pad
        self._device = next(model.parameters()).device
        self._generator = torch.Generator(device=self._device).manual_seed(seed)

    @torch.no_grad()
    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> list[tuple[Rollout, ...]]:
        size, longest = sampling.rollouts_per_prompt, max(len(prompt) for prompt in prompts)
        padded = [[*[self._pad] * (longest - len(prompt)), *prompt] for prompt in prompts]
        places = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        tokens_PS = torch.tensor(padded, dtype=torch.int64, device=self._device)
        mask_PS = torch.tensor(places, dtype=torch.int64, device=self._device)
        uniform_TB = uniform(sampling, len(prompts), dtype=torch.float32, device=self._device)
        processor = SamplingProcessor(sampling, self._generator, uniform_TB)
        whole_BT = self._model.generate(
            tokens_PS.repeat_interleave(size, dim=0),
            attention_mask=mask_PS.repeat_interleave(size, dim=0),
            past_key_values=self._computed(tokens_PS, mask_PS, size),
            max_new_tokens=sampling.max_new_tokens,
            logits_processor=[processor],
        )
        answers, logprobs = whole_BT[:, longest:].tolist(), torch.stack(processor.logprobs, dim=1).tolist()
        rollouts = [until_end(row, values, self._end) for row, values in zip(answers, logprobs, strict=True)]
        return [tuple(rollouts[at : at + size]) for at in range(0, len(rollouts), size)]

    def _computed(self, tokens_PS: Tensor, mask_PS: Tensor, size: int) -> Any:
        """The cache of all of the prompts but their last token, `size` copies of each; None if there is no more.

        `generate` feeds the last token itself, to get the first logits.
        """
        if size == 1 or tokens_PS.shape[1] == 1:
            return None
        positions_PS = (mask_PS.cumsum(dim=1) - 1).clamp(min=0)
        cache = self._model(
            tokens_PS[:, :-1], attention_mask=mask_PS[:, :-1], position_ids=positions_PS[:, :-1], use_cache=True
        ).past_key_values
        cache.batch_repeat_interleave(size)
        return cache

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copies by name; names that the model does not have (a second name of a tied weight) are left out."""
        own = dict(self._model.named_parameters())
        missing = own.keys() - weights.keys()
        if missing:
            raise ValueError(f"the new weights lack {', '.join(sorted(missing))}")
        for name, parameter in own.items():
            parameter.copy_(weights[name])

    def weights(self) -> Mapping[str, Tensor]:
        return dict(self._model.named_parameters())


def start(order: EngineSpec, device: torch.device, *, seed: int) -> Generator:
    """The engine of the model in the folder `path`. Raises BadSetting if the folder or the package is missing."""
    config = order.config
    if not config.model.path:
        raise BadSetting(
            "engine=transformers needs path=FOLDER: the built-in decoder has an engine of its own, builtin"
        )
    model = causal_model(Path(config.model.path), getattr(torch, config.run.dtype)).to(device)
    return Generator(model, end=order.tokenizer.end, pad=order.tokenizer.pad, seed=seed)
