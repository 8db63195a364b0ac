"""A rank's process in its details: the copy of the trainer it unpacks, its interfaces, what is kept of what it says."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from trainer import distributed
from trainer.__main__ import main
from trainer.config import parse
from trainer.distributed import World
from trainer.engines.generator_client import EngineSpec, TokenizerInfo
from trainer.generator import Server
from trainer.launch import PLACED, Interrupt
from trainer.placement import Layout, Node, Placement, WorkerSlot, place_workers, worker_actor, workers
from trainer.placement import rank as generators
from trainer.placement.rank import _LAST, Place, RayGenerator, TailOfOutput
from trainer.placement.supervise import _cause, _failure
from trainer.placement.worker_actor import WorkerActor
from trainer.placement.workers import interfaces
from trainer.weights import Packer, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer.engines.engine import Engine
    from trainer.placement.workers import WorkerGroup


def package() -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("trainer/__init__.py", "trainer/tasks/words.py"):
            archive.writestr(name, f"# {name}")
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path


def test_whoever_unpacks_the_trainer_second_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.replace

    def late(source: str, target: str) -> None:
        shutil.copy(source, target)  # another process was first
        original(source, target)

    monkeypatch.setattr(os, "replace", late)
    found = Path(worker_actor._unpack(package()))
    assert [*folder.iterdir()] == [found]
    assert (found / "trainer/tasks/words.py").read_text() == "# trainer/tasks/words.py"


def test_files_that_were_cleaned_away_are_put_back_and_the_others_left_alone(folder: Path) -> None:
    found = Path(worker_actor._unpack(package()))
    (found / "trainer/tasks/words.py").unlink()
    (found / "trainer/tasks").rmdir()
    kept = (found / "trainer/__init__.py").stat().st_ino
    assert Path(worker_actor._unpack(package())) == found
    assert (found / "trainer/tasks/words.py").read_text() == "# trainer/tasks/words.py"
    assert (found / "trainer/__init__.py").stat().st_ino == kept
    assert [*folder.iterdir()] == [found]


def seated(resource: str, nodes: int) -> Placement:
    there = [
        Node(f"{at}", f"10.0.0.{at}", {"CPU": 8.0, resource: 8.0 // nodes}, is_home=at == 1)
        for at in range(1, nodes + 1)
    ]
    return place_workers(Layout((0, 1), (), nodes=nodes, cards_per_node=2 // nodes), there, kind=resource)


def test_ranks_are_told_the_interface_between_nodes_by_its_whole_name() -> None:
    facts = {"interface": "eth1"}
    assert interfaces(seated("NPU", 2), facts) == {"GLOO_SOCKET_IFNAME": "eth1", "HCCL_SOCKET_IFNAME": "=eth1"}
    assert interfaces(seated("GPU", 2), facts) == {"GLOO_SOCKET_IFNAME": "eth1"}
    assert interfaces(seated("NPU", 2), {"interface": None}) == {}
    assert interfaces(seated("NPU", 1), facts) == {"GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize(
    ("resource", "nodes", "cards"), [("NPU", 1, ["0", "0"]), ("CPU", 1, ["0", "1"]), ("CPU", 2, ["0", "0"])]
)
def test_a_rank_with_cards_of_its_own_takes_the_first_of_them_and_one_without_its_number_on_its_node(
    resource: str, nodes: int, cards: list[str]
) -> None:
    facts = [{"pid": 5, "port": 7}] * 2
    assert [each["LOCAL_RANK"] for each in workers._environs(seated(resource, nodes), facts, {})] == cards


def test_what_a_node_says_of_its_interfaces_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"GLOO_SOCKET_IFNAME": "bond0", "RANK": "7"})
    WorkerActor().set_env({"RANK": "1"}, {"GLOO_SOCKET_IFNAME": "eth1", "HCCL_SOCKET_IFNAME": "=eth1"})
    assert os.environ == {"GLOO_SOCKET_IFNAME": "bond0", "RANK": "1", "HCCL_SOCKET_IFNAME": "=eth1"}


@pytest.mark.parametrize(
    ("said", "is_lost"),
    [
        ("DistNetworkError: The server socket has failed to listen on any local network address. port: 5", True),
        ("DistStoreError: Timed out after 4 seconds waiting for clients. 1/2 clients joined.", True),
        ("RuntimeError: shapes differ", False),
    ],
)
def test_a_port_that_was_taken_meanwhile_is_worth_another_attempt(said: str, is_lost: bool) -> None:
    ended = _failure(0, 1, f"some warning\ntrainer: {said}\n")
    assert (ended.is_lost, ended.reason) == (is_lost, said)


@pytest.mark.parametrize(("said", "is_open"), [("port: 5, code: -98, name: EADDRINUSE", False), ("no route", True)])
def test_nobody_is_waited_for_where_a_taken_port_is_the_cause(
    said: str, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (1, f"trainer: DistNetworkError: {said}")
    made = SimpleNamespace(get=lambda asked: words, wait=lambda asked, **_: (asked[:1], asked[1:]))
    made.exceptions = SimpleNamespace(RayActorError=RuntimeError)
    monkeypatch.setitem(sys.modules, "ray", made)
    ranks: Any = [SimpleNamespace(name="rank 0"), SimpleNamespace(name="rank 1")]
    ended, is_more_expected = _cause(cast("WorkerGroup", SimpleNamespace(ranks=ranks)), dict(enumerate(ranks)))
    assert (ended.rank, ended.is_lost, is_more_expected) == (0, True, is_open)


class Actor:
    """A generator's actor whose calls are done at once; a reference is a place in a list."""

    def __init__(self, server: Any) -> None:
        self.groups: list[str] = []
        self.call, self.watch = self._method(server, "call"), self._method(server, "watch")

    def _method(self, server: Any, method: str) -> Any:
        def options(*, concurrency_group: str) -> Any:
            self.groups.append(f"{method} in {concurrency_group}")
            return SimpleNamespace(remote=lambda name, *args: [getattr(server, name)(*args)])

        return SimpleNamespace(options=options)


