"""Faults planted in copies of the trainer's source are named, and runs without one are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.smoke.planted.cases import FAULTS, HAS_RAY, HEALTHY, ROOT, RUNNABLE, plant

torch = pytest.importorskip("torch", reason="the trainer needs torch, which comes with a stack, not with npuenv")
# One of each kind: advantage, loss, reference, gradient, schedule, data, state, sampling, rewards, order, weights sent.
FEW = (
    "baseline-is-the-lowest",
    "entropy-punished",
    "reference-creeps",
    "norm-gradient-without-projection",
    "another-rate-than-said",
    "first-half-twice",
    "moments-forgotten",
    "one-number-for-all-rows",
    "judged-by-the-next-prompt",
    "same-order-in-each-step",
    "sent-in-bfloat16",
)


def table(*words: str) -> list[tuple[str, str]]:
    """The outcome and the line of each fault, or of each healthy run."""
    paths = [str(Path(torch.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.smoke.planted.cases", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = ended.stdout.splitlines()[:-1]
    return [(line.split()[0], line) for line in lines]


@pytest.mark.slow
def test_each_fault_changes_one_place_of_the_source(tmp_path: Path) -> None:
    for fault in FAULTS:
        source = (plant(fault, tmp_path / fault["id"]) / "trainer" / fault["file"]).read_text("utf-8")
        compile(source, fault["file"], "exec")


@pytest.mark.slow
def test_a_fault_of_each_kind_is_named() -> None:
    found = table(*FEW)
    assert len(found) == len(FEW)
    assert [line for outcome, line in found if outcome != "named"] == []


@pytest.mark.slow
@pytest.mark.long
def test_four_of_five_faults_are_named_and_hardly_one_is_blamed_on_something_else() -> None:
    found = table()
    outcomes = [outcome for outcome, _ in found]
    assert len(found) == len(RUNNABLE) >= 50
    assert outcomes.count("named") >= 0.8 * len(found), found
    assert outcomes.count("blamed") <= 0.03 * len(found), found


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.skipif(not HAS_RAY, reason="Ray, which comes with the stack cpu-full, starts the generators")
@pytest.mark.long
def test_a_fault_between_generators_is_named() -> None:
    ((outcome, line),) = table("generators-backwards")
    assert outcome == "named", line


@pytest.mark.slow
@pytest.mark.long
def test_runs_without_a_fault_raise_no_alarm() -> None:
    found = table("--healthy")
    assert len(found) == len(HEALTHY) >= 60
    assert [line for outcome, line in found if outcome != "fine"] == []
