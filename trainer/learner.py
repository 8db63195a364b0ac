"""The trained policy: recomputes log-probabilities, takes optimizer steps, gives its weights and its state.

A batch is cut into mini batches (one optimizer step each) and those into micro batches (one forward pass each). Sums
are divided by the number of tokens of the whole mini batch, so the gradient does not depend on the second cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainer.algorithms.adamw import AdamW
from trainer.algorithms.kl import ESTIMATORS
from trainer.algorithms.losses import Clip, masked_sum, policy_loss, token_logprobs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainer.config import Config
    from trainer.types import Batch


@dataclass(frozen=True, slots=True)
class Update:
    """What a batch did, averaged over its optimizer steps unless said; per-token means are over the masked tokens."""

    loss: float
    policy_loss: float
    kl: float  # from the reference policy, by the configured estimator
    entropy: float
    clip_fraction: float
    ratio_mean: float
    ratio_max: float  # of all optimizer steps
    grad_norm: float  # before clipping
    lr: float  # of the last optimizer step
    sampler_learner_logprob_diff_max: float  # before the first optimizer step


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What stays the same while a batch is learnt: its targets without the first column, which nothing predicts."""

    tokens_BT: Tensor  # with the first column: input and target
    mask_BT: Tensor
    old_BT: Tensor
    reference_BT: Tensor
    advantages_B: Tensor

    def rows(self, index_B: Tensor) -> _Fixed:
        return _Fixed(
            self.tokens_BT[index_B],
            self.mask_BT[index_B],
            self.old_BT[index_B],
            self.reference_BT[index_B],
            self.advantages_B[index_B],
        )


