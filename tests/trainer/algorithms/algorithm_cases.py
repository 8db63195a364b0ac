"""The algorithms on plain values, for tests: estimators by name, log-probabilities of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trainer.algorithms.advantages import Advantages, EstimatorInputs, Settings
from trainer.models import gradients
from trainer.registry import ESTIMATORS, find

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.algorithms.conventions import Convention


def advantages(name: str, scores: EstimatorInputs, convention: Convention, **settings: Any) -> Advantages:
    """By the estimator of that name."""
    made: Advantages = find(ESTIMATORS, name)(scores, convention, settings=Settings(**settings))
    return made


def token_logprobs(
    logits_BTV: Tensor, tokens_BT: Tensor, *, temperature: float = 1.0, with_entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """The log-probability of each token and the entropy of its distribution, both [B, T], of given logits."""
    vocabulary = logits_BTV.shape[-1]
    logprobs_N, entropy_N = gradients.token_logprobs(
        logits_BTV.reshape(-1, vocabulary),
        torch.eye(vocabulary, dtype=logits_BTV.dtype),
        source_C=torch.arange(tokens_BT.numel()),
        target_C=tokens_BT.reshape(-1),
        temperature=temperature,
        with_entropy=with_entropy,
    )
    return logprobs_N.view(tokens_BT.shape), entropy_N.view(tokens_BT.shape)
