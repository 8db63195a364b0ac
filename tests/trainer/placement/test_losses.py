"""What the program on each of several nodes takes for the end of a run, and what is known of a process by then."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trainer import launch
from trainer.__main__ import main
from trainer.config import Config, read
from trainer.placement import (
    Layout,
    Node,
    PlacementError,
    cluster,
    lost_node,
    place_workers,
    ray_nodes,
    supervise,
    worker_actor,
    workers,
)
from trainer.placement.ray_nodes import OUT_OF_REACH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODES = [Node("a", "10.0.0.1", {"CPU": 4.0}, is_home=True), Node("b", "10.0.0.2", {"CPU": 4.0})]
PLACEMENT = place_workers(Layout((0, 1), (), nodes=2, cards_per_node=1), NODES, kind=None)


@contextmanager
def listening() -> Iterator[str]:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen(64)
        yield f"127.0.0.1:{door.getsockname()[1]}"


@pytest.fixture
def ray_here() -> Iterator[subprocess.Popen[bytes]]:
    """What stands for `ray start --block`: it goes on until it is told otherwise."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_node_ends_as_the_head_says(
    ray_here: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = tmp_path / "last-word"
    monkeypatch.setenv(ray_nodes.LAST_WORD, str(word))
    worker_actor.leave_word(ray_nodes.LAST_WORD, json.dumps({"code": 1, "reason": "rank 1 was killed"}))
    with listening() as address:
        assert ray_nodes._end_of_run(ray_here, address, str(word)) == (1, "rank 1 was killed")
    assert [each.name for each in tmp_path.iterdir()] == ["last-word"]


def test_without_a_place_for_it_no_word_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ray_nodes.LAST_WORD, raising=False)
    worker_actor.leave_word(ray_nodes.LAST_WORD, "")
    assert list(tmp_path.iterdir()) == []


def test_a_head_that_is_gone_without_a_word_is_named(
    ray_here: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_nodes, "_END_S", 0.0)
    with listening() as address:
        pass
    code, reason = ray_nodes._end_of_run(ray_here, address, str(tmp_path / "last-word"))
    assert code == 1
    assert re.search(rf"head at {address} is gone .*Connection refused", reason)


def test_a_way_to_the_head_that_is_down_for_a_while_is_no_end(
    ray_here: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody refuses: the link is down. Then the head says how the run ended."""
    word = tmp_path / "last-word"
    silent = iter(["nothing answered within 2 s", "the connection failed (No route to host)"])

    def answers(*_: object) -> str | None:
        if (trouble := next(silent, None)) is None:
            word.write_text(json.dumps({"code": 0, "reason": ""}))
        return trouble

    monkeypatch.setattr(ray_nodes, "answers", answers)
    monkeypatch.setattr(ray_nodes, "_END_S", 0.0)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert ray_nodes._end_of_run(ray_here, "10.0.0.1:6379", str(word)) == (0, "")
    silent = iter(["nothing answered within 2 s"] * 2)
    word.unlink()
    monkeypatch.setattr(ray_nodes, "_OUTAGE_S", -1.0)
    assert ray_nodes._end_of_run(ray_here, "10.0.0.1:6379", str(word))[0] == 1


def test_a_ray_that_ends_here_while_the_head_is_there_is_named(
    ray_here: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    ray_here.kill()
    ray_here.wait()
    with listening() as address:
        code, reason = ray_nodes._end_of_run(ray_here, address, str(tmp_path / "last-word"))
    assert code == 1
    assert re.search(rf"Ray ended .* -9 .* {address} is there$", reason)


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="children are found in /proc")
def test_what_was_started_ends_with_the_block_also_without_its_parent() -> None:
    """In a process of its own, which would adopt what other tests leave behind."""
    script = (
        "import subprocess, sys\n"
        "from trainer.placement import ray_nodes\n"
        "with ray_nodes._nothing_left():\n"
        '    inner = \'import subprocess, sys; subprocess.Popen([sys.executable, "-c", "input()"], stdin=0)\'\n'
        "    subprocess.run([sys.executable, '-c', inner], stdin=subprocess.PIPE, check=True)\n"
        "    (left,) = ray_nodes._children()\n"
        "print(left, ray_nodes._children())\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    number, none = ran.stdout.split()
    assert none == "[]" and not os.path.exists(f"/proc/{number}")


def test_only_nodes_that_live_no_more_are_lost() -> None:
    assert lost_node(PLACEMENT, NODES) is None
    lost = lost_node(PLACEMENT, NODES[:1])
    assert lost is not None and re.fullmatch(r"node 10\.0\.0\.2 .* rank 1", lost[1])


class RayActorError(Exception):
    """As Ray tells of an actor that is gone."""


def ray_that(answers: Any) -> SimpleNamespace:
    """Ray, asked for one thing: nothing comes for None, an exception is raised."""

    def get(asked: Any) -> Any:
        if isinstance(answers, Exception):
            raise answers
        return answers

    def wait(asked: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return ([], asked) if answers is None else (asked, [])

    return SimpleNamespace(get=get, wait=wait, exceptions=SimpleNamespace(RayActorError=RayActorError))


@pytest.mark.parametrize(
    ("answers", "known"),
    [
        (None, OUT_OF_REACH),
        (RayActorError("The actor is temporarily unavailable: RPC error"), OUT_OF_REACH),
        (RayActorError("The actor died because its node has died"), "was lost with its node"),
        ({"steps": 3}, "was cut off for a while"),
    ],
)
def test_a_process_out_of_reach_is_asked_again(answers: Any, known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray_that(answers))
    worker: Any = SimpleNamespace(ask=lambda name, is_beside: name)
    assert supervise._by_now(worker, OUT_OF_REACH) == known
    assert supervise._by_now(worker, "was killed") == "was killed"


def test_a_process_that_does_not_start_is_not_waited_for_when_its_node_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray_that(None))

    def look() -> None:
        raise PlacementError("node 10.0.0.2 was lost")

    began = time.monotonic()
    with pytest.raises(PlacementError, match=r"node 10\.0\.0\.2 was lost"):
        workers.collect([object()], ["rank 1 on 10.0.0.2"], 600.0, look)
    with pytest.raises(PlacementError, match=r"rank 1 on 10\.0\.0\.2 did not .* 0 s"):
        workers.collect([object()], ["rank 1 on 10.0.0.2"], 0.0, lambda: None)
    assert time.monotonic() - began < 60


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a launcher starts this program on the second of two nodes."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("second_of_two")
def test_ray_is_made_of_a_launchers_nodes_only_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster.is_to_be_made(Config())
    for word in ("ray=local", "ray=10.0.0.1:6379"):
        assert not cluster.is_to_be_made(read([word, "train_cards=0"], devices=("auto",)).config)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not cluster.is_to_be_made(Config())


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.slow
def test_a_node_that_lends_itself_leaves_the_folder_of_the_run_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--out", str(out), "train_cards=0-1", "resume=true", "cluster_limit_s=1"]
    assert main(words) == 2
    assert re.search(r" 127\.0\.0\.1:9 .* 1 s", capsys.readouterr().err)
    assert main([*words, "ray=10.0.0.1:6379"]) == 0
    assert "leads the" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.usefixtures("second_of_two")
def test_a_rank_that_was_given_its_place_goes_on_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the variables of a launcher's second node too."""
    monkeypatch.setenv(launch.PLACED, "{}")
    assert main(["--out", str(tmp_path), "train_cards=0-1", "resume=true"]) == 2
    assert re.match(rf"trainer: resume=true: {tmp_path}/checkpoint holds no ", capsys.readouterr().err)