class Learner:
    """Owns the policy, its frozen reference, the optimizer's moments and the order of rows."""

    def __init__(self, decoder: nn.Module, reference: nn.Module, config: Config, *, seed: int) -> None:
        self._decoder = decoder
        self._reference = reference.requires_grad_(False)
        self._config = config
        self._parameters = dict(decoder.named_parameters())
        self._optimizer = AdamW.start(self._parameters, weight_decay=config.weight_decay)
        self._clip = Clip(config.clip_low, config.clip_high, config.dual_clip or None)
        self._generator = torch.Generator().manual_seed(seed)
        self.updates = 0

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._parameters.values())

    def weights(self) -> Mapping[str, Tensor]:
        return self._parameters

    def lr(self) -> float:
        """The learning rate of the next optimizer step: from the configured one down to 0, linearly."""
        total = self._config.steps * self._config.mini_batches
        return self._config.lr * max(0.0, 1.0 - self.updates / total)

    def update(self, batch: Batch) -> Update:
        """Takes the batch's optimizer steps; the old policy is the one before the first of them."""
        fixed = self._fix(batch)
        sampled_BT = batch.sampler_logprobs_BT[:, 1:]
        gap_BT = torch.where(fixed.mask_BT, (sampled_BT - fixed.old_BT).abs(), torch.zeros_like(sampled_BT))
        done = [self._step(fixed.rows(rows_B)) for rows_B in self._mini_batches(len(batch.tokens_BT))]
        means = {name: sum(step[name] for step in done) / len(done) for name in done[0]}
        means["ratio_max"] = max(step["ratio_max"] for step in done)
        means["lr"] = done[-1]["lr"]
        return Update(**means, sampler_learner_logprob_diff_max=float(gap_BT.max()))

    @torch.no_grad()
    def _fix(self, batch: Batch) -> _Fixed:
        size = self._config.micro_batch_rows or len(batch.tokens_BT)
        old, reference = [], []
        for tokens_BT in batch.tokens_BT.split(size):
            old.append(self._statistics(self._decoder, tokens_BT)[0])
            reference.append(self._statistics(self._reference, tokens_BT)[0])
        mask_BT = batch.mask_BT[:, 1:]
        return _Fixed(batch.tokens_BT, mask_BT, torch.cat(old), torch.cat(reference), batch.advantages_B)

    def _statistics(self, decoder: nn.Module, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [B, T-1] of each token after the first."""
        logits_BTV = decoder(tokens_BT[:, :-1])
        return token_logprobs(logits_BTV, tokens_BT[:, 1:], temperature=self._config.temperature)

    def _mini_batches(self, num_rows: int) -> Iterator[Tensor]:
        """Row numbers of each mini batch, drawn anew for each batch; sizes differ by one row at most."""
        order_B = torch.randperm(num_rows, generator=self._generator)
        yield from order_B.tensor_split(self._config.mini_batches)

    def _step(self, fixed: _Fixed) -> dict[str, float]:
        totals = self._accumulate(fixed)
        lr = self.lr()
        norm = float(nn.utils.clip_grad_norm_(self._parameters.values(), self._config.grad_clip))
        self.updates += 1
        # A gradient that is not finite would make every weight NaN: the step is left out, and its norm tells.
        if math.isfinite(norm):
            self._optimizer.step(self._parameters, lr=lr, number=self.updates)
        return {**totals, "grad_norm": norm, "lr": lr}

    def _accumulate(self, fixed: _Fixed) -> dict[str, float]:
        """Puts the mini batch's gradient into the parameters; gives back its measured means."""
        for parameter in self._parameters.values():
            parameter.grad = None
        num_tokens = fixed.mask_BT.sum().clamp(min=1)
        size = self._config.micro_batch_rows or len(fixed.tokens_BT)
        sums: dict[str, Tensor] = {}
        largest = []
        for rows_B in torch.arange(len(fixed.tokens_BT)).split(size):
            values = self._backward(fixed.rows(rows_B), num_tokens)
            largest.append(values.pop("ratio_max"))
            sums = {name: sums.get(name, torch.zeros_like(value)) + value for name, value in values.items()}
        # one transfer from the device for all numbers
        numbers = torch.stack([*sums.values(), torch.stack(largest).max()]).tolist()
        return dict(zip([*sums, "ratio_max"], numbers, strict=True))

    def _backward(self, part: _Fixed, num_tokens: Tensor) -> dict[str, Tensor]:
        """Adds a micro batch's share of the gradient; gives back its share of each mean."""
        config, mask_BT = self._config, part.mask_BT
        logprobs_BT, entropy_BT = self._statistics(self._decoder, part.tokens_BT)
        policy = policy_loss(
            logprobs_BT, part.old_BT, part.advantages_B, mask_BT, clip=self._clip, num_tokens=num_tokens
        )
        kl = masked_sum(ESTIMATORS[config.kl](logprobs_BT, part.reference_BT), mask_BT) / num_tokens
        entropy = masked_sum(entropy_BT, mask_BT) / num_tokens
        loss = policy.loss + config.kl_coef * kl - config.entropy_coef * entropy
        loss.backward()  # type: ignore[no-untyped-call]
        shares = {
            "loss": loss,
            "policy_loss": policy.loss,
            "kl": kl,
            "entropy": entropy,
            "clip_fraction": policy.num_clipped / num_tokens,
            "ratio_mean": masked_sum(policy.ratios_BT, mask_BT) / num_tokens,
            "ratio_max": policy.ratios_BT.max(),
        }
        return {name: value.detach() for name, value in shares.items()}

    def state(self) -> dict[str, Any]:
        """All that the next update depends on, by reference."""
        return {
            "policy": {name: parameter.detach() for name, parameter in self._parameters.items()},
            "reference": {name: parameter.detach() for name, parameter in self._reference.named_parameters()},
            "first": dict(self._optimizer.first),
            "second": dict(self._optimizer.second),
            "updates": self.updates,
            "rows_random": self._generator.get_state(),
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state that `state` gave; copies the values."""
        own = self.state()
        for part in ("policy", "reference", "first", "second"):
            for name, tensor in own[part].items():
                tensor.copy_(state[part][name])
        self.updates = state["updates"]
        self._generator.set_state(state["rows_random"].cpu())
