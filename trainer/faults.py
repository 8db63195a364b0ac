"""Ways to break a run on purpose, so that a verdict can be seen to fail.

Each wraps one part of an otherwise unchanged run when it is put together; nothing else knows of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.checkpoint import Saved, State
    from trainer.types import Batch, Group

    Score = Callable[[Sequence[Group]], Tensor]
    Pack = Callable[[Sequence[Group], Tensor], Batch]
    Save = Callable[[State, Path], Saved]


def shuffled(score: Score, seed: int) -> Score:
    """Gives the rewards of a step to its rollouts in another order: the same rewards, earned by others.

    The order is the same in each step, so that it has no state that a checkpoint would have to hold.
    """

    def score_shuffled(groups: Sequence[Group]) -> Tensor:
        rewards_PG = score(groups)
        order = torch.randperm(rewards_PG.numel(), generator=torch.Generator().manual_seed(seed))
        return rewards_PG.reshape(-1)[order.to(rewards_PG.device)].reshape(rewards_PG.shape)

    return score_shuffled


def off_by_one(pack: Pack) -> Pack:
    """Moves the mask one token to the left: from the prompt's last token to the answer's last but one."""

    def pack_off_by_one(groups: Sequence[Group], advantages_PG: Tensor) -> Batch:
        batch = pack(groups, advantages_PG)
        return replace(batch, mask_BT=batch.mask_BT.roll(-1, dims=1))

    return pack_off_by_one


@dataclass(slots=True)
class Once:
    """Publishes the first time only."""

    publish: Callable[[], None]
    is_spent: bool = False

    def __call__(self) -> None:
        if not self.is_spent:
            self.is_spent = True
            self.publish()


def zeros(advantages: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Advantages of 0 whatever the rewards."""
    return lambda rewards_PG: torch.zeros_like(advantages(rewards_PG))


def corrupted(save: Save) -> Save:
    """Turns over one bit in the middle of the saved file."""

    def save_corrupted(state: State, folder: Path) -> Saved:
        saved = save(state, folder)
        with (folder / saved.file).open("r+b") as file:
            file.seek(saved.bytes // 2)
            byte = file.read(1)[0]
            file.seek(saved.bytes // 2)
            file.write(bytes([byte ^ 1]))
        return saved

    return save_corrupted
