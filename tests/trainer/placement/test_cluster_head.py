"""When Ray's head is silent: who is told, and when; without Ray, whose answers are made here."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.trainer.trainer_cases import of_a_child
from trainer.placement import cluster as clusters
from trainer.placement.cards import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

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
