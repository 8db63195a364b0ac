"""Divergence from a reference policy, one number per token, and its coefficient.

With d = log q - log p, p the policy and q the reference, both of the sampled token:

- k1 = -d: unbiased, may be negative; as a loss its expected gradient is 0, so it belongs in the reward.
- k2 = d*d/2: biased value, unbiased gradient.
- k3 = exp(d) - d - 1, also called low_var: unbiased, never negative. Its clamps are the convention's; beyond them the
  gradient is 0.
- k3+: the value of k3 with the gradient of k2, which is not clamped. k1+ likewise.
- abs = |d|.

A controller holds the coefficient.

Source: Schulman, "Approximating KL divergence"; straight-through form: verl core_algos.kl_penalty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from trainer.algorithms.conventions import Convention


def _k1(difference_BT: Tensor, _convention: Convention) -> Tensor:
    return -difference_BT


def _k2(difference_BT: Tensor, _convention: Convention) -> Tensor:
    return 0.5 * difference_BT.square()


def _k3(difference_BT: Tensor, convention: Convention) -> Tensor:
    limit = convention.kl_log_ratio_limit
    if limit is not None:
        # exp stays far from overflow
        difference_BT = difference_BT.clamp(-limit, limit)
    value_BT = difference_BT.exp() - difference_BT - 1
    limit = convention.kl_value_limit
    return value_BT if limit is None else value_BT.clamp(-limit, limit)


def _absolute(difference_BT: Tensor, _convention: Convention) -> Tensor:
    return difference_BT.abs()


def _straight_through(estimator: Callable[[Tensor, Convention], Tensor]) -> Callable[[Tensor, Convention], Tensor]:
    def value_with_gradient_of_k2(difference_BT: Tensor, convention: Convention) -> Tensor:
        squared_BT = 0.5 * difference_BT.square()
        return squared_BT - squared_BT.detach() + estimator(difference_BT, convention).detach()

    return value_with_gradient_of_k2


# each takes d = reference - policy
ESTIMATORS: Mapping[str, Callable[[Tensor, Convention], Tensor]] = {
    "low_var": _k3,
    "k1": _k1,
    "k2": _k2,
    "k3": _k3,
    "abs": _absolute,
    "k1+": _straight_through(_k1),
    "k3+": _straight_through(_k3),
}


def divergence(
    name: str,
    logprobs_BT: Tensor,
    reference_BT: Tensor,
    convention: Convention,
    *,
    mask_BT: Tensor | None = None,
    old_BT: Tensor | None = None,
) -> Tensor:
    """One estimate per token, [B, T], in nats; gradient flows into `logprobs_BT`.

    Where the mask is off the result is 0. Without a mask every token counts, and a NaN anywhere reaches the gradient:
    pass it whenever a gradient is taken. With `old_BT`, a k3 in the loss is multiplied by the ratio of new to old
    probability if the convention says so (TRL, `use_bias_correction_kl`).
    Example: policy log-probability -1, reference -2: k1 1, k2 0.5, k3 0.368
    """
    difference_BT = reference_BT - logprobs_BT
    if mask_BT is not None:
        difference_BT = torch.where(mask_BT, difference_BT, 0.0)
    estimate_BT = ESTIMATORS[name](difference_BT, convention)
    if old_BT is not None and convention.kl_times_ratio and ESTIMATORS[name] is _k3:
        log_ratio_BT = logprobs_BT - old_BT
        if mask_BT is not None:
            log_ratio_BT = torch.where(mask_BT, log_ratio_BT, 0.0)
        estimate_BT = estimate_BT * log_ratio_BT.exp()
    return estimate_BT


@dataclass(slots=True)
class FixedController:
    """A coefficient that stays as it is."""

    coef: float

    def update(self, kl: float, rows: int) -> None:
        """Does nothing: the coefficient of this controller is fixed."""


@dataclass(slots=True)
class AdaptiveController:
    """A coefficient that grows while the divergence is above its target and falls while it is below."""

    coef: float
    target: float  # nats per token
    horizon: int  # rows after which a constant error of 20 % has moved the coefficient by about a factor of 1.2

    def update(self, kl: float, rows: int) -> None:
        """Multiplies the coefficient by 1 + error * rows / horizon, the relative error held in +-0.2.

        Source: Ziegler et al., "Fine-tuning language models from human preferences", section 2.2.
        Example: coefficient 0.1, target 1, horizon 100: a divergence of 5 over 50 rows makes it 0.11
        """
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.coef *= 1 + error * rows / self.horizon


def controller(kind: str, *, coef: float, target: float, horizon: int) -> FixedController | AdaptiveController:
    """The controller of that kind: "fixed" or "adaptive"."""
    return AdaptiveController(coef, target, horizon) if kind == "adaptive" else FixedController(coef)
