"""Rollouts into tensors: a padded batch, and parts of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.types import Batch, Stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from trainer.types import Group


def make_batch(
    groups: Sequence[Group], rewards_PG: Tensor, *, pad: int, width: int = 0, mask_truncated: bool = False
) -> Batch:
    """Each prompt once, each answer one row, in the order of the groups.

    The answers are padded to the longest one, or to `width` tokens if that is more. Floats have the dtype of the
    rewards; all tensors are on their device. `mask_truncated`: the mask is off on answers cut at their length (DAPO's
    overlong filtering, TRL's `mask_truncated_completions`).
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    prompts = [group.prompt.tokens for group in groups]
    tokens = [rollout.tokens for rollout in rollouts]
    masks = [rollout.response_mask or (True,) * len(rollout.tokens) for rollout in rollouts]
    if mask_truncated:
        pairs = zip(masks, rollouts, strict=True)
        masks = [mask if rollout.stop is not Stop.LENGTH else (False,) * len(mask) for mask, rollout in pairs]
    baselines = [group.baseline for group in groups for _ in group.rollouts if group.baseline is not None]
    parts = [each for group in groups for each in group.parts]
    device, length, width = rewards_PG.device, max(map(len, prompts)), max(width, *map(len, tokens))
    return Batch(
        prompts_PS=_padded(prompts, length, pad, torch.int64, device),
        prompt_lengths_P=torch.tensor([len(row) for row in prompts], dtype=torch.int64, device=device),
        prompt_of_B=torch.tensor(
            [number for number, group in enumerate(groups) for _ in group.rollouts], dtype=torch.int64, device=device
        ),
        tokens_BT=_padded(tokens, width, pad, torch.int64, device),
        mask_BT=_padded(masks, width, 0, torch.bool, device),
        lengths_B=torch.tensor([len(row) for row in tokens], dtype=torch.int64, device=device),
        rollout_logprobs_BT=_padded([rollout.logprobs for rollout in rollouts], width, 0, rewards_PG.dtype, device),
        rewards_B=rewards_PG.reshape(-1),
        baselines_B=rewards_PG.new_tensor(baselines) if baselines else None,
        parts_BK=rewards_PG.new_tensor(parts) if parts else None,
    )


def _padded(
    rows: Sequence[Sequence[float]], width: int, value: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The rows as one tensor, filled up on the right."""
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=dtype, device=device)


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
        rollout_logprobs_BT=batch.rollout_logprobs_BT[rows, :longest],
        rewards_B=batch.rewards_B[rows],
    )
