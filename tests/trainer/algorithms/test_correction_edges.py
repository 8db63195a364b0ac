"""Weights of tokens whose ratio lies exactly on a bound."""

from __future__ import annotations

import pytest
import torch

from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.correction import correction


@pytest.mark.parametrize(("cap", "floor"), [(1.0, 0.0), (2.0, 1.0)])
def test_a_ratio_on_a_bound_is_not_beyond_it(cap: float, floor: float) -> None:
    same_BT, mask_BT = torch.tensor([[-0.5, -0.25]]), torch.tensor([[True, True]])
    found = correction(
        same_BT, same_BT, mask_BT, CONVENTIONS["verl"], level="token", cap=cap, floor=floor, bound="mask"
    )
    assert found.weights_BT.tolist() == [[1.0, 1.0]]