def test_what_one_rank_has_put_into_rays_store_is_read_there_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store: list[Any] = []

    def put(value: Any) -> int:
        store.append(pickle.loads(pickle.dumps(value, protocol=5)))
        return len(store) - 1

    def get(asked: Any, timeout: float) -> Any:
        return [store[each] for each in asked] if asked and isinstance(asked[0], int) else asked[0]

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(put=put, get=get, exceptions=SimpleNamespace()))
    monkeypatch.setattr(generators, "_sent", {})
    actor = Actor(Server(cast("Engine", SimpleNamespace(load_weights=dict, weights=dict))))
    ranks = [object.__new__(RayGenerator) for _ in range(2)]
    for each in ranks:
        each.name, each._handle = "generator 0", actor
    sender, other = ranks
    assert other.left("weights").result(1.0) == ()
    sent = {"a": torch.arange(5000.0), "b": torch.ones(3, 2, dtype=torch.bfloat16)}
    buckets = list(Packer(64).pack(sent.items(), 7))
    sender.leave("weights", buckets).result(1.0)
    assert len(store) == len(buckets) == 2
    found = other.left("weights").result(1.0)
    assert [(each.version, each.index, each.checksum) for each in found] == [
        (each.version, each.index, each.checksum) for each in buckets
    ]
    assert all(torch.equal(sent[name], each) for name, each in unpack(found).items())
    # Beside what the generator computes: an answer of another rank may take minutes.
    assert actor.groups == ["watch in watch", "call in work", "watch in watch"]


def test_a_generator_is_told_where_a_model_is_that_is_named_from_the_ranks_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[Any] = []
    handle = SimpleNamespace(
        prepare=SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *w: asked.append(w)))
    )
    monkeypatch.setattr(workers, "actor", lambda *_, **__: handle)
    monkeypatch.setattr(workers, "settle", lambda *_: None)
    monkeypatch.setattr(generators, "_running", [])
    place = Place(WorkerSlot("generator 0", (1,), 0, (1,)), seated("CPU", 1), None, "x", tmp_path)
    for given, told in (("m/n", str(tmp_path / "m/n")), ("/m", "/m"), ("", "")):
        config = parse([f"path={given}"], devices=("auto",))
        RayGenerator(place, EngineSpec(config, TokenizerInfo(4, 0, 1), 3, has_environment=False, seed=0))
        assert asked[-1][1].config.model.path == told


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("path=m", "path=m starts in {folder}, which 10.0.0.2 does not have"),
        ("train_files=/a,b.jsonl", "train_files=b.jsonl starts in {folder}"),
        ("path=/m", "path=/m is no model folder"),
    ],
)
def test_a_rank_misses_the_working_folder_only_where_a_path_starts_there(
    word: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PLACED, json.dumps({"ranks": ["10.0.0.1", "10.0.0.2"]}))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(distributed, "join", lambda *_, **__: World(1, 2))
    folder = tmp_path / "gone"
    words = ["--out", str(tmp_path / "out"), "--cwd", str(folder), "train_cards=0-1", "ranks=2", "device=cpu", word]
    assert main(words, interrupt=Interrupt()) == 2
    assert says.format(folder=folder) in capsys.readouterr().err


def test_of_what_a_rank_says_the_end_is_kept_and_all_goes_on_also_from_programs_it_starts(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+", encoding="utf-8") as file:
        heard = TailOfOutput(file)
        for number in range(3000):
            print(f"line {number}", file=heard)
        heard.flush()
        subprocess.run([sys.executable, "-c", "import os; os.write(2, b'child')"], stderr=heard.fileno(), check=True)
        told = (tmp_path / "log").read_text(encoding="utf-8")
    assert told.startswith("line 0\n") and told.endswith("line 2999\nchild")
    assert len(heard.last) == _LAST and heard.last.endswith("line 2999\n")
