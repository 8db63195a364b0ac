"""Several ranks learn what one would, and the one that ends a run is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from tests.trainer.core_cases import ADAPTIVE, batch, learner, on_ranks, update
from trainer import launch
from trainer.__main__ import main
from trainer.algorithms.update_metrics import UpdateMetrics
from trainer.distributed import World
from trainer.launch import Interrupt, RankExit, run_ranks
from trainer.learner import ForwardOutputs
from trainer.run_state import learner_state

if TYPE_CHECKING:
    from collections.abc import Sequence


pytestmark = pytest.mark.slow

# The groups of each rank: unequal in rows' lengths and in width.
SHARES: Sequence[tuple[int, ...]] = ((0,), (1, 2))


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
)
@pytest.mark.parametrize("convention", ["verl", "trl", "roll"])
def test_ranks_with_unequal_shares_make_the_gradient_and_numbers_of_one(aggregation: str, convention: str) -> None:
    settings: dict[str, Any] = {
        "aggregation": aggregation,
        "kl_coef": 0.1,
        "entropy_coef": 0.05,
        "convention": convention,
    }

    def job(world: World, *numbers: int) -> tuple[UpdateMetrics, dict[str, Tensor]]:
        made = learner(world, **settings)
        found = update(made, batch(*(numbers or SHARES[world.rank])))
        return found, {name: each.grad for name, each in made.model.named_parameters() if each.grad is not None}

    wanted, gradient = job(World.single(), 0, 1, 2)
    for found, own in on_ranks(job):
        assert max(float((own[name] - gradient[name]).abs().max()) for name in gradient) < 1e-12
        for each in fields(UpdateMetrics):
            assert getattr(found, each.name) == pytest.approx(getattr(wanted, each.name)), each.name


def test_the_adaptive_coefficient_is_the_same_on_all_ranks_and_that_of_one() -> None:
    def job(world: World, *numbers: int) -> float:
        made, of = learner(world, **ADAPTIVE, kl_target=0.2), batch(*(numbers or SHARES[world.rank]))
        # Rank 0's tokens are far from the reference, the other's are close.
        nats_B1 = torch.where(of.prompts_PS[of.prompt_of_B, :1] == 1, 0.5, 0.05).double()
        known = ForwardOutputs(
            torch.zeros_like(of.rollout_logprobs_BT), -nats_B1.expand_as(of.rollout_logprobs_BT), None
        )
        made.compute_advantages(of, known)
        return float(learner_state(made)["kl_coef"])

    # 6 of 17 tokens at 0.5 nats, 11 at 0.05: 4.4 % above the target
    wanted = 0.1 * (1 + ((6 * 0.5 + 11 * 0.05) / 17 / 0.2 - 1) * 9 / 100)
    assert job(World.single(), 0, 1, 2) == pytest.approx(wanted)
    assert on_ranks(job) == pytest.approx([wanted, wanted])


def test_advantages_are_whitened_over_the_tokens_of_all_ranks() -> None:
    def job(world: World, *numbers: int) -> Tensor:
        of = batch(*(numbers or SHARES[world.rank]))
        judged = learner(world, estimator="reinforce_plus_plus").compute_advantages(
            of, ForwardOutputs(None, None, None)
        )
        return judged.advantages_BT[of.mask_BT]

    assert torch.allclose(torch.cat(on_ranks(job)), job(World.single(), 0, 1, 2))


# The ranks as processes.

RANK = """
import os, pathlib, signal, sys, time
rank, folder = int(os.environ["RANK"]), pathlib.Path(__file__).parent
assert os.environ["RANK"] == os.environ["LOCAL_RANK"] and os.environ["WORLD_SIZE"] == "2"
(folder / f"place-{rank}").write_text(os.environ["TRAINER_RENDEZVOUS"])
print("said by", rank, file=sys.stderr, flush=True)
while not all((folder / f"place-{each}").exists() for each in range(2)):
    time.sleep(0.005)
