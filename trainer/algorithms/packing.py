"""Rollouts into tensors, and parts of those tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.types import Batch, Group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def pack(groups: Sequence[Group], rewards_PG: Tensor, *, pad: int, width: int = 0) -> Batch:
    """Each prompt once, each answer one row, in the order of the groups.

    The answers are padded to the longest one, or to `width` tokens if that is more. Floats have the dtype of the
    rewards; all tensors are on their device.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    actions = [rollout.response_mask or (True,) * len(rollout.tokens) for rollout in rollouts]
    longest_prompt = max(len(group.prompt.tokens) for group in groups)
    longest = max(width, *(len(rollout.tokens) for rollout in rollouts))
    device, dtype = rewards_PG.device, rewards_PG.dtype

    def whole(rows: Sequence[Sequence[int]], size: int) -> Tensor:
        return torch.tensor([[*row, *[pad] * (size - len(row))] for row in rows], dtype=torch.int64, device=device)

    def padded(rows: Sequence[Sequence[float]], kind: torch.dtype) -> Tensor:
        return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=kind, device=device)

    def count(rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([len(row) for row in rows], dtype=torch.int64, device=device)

    return Batch(
        prompts_PS=whole([group.prompt.tokens for group in groups], longest_prompt),
        prompt_lengths_P=count([group.prompt.tokens for group in groups]),
        prompt_of_B=torch.tensor(
            [number for number, group in enumerate(groups) for _ in group.rollouts], dtype=torch.int64, device=device
        ),
        tokens_BT=whole([rollout.tokens for rollout in rollouts], longest),
        mask_BT=padded(actions, torch.bool),
        lengths_B=count([rollout.tokens for rollout in rollouts]),
        sampler_logprobs_BT=padded([rollout.logprobs for rollout in rollouts], dtype),
        rewards_B=rewards_PG.reshape(-1),
    )


def select(batch: Batch, rows: Tensor) -> Batch:
    """The batch of some rows (their numbers, rising), with the prompts that they need and no wider than they need.

    Rows of one prompt keep sharing it. Of all rows it is the batch itself.
    """
    if len(rows) == len(batch.tokens_BT) and bool((rows[1:] > rows[:-1]).all()):
        return batch
    numbers, prompt_of_B = torch.unique_consecutive(batch.prompt_of_B[rows], return_inverse=True)
    lengths_P, lengths_B = batch.prompt_lengths_P[numbers], batch.lengths_B[rows]
    longest_prompt, longest = int(lengths_P.max()), int(lengths_B.max())
    return Batch(
        prompts_PS=batch.prompts_PS[numbers, :longest_prompt],
        prompt_lengths_P=lengths_P,
        prompt_of_B=prompt_of_B,
        tokens_BT=batch.tokens_BT[rows, :longest],
        mask_BT=batch.mask_BT[rows, :longest],
        lengths_B=lengths_B,
        sampler_logprobs_BT=batch.sampler_logprobs_BT[rows, :longest],
        rewards_B=batch.rewards_B[rows],
    )
