"""Which Ray a run joins, and what it says of it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.trainer.trainer_cases import of_a_child
from trainer import __main__ as entry
from trainer.config import parse
from trainer.placement import Node, read, supervise
from trainer.placement import cluster as clusters
from trainer.placement.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTHERS = "job 01000000 (python train.py, process 6511 on 10.0.0.1): 3 actors"


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a Ray on this node, as the file says that it leaves: something answers there."""
    for name in ("RAY_ADDRESS", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "ray/ray_current_cluster").write_text(found)
        yield found


def opened(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Cluster, list[str]]:
    """The Ray that the words lead to, where Ray itself is left out, and what was said."""
    asked: list[str] = []

    def join(address: str, *_: Any, is_own: bool, **__: Any) -> Cluster:
        return Cluster(is_own, address, None)

    monkeypatch.setattr(clusters, "_join", join)
    monkeypatch.setattr(clusters, "_own", lambda *_: Cluster(True, "new", None))
    monkeypatch.setattr(clusters, "holders", lambda nodes: OTHERS if nodes == {"key"} else "")
    monkeypatch.setattr(Cluster, "nodes", lambda self: [Node("key", "10.0.0.1", {}, is_home=True)])
    config = parse(["train_cards=0-3", "prompts_per_step=4", *words], devices=("auto", "cpu"))
    layout = read(config)
    assert layout is not None
    with contextlib.ExitStack() as stack:
        return clusters._open(config, layout, asked.append, stack), asked


