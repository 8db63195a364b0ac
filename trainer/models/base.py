"""The interface of a model for the trainer: a module that gives the log-probabilities of answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

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
