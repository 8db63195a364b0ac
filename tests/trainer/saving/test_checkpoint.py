"""Checkpoints: bit for bit there and back, and no damaged one is taken for whole."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.shared import forks
from tests.trainer.trainer_cases import CPU
from trainer import saving
from trainer.saving import MANIFEST, CorruptCheckpoint, flatten
from trainer.saving.checkpoint import difference, load, save

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_what_is_loaded_on_the_cpu_are_the_files_pages_until_it_is_changed(tmp_path: Path) -> None:
    """So ranks of one machine hold it once, and none writes into it."""
    path = tmp_path / save(state(), tmp_path).file
    found = load(tmp_path, CPU)
    assert str(path) in Path("/proc/self/maps").read_text()
    found["learner"]["policy"]["w"].zero_()
    assert difference(load(tmp_path, CPU), state()) is None
    path.unlink()
    assert torch.equal(found["random"], state()["random"])


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
    with pytest.raises(CorruptCheckpoint, match=rf"{path.name} .*digest"):
        load(tmp_path, CPU)


def test_a_file_cut_short_and_a_missing_file_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / save(state(), tmp_path).file
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorruptCheckpoint, match=rf"{path.name} .*digest"):
        load(tmp_path, CPU)
    path.unlink()
    with pytest.raises(CorruptCheckpoint, match="missing"):
        load(tmp_path, CPU)


def test_a_save_that_is_interrupted_leaves_the_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(state(0), tmp_path)

    def half(values: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("unexpected pos 64 vs 128")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match=r"unexpected pos.*state\.unfinished"):
        save(state(1), tmp_path)
    assert difference(load(tmp_path, CPU), state(0)) is None


@pytest.mark.parametrize("number", range(12))
def test_wherever_a_save_breaks_off_a_whole_checkpoint_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Each call that asks the disk for something fails once; the first save is whole, the second breaks off."""
    save(state(0), tmp_path)
    calls = {"made": 0}

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            calls["made"] += 1
            if calls["made"] == number + 1:
                raise OSError(errno.EIO, "broken")
            return real(*args, **named)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", failing(os.replace))
        patched.setattr(os, "fsync", failing(os.fsync))
        patched.setattr(os, "open", failing(os.open))
        patched.setattr(type(tmp_path), "write_text", failing(type(tmp_path).write_text))
        patched.setattr(type(tmp_path), "unlink", failing(type(tmp_path).unlink))
        try:
            save(state(1), tmp_path)
            is_saved = True
        except OSError:
            is_saved = False
    # Nine calls: two for the state's name, its bytes and folder's, as many for the manifest's, its text, the old state.
    assert is_saved is (number >= calls["made"])
    found = load(tmp_path, CPU)
    assert (difference(found, state(0)) is None) is not (difference(found, state(1)) is None)
    if is_saved:
        assert difference(found, state(1)) is None
    save(state(2), tmp_path)
    assert difference(load(tmp_path, CPU), state(2)) is None
    assert [path.name for path in tmp_path.glob("*.unfinished")] == []
    assert len(list(tmp_path.glob("state-*.pt"))) == 1


KILLED = """
import sys, threading, os, signal, torch
from pathlib import Path
from trainer.saving.checkpoint import save
folder, delay = Path(sys.argv[1]), float(sys.argv[2])
torch.set_num_threads(1)
def at(number):
    return {"step": number, "settings": {"lr": 1.0}, "w": torch.full((60_000,), float(number))}
save(at(0), folder)
threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
number = 0
while True:
    number += 1
    save(at(number), folder)
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_saves_leaves_the_last_whole_checkpoint(tmp_path: Path) -> None:
    for turn in range(2):
        folder = tmp_path / str(turn)
        code, said, complained = forks().start(KILLED, str(folder), str(0.04 + 0.023 * turn), folder=tmp_path).end()
        assert code == -signal.SIGKILL, complained
        told = [int(line) for line in said.splitlines()]
        last = told[-1] if told else 0
        found = load(folder, CPU)
        # The save that was under way may have got as far as its manifest.
        assert found["step"] in (last, last + 1)
        assert bool((found["w"] == found["step"]).all())
        saved = saving.read_manifest(folder)
        assert saved is not None
        assert (saved.step, saved.settings) == (found["step"], {"lr": 1.0})


def test_a_full_disk_at_a_save_is_one_sentence_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="limits of a process are POSIX")
    save(state(0), tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        with pytest.raises(OSError) as caught:
            save({"w": torch.zeros(100_000)}, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG
    assert difference(load(tmp_path, CPU), state(0)) is None
    assert [path.name for path in tmp_path.glob("*.unfinished")] == []


def test_another_whole_state_is_named_beside_the_broken_one_and_not_taken(tmp_path: Path) -> None:
    older = save(state(0), tmp_path)
    kept = (tmp_path / older.file).read_bytes()
    newer = save(state(1), tmp_path)
    (tmp_path / older.file).write_bytes(kept)
    (tmp_path / newer.file).write_bytes(b"damaged")
    with pytest.raises(CorruptCheckpoint, match=rf"{newer.file} .*digest.*{older.file} .*whole"):
        load(tmp_path, CPU)
    (tmp_path / older.file).write_bytes(kept[:-1])
    with pytest.raises(CorruptCheckpoint, match="other state"):
        load(tmp_path, CPU)


def test_a_manifest_that_is_none_is_said_to_be(tmp_path: Path) -> None:
    assert saving.read_manifest(tmp_path) is None
    for text in ("{", "[]", "{}", "null", "[" * 100_000):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(CorruptCheckpoint, match=rf"{MANIFEST} .*no manifest"):
            saving.read_manifest(tmp_path)


def test_differences_are_named_by_their_path() -> None:
    assert flatten({"a": {"b": {"c": 1}}, "d": 2}) == {"a/b/c": 1, "d": 2}
    assert difference({"a": 1}, {"a": 1}) is None
    assert difference({"a": 1}, {"a": True}) == "a"
    assert difference({"a": 1, "b": {"c": 2}}, {"a": 1}) == "b/c"
    assert difference({"a": 1}, {"a": 1, "b": 2}) == "b"
    assert difference({"a": torch.ones(1)}, {"a": 1.0}) == "a"
