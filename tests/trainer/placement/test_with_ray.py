"""Real Ray on this machine: ranks and generators as its actors, lost, stopped and interrupted."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.trainer.placement.ray_cases import (
    NEEDS_RAY,
    Home,
    head,
    home,
    processes_of,
    ran,
    rewards,
    trial,
    wait_for,
    worker_actors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = NEEDS_RAY

SPLIT = ("train_cards=0-1", "infer_cards=2-3")
# What is told without that wait takes 15 s, and longer on a busy machine.
LONG_WAIT, WELL_BEFORE_S = "cluster_limit_s=300", 150.0


# Beside what a run is told by itself: weights that are put into Ray's store fill it, and its disk counts as full.
SMALL_STORE = ("--object-store-memory=80000000",)
FULL_DISK = {"RAY_local_fs_capacity_threshold": "0.000001"}
# Holds seven of the eight CPUs until its input ends.
HOLDER = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False)
held = [ray.remote(num_cpus=each)(type("Held", (), {"there": lambda self: True})).remote() for each in (3, 4)]
print(ray.get([each.there.remote() for each in held]), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Home, str]]:
    """A home and the Ray that all runs of this file join, one after another."""
    with home() as at, head(replace(at, environ={**at.environ, **FULL_DISK}), *SMALL_STORE) as address:
        yield at, address


def test_generators_on_cards_draw_what_those_without_do_though_one_is_killed(
    place: tuple[Home, str], tmp_path: Path
) -> None:
    at, address = place
    # Far more steps than pass until the kill is done, also where a step takes milliseconds.
    words = ("steps=50", "prompts_per_step=4", "rollouts_per_prompt=4")
    with trial(at, tmp_path / "a", f"ray={address}", "train_cards=0", "infer_cards=1-2", *words) as placed:
        placed.until_step(3)
        generators = [pid for pid in worker_actors(at) if pid != placed.pid(0)]
        assert len(generators) == 2
        os.kill(generators[0], signal.SIGKILL)
        assert placed.end() == (0, "")
    code, said, plain = ran(at, tmp_path / "b", "generators=2", *words, RAY_AUTH_MODE="")
    assert (code, said) == (0, "")
    (header,) = plain.records("header")
    assert header["placement"]["layout"] == "on this machine: ranks 1, generators 2"
    assert header["placement"]["ray"]["is_own"]
    assert rewards(placed) == rewards(plain) and len(rewards(plain)) == 50
    assert len(placed.records("header")) == 1  # without a restart
    assert sum(each["generators/lost"] for each in placed.records("step")) == 1
    told = placed.records("header")[0]["placement"]
    assert told["layout"] == "split: learns on 0, generates on 1-2 (2 engines)"
    assert told["note"].startswith("no node ")


def test_two_ranks_and_two_generators_learn_though_a_rank_is_killed_and_another_hangs(
    place: tuple[Home, str], tmp_path: Path
) -> None:
    at, address = place
    words = (f"ray={address}", *SPLIT, "steps=100", "prompts_per_step=8", "distractors=0", "lr=2e-3", "hang_limit_s=10")
    with trial(at, tmp_path, *words) as run:
        run.until_step(12)
        os.kill(run.pid(1), signal.SIGKILL)
        wait_for(lambda: len(run.records("header")) == 2, process=run.process)
        run.until_step(30)
        os.kill(run.pid(0), signal.SIGSTOP)
        code, said = run.end()
    assert code == 0
    assert re.search(r"rank 1 on \S+ was killed; .* \d+ \(restart 1 of 2\)", said)
    assert re.search(r"rank 0 on \S+ hangs: .*; .* \d+ \(restart 2 of 2\)", said)
    assert run.steps() == list(range(1, 101))  # each once
    assert run.records("resumed")[0]["step"] >= 10
    assert run.records("eval")[-1]["accuracy"] > run.records("eval")[0]["accuracy"] + 0.3
    assert run.records("end")[-1]["status"] == "completed"
    assert [each for each in run.records("stage") if each.get("passed") is False] == []


@pytest.mark.long
def test_a_run_that_loses_the_same_rank_again_and_again_ends_and_names_it(
    place: tuple[Home, str], tmp_path: Path
) -> None:
    at, address = place
    words = (f"ray={address}", "train_cards=0-1", "steps=20", "fault=rank-dies", "restarts=1")
    code, said, run = ran(at, tmp_path, *words)
    assert code == 1
    assert re.search(r"rank 1 on \S+ was killed$", said.rstrip())
    (last,) = run.records("ranks")
    assert last["rank"] == 1 and len(last["restarts"]) == 1


@pytest.mark.parametrize(
    ("fault", "cause", "said"),
    [
        ("generator-dies", "generator-lost", r" was killed, "),
        ("generator-garbage", "generator-lost", r"token 19, .* 19 "),
        ("stale-weights", "stale-weights", r"step 1, 2 steps .* max_staleness=1"),
    ],
)
@pytest.mark.long
def test_a_planted_fault_ends_the_run_with_its_cause(
    fault: str, cause: str, said: str, place: tuple[Home, str], tmp_path: Path
) -> None:
    at, address = place
    words = (f"ray={address}", "train_cards=0", "infer_cards=1", "steps=8", "restarts=0", f"fault={fault}")
    code, told, run = ran(at, tmp_path, *words)
    assert code == 1 and re.search(said, told)
    (stage,) = [each for each in run.records("stage") if each.get("cause")]
    assert stage["cause"] == cause and re.search(said, stage["reason"])
    assert re.search(said, run.records("ranks")[-1]["reason"])


def test_a_full_object_store_ends_the_run_in_one_sentence(place: tuple[Home, str], tmp_path: Path) -> None:
    at, address = place
    large = ("hidden=1024", "intermediate=4096", "layers=2", "heads=8", "kv_heads=8")
    words = (f"ray={address}", "train_cards=0", "infer_cards=1", "steps=2", "prompts_per_step=2", *large)
    code, said, run = ran(at, tmp_path, *words)
    assert code == 1
    full = r"StoreFull: \d+ MiB [^\n]*: `ray memory` [^\n]* --object-store-memory[^\n]*"
    assert re.fullmatch(f"trainer: {full}", said.strip())
    assert re.search(full, run.records("end")[-1]["reason"])
    assert run.records("ranks")[-1]["restarts"] == []  # another attempt would find as little


@pytest.mark.long
def test_a_ray_that_others_have_taken_is_explained_within_seconds_and_waited_for(
    place: tuple[Home, str], tmp_path: Path
) -> None:
    at, address = place
    words = (f"ray={address}", "train_cards=0", "infer_cards=1", "steps=2", LONG_WAIT)
    with held(at, address) as give_back, trial(at, tmp_path, *words) as run:
        began = time.monotonic()
        assert run.process.stderr is not None
        shared, first = run.process.stderr.readline(), run.process.stderr.readline()
        assert re.search(rf"{address} .* job \w+ \(.*\): 2 actors$", shared)
        assert time.monotonic() - began < WELL_BEFORE_S
        assert re.search(r"waits: 2 CPU on \S+ .*: \S+: 1 CPU free; .* job \w+ \(.*\): 2 actors", first)
        give_back()
        code, said = run.end()
    assert (code, said) == (0, "")
    assert run.steps() == [1, 2]


@contextlib.contextmanager
def held(at: Home, address: str) -> Iterator[Callable[[], object]]:
    """Another job in this Ray, which has seven of its eight CPUs; called, what this gives ends it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, address],
        env=at.environ,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "[True, True]\n"
        try:
            yield holder.stdin.close
        finally:
            holder.kill()


