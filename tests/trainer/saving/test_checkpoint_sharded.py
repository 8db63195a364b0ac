"""A state of which every rank saved its rows comes back on any number of ranks, or says which file is not whole."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import os
import pickle
import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.core_cases import batch, learner, update
from tests.trainer.rank_processes import on_processes
from tests.trainer.trainer_cases import CPU
from trainer import saving
from trainer.config import parse
from trainer.distributed import World
from trainer.run_state import learner_state, restore, restore_learner, state_of
from trainer.saving import CorruptCheckpoint, Saved, digest_of, flatten
from trainer.saving import checkpoint as checkpoints
from trainer.saving.checkpoint import difference, load, save
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from trainer.learner import Learner

if importlib.util.find_spec("torch.distributed.checkpoint") is None:  # not loaded here: that takes a second
    pytest.skip("this torch has no distributed checkpoints", allow_module_level=True)

SETTINGS: dict[str, Any] = {"kl_coef": 0.1, "entropy_coef": 0.05, "lr": 0.01}
# A group for each rank.
SCRIPT = """
from tests.trainer.core_cases import BARE, batch, update
from tests.trainer.trainer_cases import CPU, changed, decoder
from trainer import distributed
from trainer.learner import Learner
from trainer.run_state import learner_state, restore_learner
from trainer.saving import checkpoint as checkpoints
from trainer.saving.checkpoint import difference, load
from trainer.saving import flatten
from trainer.distributed import whole

shares = ((0,), (1,), (2,))


def made(seed, **more):
    config = changed(BARE, sharding="fsdp2", **SETTINGS, **more)
    models = [decoder(config, seed=seed), decoder(config, seed=seed + 1)]
    for each in models:
        distributed.shard(each, config.run, CPU, num_ranks=world.size)
    return Learner(models[0], models[1], config, seed=seed, world=world)


def state(learner, step):
    return {"step": step, "settings": {"steps": 9}, "learner": learner_state(learner)}


def restored(name, **more):
    fresh, given = made(5, **more), load(here / name, CPU)
    own = learner_state(fresh)
    if "stored" in given:
        tensors = {n: each for n, each in flatten({"learner": own}).items() if isinstance(each, torch.Tensor)}
        given["stored"].into({n: each for n, each in tensors.items() if each.is_floating_point()})
    restore_learner(fresh, {**own, **given["learner"]})
    return fresh
"""
SAVES = """
live = made(1)
update(live, batch(*shares[world.rank]))
checkpoints.save_shards(state(live, 3), here / "checkpoint", world=world)
torch.save({n: whole(each) if isinstance(each, torch.Tensor) else each for n, each in flatten(state(live, 3)).items()},
           here / f"whole-{world.rank}.pt")

# On as many ranks: the same bits, now and after a step more.
again = restored("checkpoint")
found["restored"] = difference(state(live, 3), state(again, 3))
update(live, batch(*shares[world.rank]))
update(again, batch(*shares[world.rank]))
found["went on"] = difference(state(live, 4), state(again, 4))

# From the one file of a run that sharded nothing.
one = restored("alone")
torch.save({n: whole(each) for n, each in learner_state(one)["policy"].items()}, here / f"from-one-{world.rank}.pt")
narrow = restored("narrow", dtype="bfloat16")
weights = learner_state(narrow)["policy"]
torch.save({n: whole(each) for n, each in weights.items()}, here / f"from-narrow-{world.rank}.pt")
checkpoints.save_shards(state(narrow, 1), here / "wide", world=world)

# A rank that cannot write, and one that cannot read.
real = checkpoints._digests


def fails(path, world):
    if world.rank == 1:
        raise OSError(28, "No space left on device", str(path))
    return real(path, world)


checkpoints._digests = fails
try:
    checkpoints.save_shards(state(live, 4), here / "checkpoint", world=world)
except OSError as error:
    found["failed"] = [error.errno, str(error.strerror)]
checkpoints._digests = real
if world.is_first:
    (here / "damaged").mkdir()
    import shutil
    shutil.copytree(here / "checkpoint", here / "damaged", dirs_exist_ok=True)
    path = next((here / "damaged").glob("state-*/__1_0.distcp"))
    path.write_bytes(path.read_bytes()[:-1])
