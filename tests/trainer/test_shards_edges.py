"""Shards in one process: which rows a rank has when there are fewer rows than ranks, and which layers are gathered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from trainer.sharding import layers
from trainer.shards import rows

if TYPE_CHECKING:
    from torch import Tensor


class Sharded:
    """What `rows` reads of a DTensor: the mesh, and this rank's place in it."""

    def __init__(self, rank: int, size: int) -> None:
        self.device_mesh = SimpleNamespace(size=lambda: size, get_local_rank=lambda: rank)

    def to_local(self) -> Tensor:
        raise AssertionError("of another tensor's rows this one's values are not asked")


@pytest.mark.parametrize(
    ("length", "size", "held"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (3, 4, [[0], [1], [2], []]),
        (5, 4, [[0, 1], [2, 3], [4], []]),
        (0, 2, [[], []]),
    ],
)
def test_every_row_is_held_once_and_a_rank_may_have_none(length: int, size: int, held: list[list[int]]) -> None:
    given = torch.arange(length).reshape(length, 1).expand(length, 3)
    for rank, wanted in enumerate(held):
        own: Any = Sharded(rank, size)
        found = rows(own, given)
        assert found.shape == (len(wanted), 3)
        assert found[:, 0].tolist() == wanted


def test_lists_within_a_layer_are_gathered_with_it() -> None:
    inner = nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
    model = nn.ModuleDict(
        {
            "body": nn.ModuleDict({"layers": nn.ModuleList([inner, nn.Linear(2, 2)])}),
            "heads": nn.ModuleList([nn.Linear(2, 2)]),
            "norm": nn.LayerNorm(2),
        }
    )
    assert layers(model) == [inner, model["body"]["layers"][1], model["heads"][0]]  # type: ignore[index]
