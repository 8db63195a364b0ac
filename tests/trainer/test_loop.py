"""The loop as a whole: it learns, it does not learn when it must not, and each fault shows in its own measurement."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from trainer_cases import TINY, only, rollout, run, scripted

from trainer.config import Config
from trainer.loop import advance, assemble, draw
from trainer.metrics.progress import Progress
from trainer.tasks.base import END
from trainer.tasks.successor import successor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHECKS = ("mask", "sampler-weights", "logprobs", "checkpoint")
SHORT = replace(TINY, steps=4)


def passed(records: list[dict[str, Any]]) -> Mapping[str, bool]:
    return {name: only(records, kind="check", name=name)["passed"] for name in CHECKS}


def accuracy(records: list[dict[str, Any]]) -> tuple[float, float]:
    """Held-out greedy accuracy before and after."""
    before, after = (only(records, kind="eval", when=when)["accuracy"] for when in ("before", "after"))
    return before, after


def mean_reward(records: list[dict[str, Any]], steps: slice) -> float:
    rewards = [record["reward_mean"] for record in records if record["kind"] == "step"][steps]
    return float(sum(rewards) / len(rewards))


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The records of a run at the default settings."""
    torch.set_num_threads(1)
    return run(tmp_path_factory.mktemp("run"), Config())


def test_at_the_default_settings_reward_and_held_out_accuracy_rise(learnt: list[dict[str, Any]]) -> None:
    before, after = accuracy(learnt)
    assert before <= 0.1
    assert after >= 0.9
    assert mean_reward(learnt, slice(-10, None)) > mean_reward(learnt, slice(0, 10)) + 0.5
    assert set(passed(learnt).values()) == {True}


def test_the_records_hold_together(learnt: list[dict[str, Any]]) -> None:
    steps = [record for record in learnt if record["kind"] == "step"]
    assert [record["step"] for record in steps] == list(range(1, Config().steps + 1))
    assert [record["lr"] for record in steps] == sorted((record["lr"] for record in steps), reverse=True)
    # The second mini batch of a step is trained on with a policy that has moved: the clipped ratio is at work.
    assert max(record["ratio_max"] for record in steps) > 1.2
    assert max(record["clip_fraction"] for record in steps) > 0.0
    assert all(record["kl"] >= 0 and record["entropy"] > 0 for record in steps)
    assert steps[0]["kl"] < 0.01 < steps[-1]["kl"]
    mask = only(learnt, kind="check", name="mask")
    assert mask["generated_tokens"] == sum(record["tokens"] for record in steps)
    after = only(learnt, kind="eval", when="after")
    assert after["num_correct"] == sum(after["correct"])
    assert after["num_prompts"] == len(after["correct"]) == 30
    assert [sample["prompt"] for sample in after["samples"]] == ["10=", "32=", "54=", "76=", "98="]


@pytest.mark.parametrize("change", [{"lr": 0.0}, {"fault": "shuffled-reward"}, {"fault": "zero-advantage"}])
def test_it_does_not_learn_when_it_must_not(tmp_path: Path, change: dict[str, Any]) -> None:
    records = run(tmp_path, replace(Config(), steps=100, **change))
    before, after = accuracy(records)
    assert before <= 0.1
    # A policy that says one digit to everything is right for three of thirty, whatever it was rewarded for.
    assert after <= 0.1
    assert set(passed(records).values()) == {True}


def test_a_learning_rate_of_nothing_leaves_the_policy_where_it_was(tmp_path: Path) -> None:
    records = run(tmp_path, replace(SHORT, lr=0.0))
    assert {record["kl"] for record in records if record["kind"] == "step"} == {0.0}


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ("none", set()),
        ("mask-off-by-one", {"mask", "logprobs"}),
        # The restored sampler has the learner's weights and the running one has not: their next steps differ too.
        ("stale-sampler", {"sampler-weights", "logprobs", "checkpoint"}),
        ("corrupt-checkpoint", {"checkpoint"}),
    ],
)
def test_each_fault_fails_its_own_measurement(tmp_path: Path, fault: str, failing: set[str]) -> None:
    """The learning rate is high, so that weights of the step before draw other answers."""
    records = run(tmp_path, replace(SHORT, fault=fault, lr=0.05))
    assert {name for name, is_good in passed(records).items() if not is_good} == failing