world.barrier()
try:
    load(here / "damaged", CPU)
except Exception as error:
    found["refused"] = [type(error).__name__, str(error)]
"""
READS = """
other = restored("checkpoint")
torch.save({n: whole(each) if isinstance(each, torch.Tensor) else each for n, each in flatten(state(other, 3)).items()},
           here / f"on-three-{world.rank}.pt")
update(other, batch(*shares[world.rank]))
found["updates"] = other.optimizer_steps
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks save, with the states of two runs of one process."""
    made = tmp_path_factory.mktemp("sharded")
    for name, settings in {"alone": {}, "narrow": {"dtype": "bfloat16", "lr": 1e-5}}.items():
        one = learner(**{**SETTINGS, **settings})
        update(one, batch())
        save({"step": 1, "learner": learner_state(one)}, made / name)
    return made


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return on_processes(f"SETTINGS = {SETTINGS!r}\n" + SCRIPT + SAVES, folder)


@pytest.fixture
def checkpoint(ranks: list[dict[str, Any]], folder: Path, tmp_path: Path) -> Path:
    """A copy of what the two ranks saved, to be damaged."""
    return shutil.copytree(folder / "checkpoint", tmp_path / "checkpoint")


def of_one(made: Learner) -> dict[str, Tensor]:
    """The tensors of a learner that holds them all, by the names of a state."""
    flat = flatten({"learner": learner_state(made)})
    return {name: each for name, each in flat.items() if isinstance(each, torch.Tensor) and each.is_floating_point()}


def whole_state(folder: Path, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = torch.load(folder / name, weights_only=True)
    return found


@pytest.mark.slow
def test_ranks_go_on_from_their_shards_with_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    assert [(rank["restored"], rank["went on"]) for rank in ranks] == [(None, None)] * 2


@pytest.mark.slow
def test_one_process_goes_on_from_the_shards_of_two(checkpoint: Path, ranks: Any, folder: Path) -> None:
    made = learner(**SETTINGS)
    own, state = of_one(made), load(checkpoint, CPU)
    state["stored"].into(own)
    restore_learner(made, {**learner_state(made), **state["learner"]})
    assert state["step"] == 3
    assert made.optimizer_steps == 1
    wanted = whole_state(folder, "whole-0.pt")
    assert len(own) > 50
    assert all(torch.equal(each, wanted[name]) for name, each in own.items())
    update(made, batch())  # and it can


@pytest.mark.slow
def test_two_ranks_go_on_from_the_file_of_one_process(ranks: Any, folder: Path) -> None:
    wanted = load(folder / "alone", CPU)["learner"]["policy"]
    for rank in range(2):
        found = whole_state(folder, f"from-one-{rank}.pt")
        assert found.keys() == wanted.keys()
        assert all(torch.equal(each, wanted[name]) for name, each in found.items())


@pytest.mark.slow
def test_the_wide_copies_of_a_bfloat16_run_are_the_rows_of_a_sharded_one_and_back(ranks: Any, folder: Path) -> None:
    wanted = load(folder / "narrow", CPU)["learner"]
    found = whole_state(folder, "from-narrow-1.pt")
    assert all(torch.equal(each, wanted["master"][name]) for name, each in found.items())
    one = learner(**{**SETTINGS, "dtype": "bfloat16"})
    load(folder / "wide", CPU)["stored"].into(of_one(one))
    state = learner_state(one)
    assert all(torch.equal(each, wanted["master"][name]) for name, each in state["master"].items())
    assert all(torch.equal(each, wanted["policy"][name]) for name, each in state["policy"].items())


@pytest.mark.slow
def test_a_rank_that_cannot_write_ends_the_save_on_all_and_leaves_the_earlier_state(
    ranks: list[dict[str, Any]], folder: Path
) -> None:
    assert [rank["failed"] for rank in ranks] == [[errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (rank 1)"]] * 2
    saved = saving.read_manifest(folder / "checkpoint")
    assert saved is not None
    assert saved.step == 3
    assert sorted(path.name for path in (folder / "checkpoint").iterdir()) == ["manifest.json", saved.file]


@pytest.mark.slow
def test_a_damaged_shard_is_named_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    for kind, text in (rank["refused"] for rank in ranks):
        assert kind == "CorruptCheckpoint"
        assert re.search(r"/__1_0\.distcp .*digest", text)


@pytest.mark.slow
def test_three_ranks_go_on_from_the_shards_of_two(ranks: Any, folder: Path) -> None:
    found = on_processes(f"SETTINGS = {SETTINGS!r}\n" + SCRIPT + READS, folder, size=3)
    assert [rank["updates"] for rank in found] == [2, 2, 2]
    assert difference(dict(whole_state(folder, "on-three-2.pt")), dict(whole_state(folder, "whole-0.pt"))) is None


# In one process, on what two ranks saved.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", ".metadata", "rest.pt"])
@pytest.mark.parametrize("place", [0.0, 0.5, 0.99])
def test_one_turned_bit_is_noticed_in_whichever_file_it_is(checkpoint: Path, name: str, place: float) -> None:
    (path,) = checkpoint.glob(f"state-*/{name}")
    damaged = bytearray(path.read_bytes())
    damaged[int(len(damaged) * place)] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptCheckpoint, match=f"{name} .*digest"):
        load(checkpoint, CPU)


@pytest.mark.slow
def test_a_missing_shard_is_named(checkpoint: Path) -> None:
    (path,) = checkpoint.glob("state-*/__1_0.distcp")
    path.unlink()
    with pytest.raises(CorruptCheckpoint, match=r"state-\w{16}/__1_0\.distcp is missing"):
        load(checkpoint, CPU)


class Code:
    """What runs a function of its maker's choice when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("it ran",)


