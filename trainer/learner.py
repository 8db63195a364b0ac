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


# Numbers of a step that are maxima over its tokens; the others add up over its parts.
_MAXIMA = ("ratio_max", "sampler_learner_logprob_diff_max")


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
    """What stays the same while a batch is learnt; only the tokens keep their first column, which nothing predicts."""

    tokens_BT: Tensor
    mask_BT: Tensor
    sampled_BT: Tensor
    old_BT: Tensor | None  # None: one optimizer step, so the old policy is the present one, and is computed anyway
    reference_BT: Tensor
    advantages_B: Tensor

    def rows(self, index_B: Tensor) -> _Fixed:
        return _Fixed(
            self.tokens_BT[index_B],
            self.mask_BT[index_B],
            self.sampled_BT[index_B],
            None if self.old_BT is None else self.old_BT[index_B],
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
        done = [self._step(fixed.rows(rows_B)) for rows_B in self._mini_batches(len(batch.tokens_BT))]
        means = {name: sum(step[name] for step in done) / len(done) for name in done[0]}
        for name in _MAXIMA:
            means[name] = float(torch.tensor([step[name] for step in done]).max())  # unlike max(), keeps a NaN
        means["lr"] = done[-1]["lr"]
        return Update(**means)

    def _fix(self, batch: Batch) -> _Fixed:
        has_one_step = self._config.mini_batches == 1
        return _Fixed(
            tokens_BT=batch.tokens_BT,
            mask_BT=batch.mask_BT[:, 1:],
            sampled_BT=batch.sampler_logprobs_BT[:, 1:],
            old_BT=None if has_one_step else self._logprobs(self._decoder, batch.tokens_BT),
            reference_BT=self._logprobs(self._reference, batch.tokens_BT),
            advantages_B=batch.advantages_B,
        )

    @torch.no_grad()
    def _logprobs(self, decoder: nn.Module, tokens_BT: Tensor) -> Tensor:
        size = self._config.micro_batch_rows or len(tokens_BT)
        return torch.cat([self._statistics(decoder, rows_BT)[0] for rows_BT in torch.split(tokens_BT, size)])

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
        num_rows = len(fixed.tokens_BT)
        size = self._config.micro_batch_rows or num_rows
        parts = torch.split(torch.arange(num_rows), size)
        shares = [self._backward(fixed.rows(rows_B), num_tokens) for rows_B in parts]
        table = torch.stack([torch.stack(list(share.values())) for share in shares])
        # one transfer from the device for all numbers
        sums, largest = torch.stack((table.sum(dim=0), table.amax(dim=0))).tolist()
        names = list(shares[0])
        return {name: (largest if name in _MAXIMA else sums)[index] for index, name in enumerate(names)}

    def _backward(self, part: _Fixed, num_tokens: Tensor) -> dict[str, Tensor]:
        """Adds a micro batch's share of the gradient; gives back its share of each mean, and its maxima."""
        config, mask_BT = self._config, part.mask_BT
        logprobs_BT, entropy_BT = self._statistics(self._decoder, part.tokens_BT)
        old_BT = logprobs_BT.detach() if part.old_BT is None else part.old_BT
        policy = policy_loss(logprobs_BT, old_BT, part.advantages_B, mask_BT, clip=self._clip, num_tokens=num_tokens)
        kl = masked_sum(ESTIMATORS[config.kl](logprobs_BT, part.reference_BT), mask_BT) / num_tokens
        entropy = masked_sum(entropy_BT, mask_BT) / num_tokens
        loss = policy.loss + config.kl_coef * kl - config.entropy_coef * entropy
        loss.backward()  # type: ignore[no-untyped-call]
        gap_BT = torch.where(mask_BT, (part.sampled_BT - old_BT).abs(), torch.zeros_like(old_BT))
        shares = {
            "loss": loss,
            "policy_loss": policy.loss,
            "kl": kl,
            "entropy": entropy,
            "clip_fraction": policy.num_clipped / num_tokens,
            "ratio_mean": masked_sum(policy.ratios_BT, mask_BT) / num_tokens,
            "ratio_max": policy.ratios_BT.max(),
            "sampler_learner_logprob_diff_max": gap_BT.max(),
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