def test_a_stale_sampler_says_since_when_and_where(tmp_path: Path) -> None:
    found = only(run(tmp_path, replace(SHORT, fault="stale-sampler")), kind="check", name="sampler-weights")
    assert (found["publishes"], found["unequal"], found["first_step"]) == (4, 3, 2)
    assert found["first_name"] == "model.embed_tokens.weight"


def test_a_corrupt_checkpoint_says_what_is_wrong(tmp_path: Path) -> None:
    found = only(run(tmp_path, replace(SHORT, fault="corrupt-checkpoint")), kind="check", name="checkpoint")
    assert (found["restored_equal"], found["next_step_equal"]) == (False, None)
    assert "has the digest" in found["reason"]


def test_a_whole_checkpoint_says_how_much_was_compared(tmp_path: Path) -> None:
    found = only(run(tmp_path, SHORT), kind="check", name="checkpoint")
    # per decoder 2 layers of 12 tensors, embedding and last norm: policy, reference, two moments; three random states
    assert found["tensors"] == 4 * 26 + 3
    assert found["step"] == 2
    assert found["bytes"] > 4 * 4 * 1000
    assert (found["restored_equal"], found["next_step_equal"], found["first_different"]) == (True, True, None)


def test_a_run_of_one_step_and_several_mini_batches_has_every_record(tmp_path: Path) -> None:
    records = run(tmp_path, replace(SHORT, steps=1, mini_batches=3, micro_batch_rows=2))
    assert [record["kind"] for record in records] == ["eval", "step", "eval", *["check"] * 4]
    assert set(passed(records).values()) == {True}


def test_the_same_seed_gives_the_same_run_and_another_one_another(tmp_path: Path) -> None:
    timed = {"wall_s", "tokens_per_s"}
    one, same, other = (
        [
            {key: value for key, value in record.items() if key not in timed}
            for record in run(tmp_path / name, replace(SHORT, seed=seed))
        ]
        for name, seed in (("one", 5), ("same", 5), ("other", 6))
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize("task", ["addition", "copy", "successor"])
def test_every_task_runs_through_the_loop(tmp_path: Path, task: str) -> None:
    records = run(tmp_path, replace(SHORT, task=task, distractors=0, reward="partial"))
    split = only(records, kind="eval", when="after")["split"]
    assert split == ("train" if task == "successor" else "heldout")
    assert set(passed(records).values()) == {True}


@pytest.mark.parametrize(
    "change", [{"convention": "trl"}, {"convention": "roll"}, {"kl": "k1"}, {"kl": "k2"}, {"kl": "k3"}]
)
def test_every_convention_and_estimator_runs_through_the_loop(tmp_path: Path, change: dict[str, Any]) -> None:
    assert set(passed(run(tmp_path, replace(SHORT, **change))).values()) == {True}


def test_prompts_are_drawn_without_repeats_until_all_were_drawn() -> None:
    prompts = successor(0).train
    generator = torch.Generator().manual_seed(0)
    drawn = [each.text for each in draw(prompts, 25, generator)]
    assert len(drawn) == 25
    assert sorted(drawn[:10]) == sorted(drawn[10:20]) == sorted(each.text for each in prompts)
    assert len(set(drawn[20:])) == 5


def test_a_step_from_scripted_answers_holds_the_numbers_worked_out_by_hand() -> None:
    config = replace(TINY, distractors=0, prompts_per_step=10, rollouts_per_prompt=2, reward="exact", seed=3)
    answers = {
        each.text: (rollout((int(each.expected), END)), rollout((END,)))
        for each in assemble(config, torch.device("cpu"), seed=0).task.train
    }
    answers["4="] = (rollout((5, END)), rollout((5, END)))
    parts, engine = scripted(config, answers)
    turn = advance(parts, config, Progress())
    assert turn.rewards_PG.sum().item() == 11
    by_prompt = {
        group.prompt.text: row.tolist()
        for group, row in zip(turn.groups, turn.batch.advantages_B.reshape(10, 2), strict=True)
    }
    assert by_prompt["4="] == [0.0, 0.0]
    # two answers, one right: 0.5 over the deviation 0.7071
    assert by_prompt["7="] == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert int(turn.batch.mask_BT.sum()) == 10 * 2 + 9 + 2
    assert all(torch.equal(engine.received[name], weight) for name, weight in parts.learner.weights().items())
