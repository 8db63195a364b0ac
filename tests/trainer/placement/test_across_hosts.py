"""Runs across hosts, which are namespaces of this machine: real Ray of several nodes with 8 NPUs each that are names.

The launcher's way: the same command on every host, RANK, WORLD_SIZE and MASTER_ADDR say which is the head.
"""

from __future__ import annotations

import re
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tests.support import namespaces
from tests.trainer.placement.ray_cases import LIMIT_S, NEEDS_RAY, Trial, wait_for
from tests.trainer.trainer_cases import of_a_child

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator


pytestmark = NEEDS_RAY

WORDS = ("device=cpu", "probe_packages=false", "cluster_limit_s=200")
ENVIRON = {
    "PYTHONPATH": of_a_child()["PYTHONPATH"],
    "OMP_NUM_THREADS": "1",
    "MASTER_ADDR": "10.77.0.1",
    "MASTER_PORT": "26379",
    "RAY_agent_register_timeout_ms": "120000",
}


# Besides what the hosts show anyway: where torch and Ray lie, which may be lent to this interpreter.
KEPT = [Path(torch.__file__).parents[1]]


@dataclass(frozen=True)
class Spread:
    """A program on each of some hosts, and the run that the first leads."""

    hosts: namespaces.Machines
    programs: list[subprocess.Popen[bytes]]
    logs: list[Path]
    run: Trial

    def said(self, number: int) -> str:
        return self.logs[number].read_text()

    def end(self, number: int) -> int:
        """The exit code of the program on a host, when it has ended and left nothing of Ray's there."""
        code = self.programs[number].wait(timeout=LIMIT_S)
        wait_for(lambda: not any("ray" in line for line in self.hosts[number].processes()))
        return code


def told(number: int) -> str:
    """What the program on a host says when Ray is there."""
    return "has joined the Ray at" if number else "Ray's head is at"


@contextmanager
def spread(folder: Path, count: int, *words: str, blind: int | None = None) -> Iterator[Spread]:
    """The trainer on so many hosts; all see the same output folder, but for one that is `blind`."""
    if (reason := namespaces.why_not()) is not None:
        pytest.skip(reason)
    out, place = folder / "out", folder / "hosts"
    for each in (out, place):
        each.mkdir()
    environ = {**ENVIRON, "WORLD_SIZE": str(count)}
    with ExitStack() as stack:
        hosts = stack.enter_context(namespaces.machines(place, count, devices=8, env=environ, keep=[folder, *KEPT]))
        if blind is not None:
            hosts[blind].run("mount", "-t", "tmpfs", "none", str(out))
        argv = [sys.executable, "-m", "trainer", "--out", str(out), *WORDS, *words]
        programs: list[subprocess.Popen[bytes]] = []
        logs = [folder / f"{host.name}.log" for host in hosts]
        found = Spread(hosts, programs, logs, None)  # type: ignore[arg-type]
        for number, host in enumerate(hosts):
            log = stack.enter_context(logs[number].open("wb"))
            programs.append(host.start("env", f"RANK={number}", *argv, log=log))
            stack.callback(programs[-1].kill)
            # One after another: raylets that start at once on a busy machine give up on each other.
            wait_for(lambda: told(number) in found.said(number), process=programs[number])  # noqa: B023
        try:
            yield Spread(hosts, programs, logs, Trial(programs[0], out))  # type: ignore[arg-type]
        finally:  # shown when a test fails
            print(*(f"{log.name}: {log.read_text()[-2000:]}" for log in logs), sep="\n")


@pytest.mark.long
def test_a_run_across_three_hosts_outlives_one_of_them(tmp_path: Path) -> None:
    words = ("train_cards=0-1", "infer_cards=2-3", "cards_per_node=2", "steps=50")
    with spread(tmp_path, 3, *words) as all_of:
        run = all_of.run.until_step(12)
        placed = run.records("header")[0]["placement"]
        assert (placed["resource"], placed["ranks"]) == ("NPU", ["10.77.0.1", "10.77.0.1"])
        assert placed["generators"] == ["10.77.0.2", "10.77.0.2"]
        all_of.hosts[1].kill()
        assert all_of.end(0) == 0, all_of.said(0)
        last = run.records("header")[-1]["placement"]
        assert last["generators"] == ["10.77.0.3", "10.77.0.3"] and len(last["restarts"]) == 1
        lost = re.search(r"node 10\.77\.0\.2 .* generator 0 .* generator 1; .* (\d+) \(", all_of.said(0))
        assert lost is not None and 10 <= int(lost[1]) < 50
        assert run.steps() == list(range(1, 51))
        assert all_of.end(2) == 0  # the one that joined goes with the head


@pytest.mark.long
def test_ranks_on_two_hosts_go_on_with_a_spare_one_and_all_end_with_their_head(tmp_path: Path) -> None:
    """A rank's host is lost, then the one that leads. Shards of both ranks lie on storage that all of them see."""
    words = ("train_cards=0-1", "infer_cards=2", "cards_per_node=1", "sharding=fsdp2", "steps=1000", "save_every=4")
    with spread(tmp_path, 4, *words) as all_of:
        run = all_of.run.until_step(5)
        first = run.records("header")[0]
        assert first["placement"]["ranks"] == ["10.77.0.1", "10.77.0.2"] and first["sharding"] == "fsdp2"
        all_of.hosts[1].kill()
        wait_for(lambda: len(run.records("resumed")) == 1, process=all_of.programs[0])
        saved = run.records("resumed")[0]["step"]
        assert re.search(rf"node 10\.77\.0\.2 .* rank 1; .* {saved} \(restart 1", all_of.said(0))
        run.until_step(saved + 2)
        placed = run.records("header")[-1]["placement"]
        assert placed["ranks"] + placed["generators"] == ["10.77.0.1", "10.77.0.3", "10.77.0.4"]
        assert run.steps() == list(range(1, len(run.steps()) + 1))  # each once
        all_of.hosts[0].kill()
        for number in (2, 3):
            assert all_of.end(number) == 1
            assert re.search(r"head at 10\.77\.0\.1:26379 is gone", all_of.said(number))


@pytest.mark.long
def test_a_link_that_is_down_for_twenty_seconds_ends_no_run(tmp_path: Path) -> None:
    with spread(tmp_path, 2, "train_cards=0-1", "cards_per_node=1", "steps=40", "save_every=4") as all_of:
        all_of.run.until_step(6)
        all_of.hosts[1].unplug()
        time.sleep(20.0)
        all_of.hosts[1].plug()
        assert all_of.end(0) == 0, all_of.said(0)
        assert all_of.run.steps() == list(range(1, 41))
        assert len(all_of.run.records("header")[-1]["placement"]["restarts"]) <= 1
        assert all_of.end(1) == 0


def test_a_host_that_does_not_see_the_output_folder_is_named_before_anything_is_learnt(tmp_path: Path) -> None:
    with spread(tmp_path, 2, "train_cards=0-1", "cards_per_node=1", blind=1) as all_of:
        for number in (0, 1):
            assert all_of.end(number) == 2
            assert re.search(rf"{tmp_path / 'out'} .* folder on 10\.77\.0\.2:", all_of.said(number))
        assert all_of.run.records() == []
