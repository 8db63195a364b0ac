"""Rollouts into tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.types import Batch, Group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def pack(groups: Sequence[Group], advantages_PG: Tensor, *, pad: int, width: int | None = None) -> Batch:
    """One row per rollout, groups one after the other; prompt and answer side by side, `pad` to the right.

    `width` None takes the longest row. dtype of the floats is that of the advantages; everything on their device.
    """
    rows = [(group.prompt.tokens, rollout) for group in groups for rollout in group.rollouts]
    width = width or max(len(prompt) + len(rollout.tokens) for prompt, rollout in rows)
    tokens, mask, logprobs = [], [], []
    for prompt, rollout in rows:
        rest = width - len(prompt) - len(rollout.tokens)
        tokens.append([*prompt, *rollout.tokens, *[pad] * rest])
        mask.append([False] * len(prompt) + [True] * len(rollout.tokens) + [False] * rest)
        logprobs.append([0.0] * len(prompt) + [*rollout.logprobs] + [0.0] * rest)
    device, dtype = advantages_PG.device, advantages_PG.dtype
    return Batch(
        tokens_BT=torch.tensor(tokens, dtype=torch.int64, device=device),
        mask_BT=torch.tensor(mask, dtype=torch.bool, device=device),
        sampler_logprobs_BT=torch.tensor(logprobs, dtype=dtype, device=device),
        advantages_B=advantages_PG.reshape(-1),
    )
