"""The reference policy in a generator's process: frozen weights beside those of its engine, and their
log-probabilities.

`Reference` computes them like a reference in the learner; `cut` distributes a batch over generators, and `wrong`
validates a response.
"""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import torch

from trainer import models
from trainer.algorithms.packing import select
from trainer.engines.generator_client import ReferenceLogProbs
from trainer.weights import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.config import Config
    from trainer.models.decoder import Model
    from trainer.types import Batch

# A log-probability is at most 0, but for what rounding adds.
ROUNDING = 1e-4


class Reference:
    """A frozen policy. Its weights change only through `load_weights`, independently of those of an engine."""

    def __init__(self, model: Model, device: torch.device, *, temperature: float) -> None:
        self._model, self._device, self._temperature = model.requires_grad_(False), device, temperature
        self._mark: int | None = None  # None: not known since the weights have changed

    @torch.no_grad()
    def reference_logprobs(self, parts: Sequence[Batch]) -> ReferenceLogProbs:
        """How likely it holds the answers of each micro batch."""
        began = time.perf_counter()
        logprobs = []
        for part in parts:
            there = _moved(part, self._device)
            output = self._model.token_logprobs(there, temperature=self._temperature, with_entropy=False)
            logprobs.append(output.logprobs_BT.cpu())
        return ReferenceLogProbs(tuple(logprobs), self.mark, time.perf_counter() - began)

    @property
    def mark(self) -> int:
        """The `fingerprint` of its weights."""
        if self._mark is None:
            self._mark = fingerprint(self._model.named_parameters())
        return self._mark

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over the values: where the run began elsewhere than its settings say."""
        self._mark = None
        for name, own in self._model.named_parameters():
            own.copy_(weights[name])

    def weights(self) -> Mapping[str, Tensor]:
        return dict(self._model.named_parameters())


def start(config: Config, vocabulary_size: int, device: torch.device, *, seed: int) -> Reference:
    """With the weights that the policy starts with, adapters left out. Raises BadSetting."""
    model = models.build(config, vocabulary_size, seed=seed, device=device, is_adapted=False)
    return Reference(model, device, temperature=config.rollout.temperature)


def cut(batch: Batch, count: int, rows_at_once: int) -> list[list[Tensor]]:
    """The rows of each micro batch of each of `count` shares; a share may have none.

    A share has as many prompts as another, or one more or less, and micro batches of `rows_at_once` rows, 0: one. With
    one share they are the learner's own. A micro batch without any token is left out.
    """
    num_prompts, prompt_of_B = len(batch.prompts_PS), batch.prompt_of_B
    shares = []
    for at in range(count):
        first, end = num_prompts * at // count, num_prompts * (at + 1) // count
        rows = ((prompt_of_B >= first) & (prompt_of_B < end)).nonzero().squeeze(1)
        parts = torch.split(rows, rows_at_once or max(1, len(rows)))
        shares.append([part for part in parts if len(part) and int(batch.lengths_B[part].max())])
    return shares


def asked(batch: Batch, rows: Tensor) -> Batch:
    """What is sent of some rows: on the CPU, without what a reference does not read."""
    part = select(batch, rows)
    bare = replace(part, rollout_logprobs_BT=part.rollout_logprobs_BT[:0], rewards_B=part.rewards_B[:0])
    return _moved(replace(bare, baselines_B=None, parts_BK=None), torch.device("cpu"))


def wrong(found: ReferenceLogProbs, parts: Sequence[Batch]) -> str | None:
    """The reason why a reference's response is invalid; None if it is valid."""
    shapes, expected = ([tuple(each.shape) for each in some] for some in (found.logprobs, [p.tokens_BT for p in parts]))
    if shapes != expected:
        got, needed = _shapes_text(shapes), _shapes_text(expected)
        return f"gave log-probabilities of the reference policy for {got} tokens, not {needed}"
    for each in found.logprobs:
        if not bool(torch.isfinite(each).all()):
            value = float(each[~torch.isfinite(each)][0])
            return f"gave {value} as a log-probability of the reference policy"
        if each.numel() and float(each.max()) > ROUNDING:
            return f"gave {float(each.max())} as a log-probability of the reference policy"
    return None


def _shapes_text(shapes: Sequence[tuple[int, ...]]) -> str:
    """Example: [(4, 3), (2, 3)] -> `4 x 3 and 2 x 3`"""
    return " and ".join(" x ".join(map(str, shape)) for shape in shapes) or "no"


def _moved(batch: Batch, device: torch.device) -> Batch:
    tensors = {each.name: getattr(batch, each.name) for each in fields(batch)}
    return replace(batch, **{name: each.detach().to(device) for name, each in tensors.items() if each is not None})
