"""What a way out may lead to, where a single wish says what kind of machine is meant."""

from __future__ import annotations

import pytest

from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Conflict, Request, Stack

MATRIX = load_matrix()


@pytest.mark.parametrize("wish", [{"cann": "8.5.0"}, {"hardware": "a2"}, {"driver": "25.5.0"}])
def test_a_wish_for_an_npu_is_not_answered_with_a_cpu_stack(wish: dict[str, str]) -> None:
    conflict = resolve(Request(pins={"torch": "2.13.1+cpu"}, **wish), MATRIX)  # type: ignore[arg-type]
    assert isinstance(conflict, Conflict) and conflict.ways_out
    for way in conflict.ways_out:
        found = resolve(way.request, MATRIX)
        assert isinstance(found, Stack) and found.pin("torch-npu") is not None
