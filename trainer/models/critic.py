"""The critic of PPO: a decoder's body with one number per place instead of logits, and what trains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainer import models
from trainer.algorithms.losses import masked_sum
from trainer.algorithms.optimizer import Optimizer
from trainer.algorithms.packing import select
from trainer.config import BadSetting
from trainer.models.decoder import Decoder
from trainer.models.layout import lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.config import Config
    from trainer.types import Batch


@dataclass(frozen=True, slots=True)
class ValueLosses:
    """Both [B, T]; 0 and false where the mask is off."""

    losses_BT: Tensor
    is_clipped_BT: Tensor  # the clipped term is the larger one


def value_loss(values_BT: Tensor, returns_BT: Tensor, old_BT: Tensor, mask_BT: Tensor, *, clip: float) -> ValueLosses:
    """Half the squared error; the larger one of the value and the value clipped to within `clip` of the old one.

    `old_BT` is the critic's value before this batch; a clip of 0: none. Gradient flows into `values_BT`.
    Source: PPO as in verl core_algos.compute_value_loss and ROLL's CriticWorker.
    Example: value 2, return 0, old 0.5, clip 0.5 -> max(4, 1) / 2 = 2
    """
    values_BT = torch.where(mask_BT, values_BT, 0.0)
    returns_BT = torch.where(mask_BT, returns_BT, 0.0)
    error_BT = (values_BT - returns_BT).square()
    if not clip:
        return ValueLosses(0.5 * error_BT, torch.zeros_like(mask_BT))
    old_BT = torch.where(mask_BT, old_BT, 0.0)
    clamped_BT = torch.maximum(torch.minimum(values_BT, old_BT + clip), old_BT - clip)
    clamped_error_BT = (clamped_BT - returns_BT).square()
    return ValueLosses(0.5 * torch.maximum(error_BT, clamped_error_BT), mask_BT & (clamped_error_BT > error_BT))


class ValueModel(nn.Module):
    """A decoder whose output layer is not used; the value head starts at 0."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        weight = decoder.output_weight
        decoder.lm_head = None
        self.decoder = decoder
        self.score = nn.Parameter(torch.zeros(decoder.shape.hidden, dtype=weight.dtype, device=weight.device))

    def forward(self, batch: Batch) -> Tensor:
        """The value [B, T] of the state before each masked token; 0 elsewhere, float32 at least."""
        layout = lay_out(batch)
        hidden_MH = self.decoder.hidden(layout)
        if layout.source_M is not None:
            hidden_MH = hidden_MH[layout.source_M]
        values_M = (hidden_MH @ self.score).to(torch.promote_types(hidden_MH.dtype, torch.float32))
        empty = values_M.new_zeros(batch.mask_BT.numel())
        return empty.index_copy(0, layout.place_C, values_M[layout.source_C]).view_as(batch.mask_BT)


class Critic:
    """A value model with its optimizer; one optimizer step per batch, at a learning rate that stays."""

    def __init__(self, model: ValueModel, config: Config) -> None:
        self._model, self._optim = model, config.optim
        self._optimizer = Optimizer.start(model.named_parameters(), weight_decay=config.optim.weight_decay)

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor:
        """Values [B, T] before each masked token; 0 elsewhere."""
        values_BT = torch.zeros_like(batch.mask_BT, dtype=torch.promote_types(self._model.score.dtype, torch.float32))
        for rows in self._parts(batch):
            part_BT = self._model(select(batch, rows))
            values_BT[rows, : part_BT.shape[1]] = part_BT
        return values_BT

    def update(self, batch: Batch, old_BT: Tensor, returns_BT: Tensor) -> float:
        """One optimizer step towards the returns; gives back the loss before it, the mean over the masked tokens."""
        self._optimizer.zero_grad()
        num_tokens = batch.mask_BT.sum().clamp(min=1)
        parts = self._parts(batch)
        with self._optimizer.accumulating(len(parts)):
            losses = [self._backward(batch, rows, old_BT, returns_BT, num_tokens) for rows in parts]
        self._optimizer.step(lr=self._optim.critic_lr, grad_clip=self._optim.grad_clip)
        return float(torch.stack(losses).sum())

    def _backward(self, batch: Batch, rows: Tensor, old_BT: Tensor, returns_BT: Tensor, num_tokens: Tensor) -> Tensor:
        part = select(batch, rows)
        values_BT, width = self._model(part), part.tokens_BT.shape[1]
        losses = value_loss(
            values_BT, returns_BT[rows, :width], old_BT[rows, :width], part.mask_BT, clip=self._optim.value_clip
        )
        loss = masked_sum(losses.losses_BT, part.mask_BT) / num_tokens
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _parts(self, batch: Batch) -> tuple[Tensor, ...]:
        rows = torch.arange(len(batch.tokens_BT), device=batch.tokens_BT.device)
        return torch.split(rows, self._optim.micro_batch_rows or len(rows))

    def state(self) -> dict[str, Any]:
        """All that the next update depends on, by reference."""
        return self._optimizer.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state that `state` gave; copies the values."""
        self._optimizer.restore(state)


def build(config: Config, vocabulary_size: int, *, seed: int, device: torch.device) -> Critic:
    """A critic with a body like the policy's, from the same folder or the same random start; all of it learns.

    Raises BadSetting for a folder that the built-in decoder cannot read.
    """
    settings, dtype = config.model, getattr(torch, config.run.dtype)
    if not settings.path:
        return Critic(ValueModel(models.from_random(settings, vocabulary_size, dtype, seed)).to(device), config)
    decoder = models.from_folder(settings, vocabulary_size, dtype)
    if not isinstance(decoder, Decoder):
        raise BadSetting(f"estimator=gae needs a qwen2 or qwen3 model, which path={settings.path} is not")
    return Critic(ValueModel(decoder).to(device), config)
