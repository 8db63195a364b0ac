"""Random numbers per prompt instead of per engine: the same answers in any engine and with any neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.engines.base import Sampling

# The largest seed that every engine takes.
_LARGEST = 2**31 - 1


def new_seeds(count: int, generator: torch.Generator) -> tuple[int, ...]:
    """A seed for each of `count` prompts."""
    return tuple(torch.randint(_LARGEST, (count,), generator=generator).tolist())


def uniform(sampling: Sampling, num_prompts: int, *, dtype: torch.dtype, device: torch.device | str) -> Tensor | None:
    """A number from 0 to 1, the latter excluded, for each token of each answer [T, P*G]; None without seeds."""
    if not sampling.seeds or sampling.is_greedy:
        return None
    if len(sampling.seeds) != num_prompts:
        raise ValueError(f"{len(sampling.seeds)} seeds for {num_prompts} prompts")
    shape = (sampling.max_new_tokens, sampling.rollouts_per_prompt)
    drawn = [torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) for seed in sampling.seeds]
    return torch.cat(drawn, dim=1).to(device)


def pick(chances_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """The token of each row in whose interval of the cumulated probabilities the row's number falls.

    Intervals are half-open, so a token with probability 0 is never drawn.
    """
    bounds_RV = chances_RV.cumsum(dim=1)
    return (bounds_RV[:, :-1] <= uniform_R[:, None] * bounds_RV[:, -1:]).sum(dim=1)
