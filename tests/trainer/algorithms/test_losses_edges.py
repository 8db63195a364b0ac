"""Log-probabilities where the rows are worked on in exactly two parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.algorithms import losses as losses_module
from trainer.algorithms.losses import token_logprobs

if TYPE_CHECKING:
    import pytest


def test_two_parts_are_put_together_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_BTV = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64)
    tokens_BT = torch.randint(0, 7, (2, 3), generator=generator)
    monkeypatch.setattr(losses_module, "CHUNK", 4 * 7)  # four rows, then two
    logprobs_BT, entropy_BT = token_logprobs(logits_BTV, tokens_BT)
    all_BTV = torch.log_softmax(logits_BTV, dim=-1)
    assert entropy_BT is not None
    torch.testing.assert_close(logprobs_BT, all_BTV.gather(-1, tokens_BT.unsqueeze(-1)).squeeze(-1))
    torch.testing.assert_close(entropy_BT, -(all_BTV.exp() * all_BTV).sum(dim=-1))
