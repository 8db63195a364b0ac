"""Checkpoints: bit for bit there and back, and no damaged one is taken for whole."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from trainer_cases import CPU

from trainer.checkpoint import MANIFEST, CorruptCheckpoint, difference, flatten, load, save

if TYPE_CHECKING:
    from pathlib import Path


def state(seed: int = 0) -> dict[str, Any]:
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
    values[0, 0], values[0, 1] = math.nan, -0.0
    random = torch.Generator().manual_seed(seed).get_state()
    return {"step": 3, "learner": {"policy": {"w": values, "b": values[0].double()}, "updates": 7}, "random": random}


def test_every_bit_comes_back_nan_and_negative_zero_too(tmp_path: Path) -> None:
    saved = save(state(), tmp_path)
    assert difference(state(), load(tmp_path, CPU)) is None
    assert saved.tensors == 3
    assert saved.bytes == (tmp_path / saved.file).stat().st_size
    assert json.loads((tmp_path / MANIFEST).read_text())["sha256"] == saved.sha256


def test_a_later_save_replaces_the_earlier_one_and_leaves_nothing_behind(tmp_path: Path) -> None:
    save(state(0), tmp_path)
    saved = save(state(1), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([MANIFEST, saved.file])
    assert difference(load(tmp_path, CPU), state(1)) is None
    assert difference(load(tmp_path, CPU), state(0)) == "learner/policy/w"


@pytest.mark.parametrize("place", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_one_turned_bit_is_noticed_wherever_it_is(tmp_path: Path, place: float) -> None:
    path = tmp_path / save(state(), tmp_path).file
    damaged = bytearray(path.read_bytes())
    damaged[int(len(damaged) * place)] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptCheckpoint, match="has the digest"):
        load(tmp_path, CPU)


def test_a_file_cut_short_and_a_missing_file_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / save(state(), tmp_path).file
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorruptCheckpoint, match="has the digest"):
        load(tmp_path, CPU)
    path.unlink()
    with pytest.raises(CorruptCheckpoint, match="is missing"):
        load(tmp_path, CPU)


def test_a_save_that_is_interrupted_leaves_the_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(state(0), tmp_path)

    def half(values: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("unexpected pos 64 vs 128")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match=r"cannot write .*unexpected pos"):
        save(state(1), tmp_path)
    assert difference(load(tmp_path, CPU), state(0)) is None


def test_differences_are_named_by_their_path() -> None:
    assert flatten({"a": {"b": {"c": 1}}, "d": 2}) == {"a/b/c": 1, "d": 2}
    assert difference({"a": 1}, {"a": 1}) is None
    assert difference({"a": 1}, {"a": True}) == "a"
    assert difference({"a": 1, "b": {"c": 2}}, {"a": 1}) == "b/c"
    assert difference({"a": 1}, {"a": 1, "b": 2}) == "b"
    assert difference({"a": torch.ones(1)}, {"a": 1.0}) == "a"