"""


def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> RankExit:
    """How two ranks end of which each does this once both are there."""
    file, popen = tmp_path / "child.py", subprocess.Popen
    file.write_text(RANK + text)

    def start(argv: list[str], **options: Any) -> Any:
        return popen([sys.executable, "-S", str(file)], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    return run_ranks([], 2, tmp_path / "logs")


def test_ranks_end_when_the_last_one_does_and_meet_in_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = ranks(tmp_path, monkeypatch, "time.sleep(0.3 * rank)\n(folder / f'end-{rank}').touch()")
    assert ended == RankExit(0, 0)
    assert (tmp_path / "end-1").exists()
    assert (tmp_path / "place-0").read_text() == (tmp_path / "place-1").read_text()
    assert (tmp_path / "logs" / "rank-1.log").read_text() == "said by 1\n"
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["rank-1.log"]


def test_a_rank_that_fails_after_the_first_has_ended_well_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ranks(tmp_path, monkeypatch, "time.sleep(0.2 * rank)\nsys.exit(3 * rank)") == RankExit(1, 3)


def test_a_rank_that_a_signal_ended_is_named_before_one_that_failed_because_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is seen first: the kill takes a moment to arrive."""
    monkeypatch.setattr("trainer.launch._GRACE_S", 120.0)
    text = "if rank == 0:\n    sys.exit(1)\ntime.sleep(0.1)\nos.kill(os.getpid(), signal.SIGKILL)"
    assert ranks(tmp_path, monkeypatch, text) == RankExit(1, -9)


ABORT = "import resource\n    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n    os.abort()"


