"""Estimators of the divergence from a reference policy, one number per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

# exp stays far from overflow, and a single token cannot dominate a batch; the gradient is 0 beyond either bound.
LOG_RATIO_LIMIT = 20.0
VALUE_LIMIT = 10.0


def k1(logprobs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """log p - log q: unbiased, may be negative. As a loss its expected gradient is 0: only to watch."""
    return logprobs_BT - reference_BT


def k2(logprobs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """Half the squared log ratio: biased value, unbiased gradient."""
    return 0.5 * (logprobs_BT - reference_BT).square()


def k3(logprobs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = log q - log p: unbiased and never negative. Unclamped, as in TRL.

    Source: Schulman, "Approximating KL divergence"; GRPO (DeepSeekMath), eq. 4.
    """
    difference_BT = reference_BT - logprobs_BT
    return difference_BT.exp() - difference_BT - 1


def low_var(logprobs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """k3 with the difference held in +-20 and the value in +-10. Source: verl core_algos, `low_var_kl`."""
    difference_BT = (reference_BT - logprobs_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (difference_BT.exp() - difference_BT - 1).clamp(-VALUE_LIMIT, VALUE_LIMIT)


ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"low_var": low_var, "k1": k1, "k2": k2, "k3": k3}
