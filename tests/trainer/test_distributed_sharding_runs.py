"""Whole runs whose ranks keep some rows of every weight each: they learn, go on and fail as those of one process do."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from tests.trainer.rank_processes import run_ranks, run_trainer
from tests.trainer.trainer_cases import CPU, only, read, run
from trainer import saving
from trainer.config import parse
from trainer.launch import RankExit
from trainer.metrics.records import Progress, Records
from trainer.supervised import warm_start
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
if find_spec("torch.distributed.fsdp") is None:  # loading it takes seconds
    pytest.skip("this torch has no fully sharded data parallelism", allow_module_level=True)

SHARDED = ("ranks=2", "sharding=fsdp2")
# Of a step, what the arithmetic decides; the rest is time and memory.
NUMBERS = ("actor/loss", "actor/grad_norm", "actor/kl_loss", "actor/entropy", "critic/score/mean", "generated_tokens")


def done(out: Path, *words: str) -> list[dict[str, Any]]:
    """The records of a run that completed."""
    ended = run_trainer(out, *words)
    assert ended.returncode == 0, ended.stderr
    return read(out)


def numbers(records: list[dict[str, Any]]) -> dict[int, list[float]]:
    """By step."""
    return {each["step"]: [each[name] for name in NUMBERS] for each in records if each["kind"] == "step"}


def failed(records: list[dict[str, Any]]) -> list[str]:
    """The stages that did not pass."""
    return [each["name"] for each in records if each["kind"] == "stage" and each["passed"] is False]


def test_with_the_same_rollouts_every_update_is_that_of_one_process(tmp_path: Path) -> None:
    script = tmp_path / "answers.jsonl"
    script.write_text('["1", "2"]\n')
    words = [
        "steps=2", "distractors=0", "prompts_per_step=10", "rollouts_per_prompt=2", "mini_batches=1",
        "engine=scripted", f"script={script}", "lr=0.01", "reward=exact", "dtype=float64", "micro_batch_rows=3",
    ]  # fmt: skip
    one = numbers(run(tmp_path / "one", parse(words, devices=("auto",))))
    two = numbers(run_ranks(tmp_path / "two", "sharding=fsdp2", *words))
    assert one.keys() == two.keys() == {1, 2}
    for step, found in two.items():
        assert found == pytest.approx(one[step], abs=1e-9)


@pytest.mark.long
def test_a_run_goes_on_with_the_same_bits_and_then_on_more_ranks_and_on_one(tmp_path: Path) -> None:
    words = ["prompts_per_step=6", "rollouts_per_prompt=2", "save_every=2", "lr_schedule=constant"]
    wanted = numbers(done(tmp_path / "whole", *SHARDED, *words, "steps=4"))
    again = tmp_path / "again"
    done(again, *SHARDED, *words, "steps=2")
    assert numbers(done(again, *SHARDED, *words, "steps=4", "resume=true")) == wanted
    for ranks, steps in ((3, 6), (1, 8)):
        more = [f"ranks={ranks}", "sharding=fsdp2", f"steps={steps}", "resume=true"]
        records = done(again, *words, *more)
        resumed = [each for each in records if each["kind"] == "resumed"][-1]
        assert resumed["changed"]["ranks"] == [2 if ranks == 3 else 3, ranks]
        assert max(numbers(records)) == steps
        assert only(records[-20:], kind="stage", name="checkpoint")["passed"] is True
    saved = saving.read_manifest(again / "checkpoint")
    assert saved is not None
    assert (saved.step, saved.files) == (8, {})  # one process writes one file


@pytest.mark.long
def test_a_killed_rank_is_named_and_the_other_does_not_hang(tmp_path: Path) -> None:
    ended = run_trainer(tmp_path, *SHARDED, "steps=50", "fault=rank-dies")
    assert ended.returncode == 1
    found = only(read(tmp_path), kind="ranks")
    assert (found["rank"], found["code"], found["reason"]) == (1, -9, str(RankExit(1, -9)))


def test_a_rank_that_samples_with_other_weights_is_found_in_the_step_where_it_does(tmp_path: Path) -> None:
    records = run_ranks(tmp_path, "sharding=fsdp2", "steps=4", "fault=rank-differs")
    found = only(records, kind="stage", name="ranks-agree")
    assert (found["passed"], found["first_step"], found["ranks"]) == (False, 2, [1])


@pytest.mark.long
def test_a_turned_bit_in_a_shard_fails_the_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    records = done(tmp_path, *SHARDED, "steps=4", "fault=corrupt-checkpoint")
    assert failed(records) == ["checkpoint"]
    assert re.search(r"\.distcp has .* [0-9a-f]{16,}", only(records, kind="stage", name="checkpoint")["reason"])
    ended = run_trainer(tmp_path, *SHARDED, "steps=6", "fault=corrupt-checkpoint", "resume=true")
    assert ended.returncode == 2
    assert re.search(r"\.distcp has .* [0-9a-f]{16,}", ended.stderr)


def test_a_warm_start_learns_on_shards_too(tmp_path: Path) -> None:
    words = ["steps=1", "warm_start_steps=30", "prompts_per_step=10"]
    config = parse(words, devices=("auto",))
    with Records(tmp_path / "one") as records:
        warm_start.run(build_trainer(config, CPU, seed=0), config, records, Progress())
    one, two = (
        [each["loss"] for each in found if each["kind"] == "warm-start"]
        for found in (read(tmp_path / "one"), run_ranks(tmp_path / "two", "sharding=fsdp2", *words))
    )
    assert two == pytest.approx(one, rel=1e-3)
    assert two[-1] < two[0] - 0.5
