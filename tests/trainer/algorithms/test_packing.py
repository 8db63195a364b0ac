"""Packing: every number of a batch, by hand."""

from __future__ import annotations

import torch
from trainer_cases import group

from trainer.algorithms.packing import pack
from trainer.tasks.base import END, PAD


def test_rows_hold_prompt_answer_and_padding_in_order() -> None:
    groups = [group("4=", (5, END), (END,)), group("12=", (1, 2, END), (7, END))]
    batch = pack(groups, torch.tensor([[0.5, -0.5], [1.0, -1.0]]), pad=PAD)
    assert batch.tokens_BT.tolist() == [
        [4, 11, 5, END, PAD, PAD],
        [4, 11, END, PAD, PAD, PAD],
        [1, 2, 11, 1, 2, END],
        [1, 2, 11, 7, END, PAD],
    ]
    assert batch.mask_BT.int().tolist() == [
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 0],
    ]
    assert torch.equal(batch.sampler_logprobs_BT, -batch.mask_BT.float())
    assert batch.advantages_B.tolist() == [0.5, -0.5, 1.0, -1.0]


def test_a_given_width_adds_only_padding() -> None:
    groups = [group("4=", (5, END))]
    narrow = pack(groups, torch.tensor([[1.0]]), pad=PAD)
    wide = pack(groups, torch.tensor([[1.0]]), pad=PAD, width=9)
    assert torch.equal(wide.tokens_BT[:, :4], narrow.tokens_BT)
    assert wide.tokens_BT[:, 4:].unique().tolist() == [PAD]
    assert int(wide.mask_BT.sum()) == int(narrow.mask_BT.sum()) == 2