def test_a_ray_of_ones_own_is_joined_and_who_else_is_in_it_is_told(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, said = opened(monkeypatch)
    assert found == Cluster(False, address, None, OTHERS)
    assert [address in each for each in said] == [True, True]
    assert "ray=local" in said[0] and said[1].endswith(OTHERS)


def test_a_ray_of_another_user_is_left_alone_and_told(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    found, (said,) = opened(monkeypatch)
    assert (found.address, found.is_own) == ("new", True)
    assert f"ray={address}" in said


def test_a_ray_that_the_environment_names_is_joined_aloud_and_one_that_is_asked_for_without_a_word(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "holders", lambda nodes: "")
    found, said = opened(monkeypatch, f"ray={address}")
    assert (found.address, [each for each in said if OTHERS not in each]) == (address, [])
    monkeypatch.setenv("RAY_ADDRESS", "10.9.9.9:6379")
    found, said = opened(monkeypatch)
    assert found.address == "10.9.9.9:6379"
    assert "RAY_ADDRESS" in said[0]
    assert opened(monkeypatch, "ray=local")[0].address == "new"


@pytest.mark.parametrize(("words", "setting"), [(["generators=1"], "generators"), (["train_cards=0"], "train_cards")])
def test_without_ray_a_run_that_needs_it_says_what_to_install(
    words: list[str], setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RAY_ADDRESS", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ray", None)
    assert entry.main(["--out", str(tmp_path / "out"), "device=cpu", *words]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(rf"trainer: {setting} needs Ray, [^\n]*`npuenv install cpu-full`[^\n]*\n", said)


def test_generators_without_cards_have_a_ray_of_their_own_whatever_runs_here(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert opened(monkeypatch, "train_cards=", "generators=2") == (Cluster(True, "new", None), [])


def test_warnings_of_a_run_in_ray_are_told_by_the_process_that_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What rank 0 writes goes to a log of Ray."""
    told: list[str] = []

    def lead(_: supervise.Run) -> int:
        told.extend(capsys.readouterr().err.splitlines())
        return 0

    monkeypatch.setattr(supervise, "lead", lead)
    monkeypatch.setattr(entry, "find_spec", {"ray": "there"}.get)
    words = ("num_threads=1", "generators=1", "steps=2", "steps=3", "warmup_steps=30000")
    assert entry.main(["--out", str(tmp_path / "out"), "device=cpu", *words]) == 0
    assert all(each.startswith("trainer: warning: ") for each in told)
    assert ["steps" in told[0], "warmup_steps=30000" in told[1]] == [True] * len(told)


def test_generators_start_in_no_process_of_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert entry.main(["--out", str(tmp_path / "out"), "device=cpu", "generators=2"]) == 2
    assert re.search(r"generators=2 .*\bWORLD_SIZE=2 ", capsys.readouterr().err)


# When Ray's head is silent: who is told, and when; without Ray, whose answers are made here.

HOME = Node("a", "10.0.0.1", {"CPU": 4.0}, is_home=True)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_LOOK_S", 0.02), ("_REFUSED_S", 0.1), ("_SILENT_S", 0.4), ("_LEAVE_S", 0.2)):
        monkeypatch.setattr(clusters, name, seconds)


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


class Asked:
    """A cluster whose head may fall silent."""

    is_own = False

    def __init__(self, address: str) -> None:
        self.address = address
        self.answers = threading.Event()
        self.answers.set()
        self.seen = [HOME]

    def nodes(self) -> list[Node]:
        self.answers.wait(60)
        return self.seen


def cluster(address: str) -> Any:
    return Asked(address)


def test_nodes_are_those_of_the_last_answer_or_of_one_from_now_on(listening: str) -> None:
    there, ended = cluster(listening), list[str]()
    with clusters.Head(there, ended.append) as head:
        assert head.nodes() == [HOME]
        there.seen = []
        assert head.nodes(is_fresh=True) == [] and not head.is_lost
    assert ended == []


def test_a_head_that_is_silent_for_long_is_lost_and_one_that_nothing_listens_for_sooner(listening: str) -> None:
    for address, why in ((listening, r"it has been silent for"), ("127.0.0.1:9", "Connection refused")):
        there, ended = cluster(address), threading.Event()
        with ExitStack() as stack:
            head = stack.enter_context(clusters.Head(there, lambda lost, ended=ended: ended.set()))  # type: ignore[misc]
            there.answers.clear()
            stack.callback(there.answers.set)
            with pytest.raises(clusters.HeadLost, match=rf"head at {address} does not .*: .*{why}"):
                head.nodes(is_fresh=True)
            with pytest.raises(clusters.HeadLost):
                head.nodes()
            assert head.is_lost
        # The block is left, this process is still there: it is to be ended.
        assert ended.wait(240)


def test_a_head_that_hesitates_is_not_lost(listening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_SILENT_S", 60.0)
    there: Any = cluster(listening)
    with clusters.Head(there, lambda lost: None) as head:
        there.answers.clear()
        assert not threading.Event().wait(0.3)
        there.answers.set()
        assert head.nodes(is_fresh=True) == [HOME] and not head.is_lost


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
def test_a_ray_of_its_own_that_hangs_is_killed_with_all_that_it_has_started(listening: str) -> None:
    """In a process of its own, whose children are Ray's."""
    program = (
        "import os, subprocess, sys\n"
        "from types import SimpleNamespace\n"
        "from trainer.placement import cluster\n"
        "def is_running(pid):\n"
        "    try:\n"
        "        return ' Z ' not in open(f'/proc/{pid}/stat').read()\n"
        "    except OSError:\n"
        "        return False\n"
        "cluster._REFUSED_S = cluster._LOOK_S = 0.05\n"
        "ray = subprocess.Popen(['sh', '-c', 'sleep 600 & echo $!; wait'], stdout=subprocess.PIPE, text=True)\n"
        "inner = int(ray.stdout.readline())\n"
        "def nodes(): return ray.wait() if is_silent else []\n"
        "is_silent = False\n"
        "with cluster.Head(SimpleNamespace(is_own=True, address='127.0.0.1:9', nodes=nodes), print) as watched:\n"
        "    is_silent = True\n"
        "    try:\n"
        "        watched.nodes(is_fresh=True)\n"
        "    except cluster.HeadLost:\n"
        "        print(ray.wait(120))\n"
        "        while is_running(inner): pass\n"
        "os._exit(0)\n"
    )
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(["sleep", "600"]) as other:
        said = subprocess.run(argv, env=of_a_child(), capture_output=True, text=True, check=True, timeout=240).stdout
        assert said.strip() == "-9"
        assert other.poll() is None
        other.kill()