@pytest.mark.long
def test_what_no_node_has_is_told_within_seconds(place: tuple[Home, str], tmp_path: Path) -> None:
    at, address = place
    began = time.monotonic()
    code, said, _ = ran(at, tmp_path, f"ray={address}", "train_cards=0-31", "prompts_per_step=64", LONG_WAIT)
    assert code == 2
    assert re.search(r" 8 CPU .* 32 processes .* 32", said)
    code, said, _ = ran(at, tmp_path, f"ray={address}", "train_cards=0", "device=npu", LONG_WAIT)
    assert code == 2
    assert re.search(r"registered NPU: \S+: 8 CPU", said)
    assert time.monotonic() - began < WELL_BEFORE_S


def test_where_nobody_listens_is_told_at_once(place: tuple[Home, str], tmp_path: Path) -> None:
    code, said, _ = ran(place[0], tmp_path, "ray=127.0.0.1:9", "train_cards=0")
    assert code == 2
    assert re.search(rf"ray=127\.0\.0\.1:9: .*\({os.strerror(errno.ECONNREFUSED)}\)", said)


def test_ctrl_c_saves_the_step_at_hand_and_leaves_no_process_of_an_own_ray(tmp_path: Path) -> None:
    with home() as at:
        with trial(at, tmp_path, "train_cards=0-1", "infer_cards=2", "steps=5000", RAY_AUTH_MODE="") as run:
            run.until_step(3)
            os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: Ray's processes get it too
            code, said = run.end()
        assert (code, said) == (130, "")
        assert re.search(rf"resume=true .* {run.steps()[-1]}$", run.records("end")[-1]["resume"])
        wait_for(lambda: not processes_of(at))
        assert not (at.folder / ".ray").exists()  # nothing is left in the home, above all no token
