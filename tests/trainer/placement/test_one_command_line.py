"""One command line of `npuenv smoke-train`, with the options that place it: it learns the same wherever it runs.

On one process; on two ranks that hold a shard each; split over two such ranks and a generator, in Ray; over a rank and
a generator that is one step behind; and over three hosts, which are namespaces of this machine, two of them with a
rank and the third with the generator. Each run passes the smoke test's own judgement, and is compared with that of one
process by the questions it answers after the last step. Whoever generates draws from random numbers of its own, so the
runs differ from the first step on; only the three hosts do what this machine does, to the bit.

The noise: of the 30 held-out questions none is answered before. After sixty steps all 30 were by one process and by one
step off-policy with seeds 1 to 8 each, by two ranks with seeds 1 to 6, and by each of the five runs here, with seed 1,
on one x86_64 machine with torch 2.13. Other processors and releases of torch round otherwise, so the bounds leave room
for what 45 steps at lr=1.2e-3 come to: 26 to 30.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import namespaces
from tests.trainer.placement.ray_cases import NEEDS_RAY, home, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = NEEDS_RAY

WORDS = (
    "seed=1", "steps=60", "lr=1e-3", "prompts_per_step=32", "rollouts_per_prompt=16", "mini_batches=4", "device=cpu",
    "probe_packages=false",
)  # fmt: skip
RANKS = ("ranks=2", "sharding=fsdp2")
SPLIT = ("--train-cards", "0-1", "--infer-cards", "2", "sharding=fsdp2")
AHEAD = ("--train-cards", "0", "--infer-cards", "1", "--off-policy", "1")
LIMIT_S = 600.0
# Of 30 held-out questions: what each run must answer, and how far it may be from what one process answers.
AT_LEAST, AT_MOST_BEFORE, APART = 26, 3, 3
NUMBERS = ("actor/loss", "actor/grad_norm", "critic/score/mean", "generated_tokens")
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Learnt:
    """What came of a run."""

    before: int  # held-out questions that are answered right
    after: int
    steps: Sequence[tuple[float, ...]]  # of each step, what the arithmetic decides

    @classmethod
    def of(cls, code: int, said: str, out: Path) -> Learnt:
        """From the one document that a run printed, and its records."""
        document = json.loads(said)
        assert (code, document["exit"], document["verdict"]) == (0, 0, "pass"), document["says"]
        (end,) = document["run"]["end"]
        assert end["status"] == "completed"
        before, after = (each["num_correct"] for each in document["run"]["eval"])
        steps = [tuple(each[name] for name in NUMBERS) for each in records(out) if each["kind"] == "step"]
        assert len(steps) == 60
        return cls(before, after, steps)


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def target() -> Path:
    """The environment that Ray lies in: its interpreter runs the trainer, this one only `npuenv`."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parents[4]


def command(out: Path, *options: str) -> list[str]:
    argv = [sys.executable, "-m", "npuenv", "smoke-train", "--target", str(target()), "-o", str(out), "--json"]
    return [*argv, *options, *WORDS]


def learnt(out: Path, *options: str) -> Learnt:
    with home() as at:
        ran = subprocess.run(
            command(out, *options), env={**at.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert ran.stdout, ran.stderr
    return Learnt.of(ran.returncode, ran.stdout, out)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Learnt:
    """What one process learns, without Ray."""
    return learnt(tmp_path_factory.mktemp("alone") / "out")


def check_alike(found: Learnt, alone: Learnt) -> None:
    assert max(found.before, alone.before) <= AT_MOST_BEFORE
    assert min(found.after, alone.after) >= AT_LEAST
    assert abs(found.after - alone.after) <= APART


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Learnt:
    """What two ranks and a generator learn, in a Ray of their own on this machine."""
    return learnt(tmp_path_factory.mktemp("split") / "out", *SPLIT, "--ray", "local")


@pytest.mark.long  # of shards, each update: test_distributed_sharding_runs.py
def test_two_ranks_learn_what_one_process_learns(alone: Learnt, tmp_path: Path) -> None:
    check_alike(learnt(tmp_path / "out", *RANKS), alone)


@pytest.mark.long
def test_ranks_and_a_generator_apart_learn_what_one_process_learns(alone: Learnt, split: Learnt) -> None:
    check_alike(split, alone)


@pytest.mark.long
def test_a_generator_one_step_behind_learns_what_one_process_learns(alone: Learnt, tmp_path: Path) -> None:
    check_alike(learnt(tmp_path / "out", *AHEAD, "--ray", "local"), alone)


@pytest.mark.long
def test_three_hosts_learn_what_one_process_learns_and_take_the_steps_of_one_host(
    alone: Learnt, split: Learnt, tmp_path: Path
) -> None:
    if (reason := namespaces.why_not()) is not None:
        pytest.skip(reason)
    out, place = tmp_path / "out", tmp_path / "hosts"
    place.mkdir()
    interpreter = (target() / "bin" / "python").resolve()
    keep = [tmp_path, target(), interpreter.parents[1], *map(Path, sys.path[1:])]
    environ = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_agent_register_timeout_ms": "120000"}
    environ |= {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "26379", "WORLD_SIZE": "3"}
    with ExitStack() as stack:
        hosts = stack.enter_context(namespaces.machines(place, 3, devices=8, env=environ, keep=keep))
        programs: list[subprocess.Popen[bytes]] = []
        logs = [tmp_path / f"{host.name}.log" for host in hosts]
        for number, host in enumerate(hosts):
            out_of = stack.enter_context(logs[number].open("wb"))
            programs.append(host.start("env", f"RANK={number}", *command(out, *SPLIT, "--nodes", "3"), log=out_of))
            stack.callback(programs[-1].kill)
        codes = [program.wait(timeout=LIMIT_S) for program in programs]
        assert codes == [0, 0, 0], [log.read_text() for log in logs]
        printed = [text[text.index("{") :] for text in (log.read_text() for log in logs)]  # after notes of stderr
        found = Learnt.of(codes[0], printed[0], out)
        placed = next(each for each in records(out) if each["kind"] == "header")["placement"]
        assert placed["ranks"] + placed["generators"] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
        for text in printed[1:]:
            document = json.loads(text)
            assert (document["schema"], document["head"]) == ("npuenv.smoke-node/1", "10.77.0.1")
        wait_for(lambda: not any("ray" in line for host in hosts for line in host.processes()))
    check_alike(found, alone)
    assert found.steps == split.steps
