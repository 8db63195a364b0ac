"""Supervised steps: the likelihood of given answers goes up. Shared by the warm start and by fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainer.algorithms.losses import masked_sum
from trainer.algorithms.optimizer import Optimizer
from trainer.algorithms.packing import pack, select
from trainer.distributed import World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.models.base import Model
    from trainer.sections import Optim
    from trainer.types import Batch, Group


@dataclass(frozen=True, slots=True)
class SFTStep:
    """The metrics of a step, over all ranks."""

    loss: float  # before the step: minus the log-probability, the mean over the tokens to be learnt
    grad_norm: float  # before clipping
    num_tokens: int  # that were to be learnt


class SFTLearner:
    """A model and its optimizer; if there are adapters, only these are trained."""

    def __init__(
        self, model: Model, optim: Optim, *, pad: int, device: torch.device, world: World | None = None
    ) -> None:
        self.model, self._optim, self._pad, self._device = model, optim, pad, device
        self._world = world or World.single()
        self._optimizer = Optimizer.start(
            model.named_parameters(), weight_decay=optim.weight_decay, add=self._world.all_reduce_sum
        )

    def step(self, groups: Sequence[Group], *, lr: float) -> SFTStep:
        """One optimizer step on this rank's answers.

        Denominator: the tokens with a loss of the complete step, over all ranks and micro batches.
        """
        self._optimizer.zero_grad()
        batch = self._batch(groups)
        num_tokens = self._world.all_reduce_sum(batch.mask_BT.sum()).clamp(min=1)
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        parts = self._parts(batch)
        with self._optimizer.accumulating(len(parts)):
            for rows in parts:
                share = self._nll(select(batch, rows)) / num_tokens
                share.backward()  # type: ignore[no-untyped-call]
                loss += share.detach()
        self._world.all_reduce_gradients(self._optimizer.parameters.values())
        norm = self._optimizer.step(lr=lr, grad_clip=self._optim.grad_clip)
        return SFTStep(float(self._world.all_reduce_sum(loss)), norm, int(num_tokens))

    @torch.no_grad()
    def nll(self, groups: Sequence[Group]) -> tuple[float, int]:
        """Minus the summed log-probability of the tokens to be learnt, and how many they are; of this rank alone."""
        batch = self._batch(groups)
        total = sum(float(self._nll(select(batch, rows))) for rows in self._parts(batch))
        return total, int(batch.mask_BT.sum())

    def _nll(self, part: Batch) -> Tensor:
        scored = self.model.score(part, temperature=1.0, with_entropy=False)
        return -masked_sum(scored.logprobs_BT, part.mask_BT)

    def _batch(self, groups: Sequence[Group]) -> Batch:
        return pack(groups, torch.zeros(len(groups), 1, device=self._device), pad=self._pad)

    def _parts(self, batch: Batch) -> tuple[Tensor, ...]:
        rows = torch.arange(len(batch.tokens_BT), device=self._device)
        return torch.split(rows, self._optim.micro_batch_rows or len(rows))

    def state(self) -> dict[str, Any]:
        """All that the next step depends on, by reference."""
        return self._optimizer.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state that `state` gave; copies the values."""
        self._optimizer.restore(state)
