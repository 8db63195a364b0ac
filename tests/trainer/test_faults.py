"""Each fault changes the one thing it says it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from trainer_cases import CPU, group

from trainer import faults
from trainer.algorithms.packing import pack
from trainer.checkpoint import CorruptCheckpoint, Saved, State, load, save
from trainer.tasks.base import END, PAD

if TYPE_CHECKING:
    from pathlib import Path


def test_shuffled_rewards_are_the_same_rewards_in_a_seeded_order() -> None:
    rewards = torch.arange(12.0).reshape(3, 4)
    one, same, other = (faults.shuffled(lambda groups: rewards, seed)([]) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one, rewards)
    assert one.shape == (3, 4)
    assert sorted(one.reshape(-1).tolist()) == list(range(12))


def test_the_mask_moves_one_token_to_the_left() -> None:
    groups = [group("4=", (5, END), (END,))]
    broken = faults.off_by_one(lambda groups, advantages_PG: pack(groups, advantages_PG, pad=PAD))
    batch = broken(groups, torch.zeros(1, 2))
    assert batch.mask_BT.int().tolist() == [[0, 1, 1, 0], [0, 1, 0, 0]]
    assert batch.tokens_BT.tolist() == [[4, 11, 5, END], [4, 11, END, PAD]]


def test_a_stale_sampler_is_given_weights_once() -> None:
    calls: list[int] = []
    publish = faults.Once(lambda: calls.append(1))
    for _ in range(3):
        publish()
    assert calls == [1]


def test_zero_advantages_are_zero_in_the_shape_of_the_true_ones() -> None:
    found = faults.zeros(lambda rewards_PG: rewards_PG * 2)(torch.ones(2, 3))
    assert found.tolist() == [[0.0] * 3] * 2


def test_a_corrupted_checkpoint_differs_in_one_bit_and_is_refused(tmp_path: Path) -> None:
    good: list[bytes] = []

    def keep(state: State, folder: Path) -> Saved:
        saved = save(state, folder)
        good.append((folder / saved.file).read_bytes())
        return saved

    saved = faults.corrupted(keep)({"w": torch.arange(100.0)}, tmp_path)
    bad = (tmp_path / saved.file).read_bytes()
    assert len(bad) == len(good[0])
    assert sum((a ^ b).bit_count() for a, b in zip(good[0], bad, strict=True)) == 1
    with pytest.raises(CorruptCheckpoint):
        load(tmp_path, CPU)
