"""Runs with generators in processes of their own: killed, interrupted, broken on purpose, and learning."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.trainer.generator_cases import Crew
from tests.trainer.trainer_cases import CPU, TINY, changed, of_a_child, only, read
from trainer.build import build_trainer
from trainer.engines import remote
from trainer.engines.generator_client import EngineSpec
from trainer.engines.process import ProcessGenerator, pool
from trainer.loop import train_step
from trainer.metrics.records import FILE
from trainer.run_state import state_of
from trainer.saving.checkpoint import difference
from trainer.tasks import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

AHEAD = changed(
    TINY, layers=1, distractors=0, steps=1000, generators=2, off_policy=1, correction="token",
    generator_timeout_s=120.0,
)  # fmt: skip
KILLS = 20


@pytest.fixture(autouse=True)
def of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators find the trainer, and torch, as this process does."""
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, of_a_child()[name])


def wait_for(condition: Any, limit_s: float = 240.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    """Processes that a process has started and that run; Linux alone tells."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(each) for each in path.read_text(encoding="ascii").split()] if path.exists() else []
    return [each for each in found if Path(f"/proc/{each}/stat").read_text(encoding="ascii").split()[2] != "Z"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.long
def test_generators_killed_at_twenty_moments_change_no_bit_of_the_run() -> None:
    """Each moment is random within a step, generation, publishing and learning alike; the victim is too."""
    order, others = EngineSpec.of(AHEAD, choose(AHEAD), seed=0), children_of(os.getpid())
    crew = pool(order, (0, 1))
    live = build_trainer(AHEAD, CPU, seed=0, engine=remote.over(crew, order, seed=0))
    chance, step, killed = random.Random(5), 0, 0
    try:
        while len(crew.losses) < KILLS:
            step += 1
            is_noticed = len(crew.losses) == killed and not any(slot.is_new for slot in crew.slots)
            if killed < KILLS and is_noticed:
                victim = crew.slots[chance.randrange(2)].generator
                assert isinstance(victim, ProcessGenerator)
                killer = threading.Timer(chance.random() * 0.04, os.kill, (victim.pid, signal.SIGKILL))
                killer.start()
                train_step(live, step)
                killer.join()
                killed += 1
            else:
                train_step(live, step)
    finally:
        live.close()
    assert all(each.endswith(" SIGKILL") for each in crew.losses)
    assert {*children_of(os.getpid())} <= {*others}
    whole = build_trainer(AHEAD, CPU, seed=0, engine=Crew(AHEAD).engine(2, seed=0))
    for number in range(1, step + 1):
        train_step(whole, number)
    assert difference(state_of(live, step), state_of(whole, step)) is None


WORDS = (
    "device=cpu", "layers=1", "hidden=16", "heads=4", "kv_heads=2", "intermediate=24", "prompts_per_step=4",
    "rollouts_per_prompt=4", "mini_batches=1", "distractors=0", "generators=2",
)  # fmt: skip


def begun(out: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trainer", "--out", str(out), *WORDS, *words],
        stderr=subprocess.PIPE, text=True, env=of_a_child(),
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=300)
    return process.returncode, said


def computed(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a run's steps came to, without times."""
    left_out = ("timing", "perf/", "wall_s", "generators/", "learner/idle_s")
    return [
        {name: value for name, value in each.items() if not name.startswith(left_out)}
        for each in records
        if each["kind"] == "step"
    ]


def steps_in(out: Path) -> int:
    """So far; the last line may not be written to its end."""
    return (out / FILE).read_text(encoding="utf-8").count('"kind": "step"') if (out / FILE).exists() else 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.long
def test_an_interrupted_run_leaves_no_process_and_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    words = ("off_policy=1", "steps=400", "lr_schedule=constant")
    whole, cut = begun(tmp_path / "whole", *words), begun(tmp_path / "cut", *words)
    try:
        wait_for(lambda: steps_in(tmp_path / "cut") > 3)
        children = children_of(cut.pid)
        cut.send_signal(signal.SIGINT)
        code, _ = ended(cut)
        assert (code, len(children)) == (130, 2)
        assert not any(Path(f"/proc/{pid}").exists() for pid in children)
        assert steps_in(tmp_path / "cut") < 400
        assert ended(begun(tmp_path / "cut", *words, "resume=true"))[0] == 0
        assert ended(whole)[0] == 0
    finally:
        whole.kill()
        cut.kill()
    assert computed(read(tmp_path / "cut")) == computed(read(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "cause", "said"),
    [
        ("generator-dies", "generator-lost", " SIGKILL, "),
        ("generator-garbage", "generator-lost", "token 19, .* 19 "),
        ("stale-weights", "stale-weights", "step 1, 2 steps .* max_staleness=1"),
    ],
)
def test_a_planted_fault_ends_the_run_with_its_cause(tmp_path: Path, fault: str, cause: str, said: str) -> None:
    code, told = ended(begun(tmp_path, f"fault={fault}", "steps=8"))
    assert code == 1
    assert re.search(said, told) and told.count("\n") == 1
    records = read(tmp_path)
    assert re.search(said, only(records, kind="stage", name="generation", cause=cause)["reason"])
    assert re.search(said, only(records, kind="end")["reason"])