@pytest.mark.parametrize("end", [ABORT, "sys.exit(1)"], ids=["abort", "error"])
@pytest.mark.slow
def test_a_rank_that_gave_up_long_before_the_kill_it_gave_up_for_is_seen_is_not_named(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the survivor is gone a second before the killed rank is seen to be."""
    monkeypatch.setattr("trainer.launch._GRACE_S", 120.0)
    text = f"if rank == 0:\n    {end}\ntime.sleep(1)\nos.kill(os.getpid(), signal.SIGKILL)"
    assert ranks(tmp_path, monkeypatch, text) == RankExit(1, -9)


ABORTED, KILLED = -6, -9


@pytest.mark.parametrize(
    ("seen", "codes", "named"),
    [
        ([ABORTED, None], [ABORTED, KILLED], RankExit(1, KILLED)),
        ([ABORTED, KILLED], [ABORTED, KILLED], RankExit(1, KILLED)),
        ([1, None, ABORTED], [1, KILLED, ABORTED], RankExit(1, KILLED)),
        # an abort of its own, and one for a rank that an error ended
        ([None, ABORTED], [1, ABORTED], RankExit(1, ABORTED)),
        ([None, 1], [ABORTED, 1], RankExit(1, 1)),
        ([1, ABORTED], [1, ABORTED], RankExit(1, ABORTED)),
        ([ABORTED, None], [ABORTED, None], RankExit(0, ABORTED)),
        # all for the same reason, the second a moment earlier: the first has the records
        ([None, 2], [2, 2], RankExit(0, 2)),
        ([0, 3], [0, 3], RankExit(1, 3)),
    ],
)
def test_the_rank_that_the_others_failed_for_is_told_from_them(
    seen: list[int | None], codes: list[int | None], named: RankExit
) -> None:
    assert launch._cause(seen, codes) == named


# The ranks tell their numbers, each before it goes on: one that ends is not to be ahead of what the other says.
TELL = """
(folder / f'pid-{rank}').write_text(str(os.getpid()))
while not all((folder / f"pid-{each}").is_file() and (folder / f"pid-{each}").read_text() for each in range(2)):
    time.sleep(0.005)
"""


def test_ranks_that_hang_after_another_failed_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.launch._GRACE_S", 0.2)
    began = time.monotonic()
    assert ranks(tmp_path, monkeypatch, f"{TELL}if rank == 1:\n    sys.exit(2)\ntime.sleep(600)") == RankExit(1, 2)
    assert time.monotonic() - began < 300
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid-0").read_text()), 0)


def test_a_rank_that_does_not_end_with_the_others_is_named_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.launch._TOGETHER_S", 0.3)
    monkeypatch.setattr("trainer.launch._GRACE_S", 0.2)
    ended = ranks(tmp_path, monkeypatch, f"{TELL}if rank == 1:\n    time.sleep(600)")
    assert (ended.rank, ended.code, ended.is_stuck) == (1, 1, True)
    assert re.search(r"^rank 1 .* 0\.3 s ", str(ended))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid-1").read_text()), 0)


def test_ranks_are_stopped_where_one_of_them_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, popen = list[Any](), subprocess.Popen

    def start(argv: list[str], **options: Any) -> Any:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(BlockingIOError):
        run_ranks([], 2, tmp_path / "logs")
    assert started[0].returncode == -9


LAUNCHER = """
import os, pathlib, subprocess, sys
from trainer import launch
folder, popen = pathlib.Path(sys.argv[1]), subprocess.Popen
code = "import os, sys, time, pathlib; from trainer import launch; launch.end_with_launcher(); "
code += "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(str(os.getpid())); time.sleep(300)"
subprocess.Popen = lambda argv, **options: popen([sys.executable, "-c", code, str(folder)], **options)
launch.run_ranks([], 2, folder / "logs")
"""


@pytest.mark.parametrize(
    ("begin", "ranks", "told"),
    [
        ("", "2", ["said"]),
        ("sys.modules['trainer.placement.supervise'] = sys\n", "1", ["said"]),
        ("", "1", ["said", "taken down"]),
        ("sys.modules['ray'] = sys\n", "1", ["said", "taken down"]),
    ],
    ids=["rank", "supervisor", "alone", "with a vllm that imports Ray"],
)
def test_a_process_with_threads_of_others_ends_without_the_interpreters_end(
    begin: str, ranks: str, told: list[str]
) -> None:
    program = f"import atexit, sys\nfrom trainer import launch\n{begin}atexit.register(print, 'taken down')\n"
    program += "print('said')\nlaunch.leave(3)"
    environ = {**os.environ, "PYTHONPATH": str(Path(launch.__file__).parents[1]), "WORLD_SIZE": ranks, "RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (3, told, "")


@pytest.mark.skipif(sys.platform != "linux", reason="a process hears of its parent's end on Linux alone")
def test_ranks_do_not_outlive_the_process_that_started_them(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(launch.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)], env=environ) as leader:
        files = [tmp_path / "0", tmp_path / "1"]
        deadline = time.monotonic() + 240
        while not all(each.is_file() and each.read_text() for each in files) and time.monotonic() < deadline:
            time.sleep(0.02)
        pids = [int(each.read_text()) for each in files]
        leader.kill()
        while any(map(is_running, pids)) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert [pid for pid in pids if is_running(pid)] == []


def is_running(pid: int) -> bool:
    """Whether it computes: one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends while this is read
        return False


def test_ranks_that_a_launcher_did_not_start_so_many_of_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert main(["--out", str(tmp_path), "ranks=8", "device=cpu"], interrupt=Interrupt()) == 2
    assert re.search(r"ranks=8, .* WORLD_SIZE=2 .* 2 processes", capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_a_process_alone_is_rank_0_whatever_a_launcher_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert (launch.is_rank(), launch.rank()) == (False, 0)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (launch.is_rank(), launch.rank()) == (True, 3)


def test_ranks_that_a_launcher_started_are_checked_as_if_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    words = ["--out", str(tmp_path), "device=cpu"]
    for word, says in {
        "estimator=gae": "estimator=gae .* ranks=1",
        "prompts_per_step=15": "prompts_per_step=15 .* ranks=2",
        "ranks=1": "ranks=1, .* WORLD_SIZE=2 .* 2 processes",
    }.items():
        assert main([*words, word], interrupt=Interrupt()) == 2
        assert re.search(says, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []
