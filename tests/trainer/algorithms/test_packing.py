"""Packing: every number of a batch, by hand."""

from __future__ import annotations

import torch

from tests.trainer.trainer_cases import END, PAD, group
from trainer.algorithms.packing import make_batch, select
from trainer.types import Group, Rollout, Stop

GROUPS = [group("4=", (5, END), (END,)), group("12=", (1, 2, END), (7, END))]
REWARDS = torch.tensor([[0.5, -0.5], [1.0, -1.0]])


def test_prompts_stand_once_and_answers_in_rows_that_point_to_them() -> None:
    batch = make_batch(GROUPS, REWARDS, pad=PAD)
    assert batch.prompts_PS.tolist() == [[4, 11, PAD], [1, 2, 11]]
    assert batch.prompt_lengths_P.tolist() == [2, 3]
    assert batch.prompt_of_B.tolist() == [0, 0, 1, 1]
    assert batch.tokens_BT.tolist() == [[5, END, PAD], [END, PAD, PAD], [1, 2, END], [7, END, PAD]]
    assert batch.mask_BT.int().tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert batch.lengths_B.tolist() == [2, 1, 3, 2]
    assert torch.equal(batch.rollout_logprobs_BT, -batch.mask_BT.float())
    assert batch.rewards_B.tolist() == [0.5, -0.5, 1.0, -1.0]


def test_what_an_environment_said_is_in_the_row_and_off_in_the_mask() -> None:
    episode = Rollout((1, 2, 3, 4), (-0.5, 0.0, 0.0, -0.25), Stop.TERMINATED, (True, False, False, True), 1.0)
    batch = make_batch([Group(GROUPS[0].prompt, (episode,))], torch.tensor([[1.0]]), pad=PAD)
    assert batch.mask_BT.int().tolist() == [[1, 0, 0, 1]]
    assert batch.tokens_BT.tolist() == [[1, 2, 3, 4]]
    assert batch.lengths_B.tolist() == [4]


def test_a_given_width_adds_only_padding() -> None:
    narrow, wide = make_batch(GROUPS, REWARDS, pad=PAD), make_batch(GROUPS, REWARDS, pad=PAD, width=9)
    assert torch.equal(wide.tokens_BT[:, :3], narrow.tokens_BT)
    assert wide.tokens_BT[:, 3:].unique().tolist() == [PAD]
    assert int(wide.mask_BT.sum()) == int(narrow.mask_BT.sum()) == 8


def test_some_rows_keep_only_the_prompts_and_the_width_that_they_need() -> None:
    part = select(make_batch(GROUPS, REWARDS, pad=PAD), torch.tensor([0, 1]))
    assert part.prompts_PS.tolist() == [[4, 11]]
    assert part.tokens_BT.tolist() == [[5, END], [END, PAD]]
    assert part.prompt_of_B.tolist() == [0, 0]
    other = select(make_batch(GROUPS, REWARDS, pad=PAD), torch.tensor([1, 3]))
    assert other.prompts_PS.tolist() == [[4, 11, PAD], [1, 2, 11]]
    assert other.prompt_of_B.tolist() == [0, 1]
    assert other.rewards_B.tolist() == [-0.5, -1.0]
