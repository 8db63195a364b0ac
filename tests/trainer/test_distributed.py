"""Several ranks learn what one would, and the one that ends a run is named."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.rank_processes import on_processes, run_ranks, run_trainer
from tests.trainer.trainer_cases import only, read, run
from trainer import device as devices
from trainer import launch
from trainer.config import parse
from trainer.distributed import World
from trainer.launch import RankExit
from trainer.metrics.checks import Agreement
from trainer.metrics.step import over_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# A rank's part of what needs two processes.
SCRIPT = """
weight = torch.nn.Parameter(torch.zeros(3))
other = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
weight.grad = torch.tensor([1.0, 2.0, 3.0]) * (world.rank + 1)
other.grad = torch.full((2,), 0.5, dtype=torch.float64)
world.all_reduce_gradients([weight, other])
found["gradients"] = [weight.grad.tolist(), other.grad.tolist()]
found["sum"] = world.all_reduce_sum(torch.tensor([world.rank + 1.0])).item()
found["largest"] = world.all_reduce_max(torch.tensor([world.rank * 5.0 + 1.0])).item()
found["gathered"] = world.gather({"rank": world.rank})
found["share"] = world.shard([0, 1, 2, 3, 4, 5])
"""


def test_one_process_is_a_world_whose_collectives_change_nothing() -> None:
    world = World.single()
    assert world.all_reduce_sum(torch.tensor([2.0])).item() == 2.0
    assert world.gather("x") == ["x"]
    assert world.shard([1, 2]) == [1, 2]
    assert world.is_first


def test_float64_travels_as_float32_where_the_collectives_know_no_wider_number(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[torch.dtype] = []

    def reduced(tensor: torch.Tensor, **how: object) -> None:
        sent.append(tensor.dtype)
        tensor.mul_(2)

    monkeypatch.setattr(torch.distributed, "all_reduce", reduced)
    two, value = World(0, 2), torch.tensor([1.5, 3.0], dtype=torch.float64)
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    weight.grad = torch.ones(1, dtype=torch.float64)
    assert two.all_reduce_sum(value) is value
    monkeypatch.setattr(devices, "reduces_float64", lambda device: False)
    two.all_reduce_max(value)
    two.all_reduce_sum(torch.ones(1, dtype=torch.int64))
    two.all_reduce_gradients([weight])
    assert sent == [torch.float64, torch.float32, torch.int64, torch.float32]
    assert (value.dtype, value.tolist(), weight.grad.tolist()) == (torch.float64, [6.0, 12.0], [2.0])


def test_only_an_npu_is_known_not_to_add_float64() -> None:
    assert [devices.reduces_float64(torch.device(name)) for name in ("cpu", "cuda:0", "meta")] == [True, True, False]


def test_two_ranks_all_reduce_gradients_and_values(tmp_path: Path) -> None:
    for rank, found in enumerate(on_processes(SCRIPT, tmp_path)):
        assert found == {
            "gradients": [[3.0, 6.0, 9.0], [1.0, 1.0]],
            "sum": 3.0,
            "largest": 6.0,
            "gathered": [{"rank": 0}, {"rank": 1}],
            "share": [rank, rank + 2, rank + 4],
        }


def test_two_ranks_give_the_update_of_one_when_they_see_its_rows(tmp_path: Path) -> None:
    """With scripted answers the rollouts do not depend on who draws them: the weights after two steps agree."""
    script = tmp_path / "answers.jsonl"
    script.write_text('["1", "2"]\n')
    words = [
        "steps=2", "distractors=0", "prompts_per_step=10", "rollouts_per_prompt=2", "mini_batches=1",
        "engine=scripted", f"script={script}", "lr=0.01", "reward=exact", "dtype=float64",
    ]  # fmt: skip
    one, two = (
        [
            (step["actor/loss"], step["actor/grad_norm"], step["critic/score/mean"])
            for step in records
            if step["kind"] == "step"
        ]
        for records in (run(tmp_path / "one", parse(words, devices=("auto",))), run_ranks(tmp_path / "two", *words))
    )
    assert len(one) == len(two) == 2
    for alone, shared in zip(one, two, strict=True):
        assert shared == pytest.approx(alone, abs=1e-9)


def test_ranks_with_other_weights_are_told_with_the_step_where_it_began() -> None:
    check = Agreement()
    check.add(1, [5, 5, 5])
    check.add(2, [5, 6, 5])
    check.add(3, [7, 6, 8])
    assert check.result() == {"passed": False, "steps": 3, "unequal": 2, "first_step": 2, "ranks": [1]}
    assert Agreement().result()["passed"] is None  # nothing was measured


def test_the_rank_that_ended_a_run_is_named() -> None:
    assert re.fullmatch(r"rank 1 \w+ \w+ \w+ SIGKILL", str(RankExit(1, -signal.SIGKILL)))
    assert re.fullmatch(r"rank 0 \w+ \w+ 1", str(RankExit(0, 1)))


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_others_do_not_hang(tmp_path: Path) -> None:
    assert run_trainer(tmp_path, "ranks=2", "steps=50", "fault=rank-dies").returncode == 1
    found = only(read(tmp_path), kind="ranks")
    assert (found["rank"], found["code"], found["reason"]) == (1, -9, str(RankExit(1, -signal.SIGKILL)))


@pytest.mark.slow
def test_a_rank_with_other_weights_is_found_in_the_step_where_it_differs(tmp_path: Path) -> None:
    found = only(run_ranks(tmp_path, "steps=4", "fault=rank-differs"), kind="stage", name="ranks-agree")
    assert (found["passed"], found["first_step"], found["ranks"]) == (False, 2, [1])


def test_numbers_of_several_ranks_are_added_averaged_or_the_worst_by_their_name() -> None:
    one = {"critic/score/mean": 1.0, "response_length/max": 3, "response_length/min": 2, "generated_tokens": 5}
    two = {"critic/score/mean": 0.0, "response_length/max": 4, "response_length/min": 1, "generated_tokens": 6}
    assert over_ranks([one, two]) == {
        "critic/score/mean": 0.5,
        "response_length/max": 4,
        "response_length/min": 1,
        "generated_tokens": 11,
    }
    assert over_ranks([one]) == one


def test_ranks_that_cannot_write_their_logs_are_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        launch.run_ranks(["--out", "x"], 2, tmp_path / "file" / "logs")