@pytest.mark.slow
def test_an_index_that_holds_code_is_not_run_though_its_digest_is_right(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = checkpoint.glob("state-*/.metadata")
    path.write_bytes(pickle.dumps(Code()))
    told = json.loads((checkpoint / "manifest.json").read_text())
    told["files"][".metadata"] = digest_of(path)
    (checkpoint / "manifest.json").write_text(json.dumps(told))
    state = load(checkpoint, CPU)
    with pytest.raises(CorruptCheckpoint, match=r"holds builtins\.print"):
        state["stored"].into(of_one(learner(**SETTINGS)))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.distributed.checkpoint.filesystem", "FileSystem.rename"),
        ("torch.distributed.checkpoint.filesystem", "FileSystem"),
        ("torch.distributed.checkpoint.filesystem", "os.rename"),
        ("torch.distributed.checkpoint.metadata", "Metadata.__init__"),
        ("torch.distributed.checkpoint.metadata", "os"),
        ("torch", "load"),
        ("torch", "float32.__class__"),
    ],
)
def test_an_index_makes_its_classes_and_calls_nothing_of_torch(module: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    text = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(each)]) + each.encode() for each in (module, name)) + b"\x93"
    given = ("None", str(tmp_path / "a"), str(tmp_path / "b"))
    text += b"(" + b"".join(b"\x8c" + bytes([len(each)]) + each.encode() for each in given) + b"tR."
    with pytest.raises(pickle.UnpicklingError, match=f"it holds {re.escape(module)}.{re.escape(name)}"):
        checkpoints._Index(io.BytesIO(text)).load()
    assert (tmp_path / "a").exists()


def test_what_a_save_of_either_kind_left_unfinished_goes_with_the_next_one(tmp_path: Path) -> None:
    for act in (save, lambda state, folder: checkpoints.save_shards(state, folder, world=World.single())):
        (tmp_path / "shards-0a1b2c3d.unfinished").mkdir()
        (tmp_path / "state.unfinished").touch()
        saved = act({"step": 1}, tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", saved.file]


@pytest.mark.slow
def test_another_model_is_told_by_the_first_weight_that_does_not_fit(checkpoint: Path) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"holds no learner/policy/model\.embed_tokens\.weight of shape"):
        load(checkpoint, CPU)["stored"].into(of_one(learner(**SETTINGS, hidden=24)))


@pytest.mark.slow
def test_the_manifest_names_step_settings_files_and_tensors(checkpoint: Path) -> None:
    saved = saving.read_manifest(checkpoint)
    assert saved is not None
    assert (saved.step, saved.settings) == (3, {"steps": 9})
    assert sorted(saved.files) == [".metadata", "__0_0.distcp", "__1_0.distcp", "rest.pt"]
    assert saved.bytes == sum(path.stat().st_size for path in (checkpoint / saved.file).iterdir())
    assert saved.tensors == len(of_one(learner(**SETTINGS))) + 1  # and the random numbers of the groups


@pytest.mark.slow
@pytest.mark.parametrize("number", range(12))
def test_a_save_that_dies_at_any_moment_leaves_a_whole_state(
    number: int, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step to the disk is the last one, in turn."""
    done = []

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any, **named: Any) -> Any:
            done.append(real.__name__)
            if len(done) > number:
                raise KeyboardInterrupt
            return real(*given, **named)

        return act

    for module, names in {os: ("fsync", "replace"), shutil: ("rmtree",)}.items():
        for name in names:
            monkeypatch.setattr(module, name, dying(getattr(module, name)))
    try:
        checkpoints.save_shards({"step": 4, "settings": {}, "x": torch.ones(2)}, checkpoint, world=World.single())
    except KeyboardInterrupt:
        is_over = False
    else:
        is_over = True
    monkeypatch.undo()
    state = load(checkpoint, CPU)
    assert state["step"] == (4 if done[:number].count("replace") == 2 else 3)  # the folder's name, then the manifest's
    assert is_over == (number >= len(done))
    checkpoints.save_shards({"step": 5, "settings": {}}, checkpoint, world=World.single())
    assert len(list(checkpoint.iterdir())) == 2


def test_the_same_state_twice_stands_under_another_name(tmp_path: Path) -> None:
    alone = World.single()
    first = checkpoints.save_shards({"step": 1}, tmp_path, world=alone)
    second = checkpoints.save_shards({"step": 1}, tmp_path, world=alone)
    assert saving.read_manifest(tmp_path) == second
    assert [path.name for path in tmp_path.glob("state-*")] == [second.file]
    assert isinstance(first, Saved)


@pytest.mark.slow
def test_a_run_of_one_rank_finds_the_checkpoint_of_several(checkpoint: Path) -> None:
    told = json.loads((checkpoint / "manifest.json").read_text())
    before = parse(["ranks=2", "sharding=fsdp2", "steps=5"], devices=("cpu",))
    (checkpoint / "manifest.json").write_text(json.dumps({**told, "settings": before.lasting()}))
    now = parse(["ranks=1", "steps=5", "resume=true"], devices=("cpu",))
    point = saving.find_resume_point(checkpoint.parent, now)
    assert point is not None
    assert point.step == 3
    assert point.changed == {"ranks": (2, 1), "sharding": ("fsdp2", "none")}


def test_a_sampler_goes_on_with_its_numbers_and_one_that_is_new_begins_at_its_seed() -> None:
    config = parse(["steps=2", "distractors=0", "prompts_per_step=6"], devices=("cpu",))
    saved = build_trainer(config, CPU, seed=0)
    fresh = build_trainer(config, CPU, seed=0, world=World(1, 2))
    begin = fresh.engine.random_state()
    saved.engine.restore_random_state(torch.Generator().manual_seed(99).get_state())
    state = {**state_of(saved, 1), "step": 1}
    first = build_trainer(config, CPU, seed=0)
    restore(first, state)
    assert torch.equal(first.engine.random_state(), saved.engine.random_state())
    restore(replace(fresh), state)
    assert torch.equal(fresh.engine.random_state(), begin)
    # Nor does one that follows an engine of another kind.
    other = build_trainer(config, CPU, seed=0)
    begin = other.engine.random_state()
    restore(other, {**state, "sampler_random": {"0": torch.zeros(16, dtype=torch.uint8)}})
    assert torch.equal(other.engine.random_state(), begin)
