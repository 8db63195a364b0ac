"""The loop as a whole: it learns, it does not learn when it must not, and each fault shows in its own measurement."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.shared import once
from tests.trainer.trainer_cases import CPU, END, ROOT, TINY, changed, only, rollout, run, scripted
from trainer.config import BadSetting, Config
from trainer.loop import next_rollouts, train_step
from trainer.rollouts import sample_prompts
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHECKS = ("mask", "sampler-weights", "logprobs", "checkpoint")
SHORT = changed(TINY, steps=4)


def passed(records: list[dict[str, Any]]) -> Mapping[str, bool]:
    return {name: only(records, kind="stage", name=name)["passed"] for name in CHECKS}


def accuracy(records: list[dict[str, Any]]) -> tuple[float, float]:
    """Held-out greedy accuracy before and after."""
    before, after = (only(records, kind="eval", when=when)["accuracy"] for when in ("before", "after"))
    return before, after


def mean_reward(records: list[dict[str, Any]], steps: slice) -> float:
    rewards = [record["critic/score/mean"] for record in records if record["kind"] == "step"][steps]
    return float(sum(rewards) / len(rewards))


# The default model and batches, on prompts of one digit: a quarter of the time that the default task takes.
EASY = changed(Config(), steps=40, lr=2e-3, distractors=0)


@pytest.fixture(scope="module")
def learnt() -> list[dict[str, Any]]:
    """The records of a run on an easy task."""
    records: list[dict[str, Any]] = once("learnt", lambda folder: run(folder, EASY))
    return records


def test_reward_and_held_out_accuracy_rise(learnt: list[dict[str, Any]]) -> None:
    """Nine of ten questions are answered right with this seed."""
    before, after = accuracy(learnt)
    assert before <= 0.1
    assert after >= 0.5
    assert mean_reward(learnt, slice(-10, None)) > mean_reward(learnt, slice(0, 10)) + 0.25
    assert set(passed(learnt).values()) == {True}


@pytest.mark.slow
@pytest.mark.long
def test_at_the_default_settings_reward_and_held_out_accuracy_rise(tmp_path: Path) -> None:
    learnt = run(tmp_path, Config())
    before, after = accuracy(learnt)
    assert before <= 0.1
    assert after >= 0.9
    assert mean_reward(learnt, slice(-10, None)) > mean_reward(learnt, slice(0, 10)) + 0.5
    assert set(passed(learnt).values()) == {True}
    held_out = only(learnt, kind="eval", when="after")
    assert held_out["num_prompts"] == 30
    assert [sample["prompt"] for sample in held_out["samples"]] == ["10=", "32=", "54=", "76=", "98="]


def test_the_records_hold_together(learnt: list[dict[str, Any]]) -> None:
    steps = [record for record in learnt if record["kind"] == "step"]
    assert [record["step"] for record in steps] == list(range(1, EASY.run.steps + 1))
    assert [record["actor/lr"] for record in steps] == sorted((record["actor/lr"] for record in steps), reverse=True)
    # The second mini batch of a step is trained on with a policy that has moved: the clipped ratio is at work.
    assert max(record["actor/ratio_max"] for record in steps) > 1.2
    assert max(record["actor/pg_clipfrac"] for record in steps) > 0.0
    assert all(record["actor/kl_loss"] >= 0 and record["actor/entropy"] > 0 for record in steps)
    assert steps[0]["actor/kl_loss"] < 0.01 < steps[-1]["actor/kl_loss"]
    mask = only(learnt, kind="stage", name="mask")
    assert mask["generated_tokens"] == sum(record["generated_tokens"] for record in steps)
    after = only(learnt, kind="eval", when="after")
    assert after["num_correct"] == sum(after["correct"])
    assert after["num_prompts"] == len(after["correct"]) == 10
    assert all(len(sample["prompt"]) == 2 for sample in after["samples"])


@pytest.mark.parametrize(
    "change",
    [{"lr": 0.0, "steps": 2}, pytest.param({"fault": "shuffled-reward", "steps": 25}, marks=pytest.mark.slow)],
)
def test_it_does_not_learn_when_it_must_not(tmp_path: Path, change: dict[str, Any]) -> None:
    """With true rewards six of ten questions are answered right after 25 steps."""
    records = run(tmp_path, changed(EASY, **change))
    before, after = accuracy(records)
    assert before <= 0.1
    # A policy that says one digit to everything is right for one of ten, whatever it was rewarded for.
    assert after <= 0.1
    assert set(passed(records).values()) == {True}
    if "lr" in change:  # the policy stays where it was
        assert {record["actor/kl_loss"] for record in records if record["kind"] == "step"} == {0.0}


def of_fault(fault: str) -> list[dict[str, Any]]:
    """The records of a run with a fault. The rate is high, so that weights of the step before draw other answers."""
    records: list[dict[str, Any]] = once(
        f"fault-{fault}", lambda folder: run(folder, changed(SHORT, fault=fault, lr=0.05))
    )
    return records


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ("none", set()),
        pytest.param("mask-off-by-one", {"mask"}, marks=pytest.mark.slow),
        # The restored sampler has the learner's weights and the running one has not: their next steps differ too.
        ("stale-sampler", {"sampler-weights", "logprobs", "checkpoint"}),
        ("corrupt-checkpoint", {"checkpoint"}),
    ],
)
@pytest.mark.slow
def test_each_fault_fails_its_own_measurement(fault: str, failing: set[str]) -> None:
    assert {name for name, is_good in passed(of_fault(fault)).items() if not is_good} == failing


@pytest.mark.slow
def test_a_stale_sampler_says_since_when_and_where() -> None:
    found = only(of_fault("stale-sampler"), kind="stage", name="sampler-weights")
    assert (found["publishes"], found["unequal"], found["first_step"]) == (4, 3, 2)
    assert found["first_name"] == "model.embed_tokens.weight"


def test_a_corrupt_checkpoint_says_what_is_wrong() -> None:
    found = only(of_fault("corrupt-checkpoint"), kind="stage", name="checkpoint")
    assert (found["restored_equal"], found["next_step_equal"]) == (False, None)
    assert re.search(r"state-\w+\.pt has .* [0-9a-f]{16,}", found["reason"])


@pytest.mark.slow
def test_a_whole_checkpoint_says_how_much_was_compared() -> None:
    found = only(of_fault("none"), kind="stage", name="checkpoint")
    # per decoder 2 layers of 12 tensors, embedding and last norm: policy, reference, two moments; three random states
    assert found["tensors"] == 4 * 26 + 3
    assert found["step"] == 2
    assert found["bytes"] > 4 * 4 * 1000
    assert (found["restored_equal"], found["next_step_equal"], found["first_different"]) == (True, True, None)


def test_a_run_of_one_step_and_several_mini_batches_has_every_record(tmp_path: Path) -> None:
    records = run(tmp_path, changed(SHORT, steps=1, mini_batches=3, micro_batch_rows=2))
    assert [record["kind"] for record in records] == ["eval", "step", *["stage"] * 9, "eval", *["stage"] * 8]
    assert set(passed(records).values()) == {True}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_one_another(tmp_path: Path) -> None:
    one, same, other = (
        [
            {
                key: value
                for key, value in record.items()
                if not key.startswith(("wall_s", "seconds", "timing_", "perf/", "tokens_per_s"))
            }
            for record in run(tmp_path / name, changed(SHORT, seed=seed, steps=2))
        ]
        for name, seed in (("one", 5), ("same", 5), ("other", 6))
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    "task", ["copy", *(pytest.param(task, marks=pytest.mark.slow) for task in ("addition", "successor"))]
)
def test_every_task_runs_through_the_loop(tmp_path: Path, task: str) -> None:
    records = run(tmp_path, changed(SHORT, steps=2, task=task, distractors=0, reward="partial"))
    split = only(records, kind="eval", when="after")["split"]
    assert split == ("train" if task == "successor" else "heldout")
    assert set(passed(records).values()) == {True}


@pytest.mark.parametrize(
    ("convention", "kl"),
    [("roll", "k2"), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("trl", "k1"), ("verl", "k3")))],
)
def test_every_convention_and_estimator_runs_through_the_loop(tmp_path: Path, convention: str, kl: str) -> None:
    assert set(passed(run(tmp_path, changed(SHORT, steps=2, convention=convention, kl=kl))).values()) == {True}


def test_prompts_are_drawn_without_repeats_until_all_were_drawn() -> None:
    prompts = build_trainer(changed(TINY, distractors=0), CPU, seed=0).task.train
    generator = torch.Generator().manual_seed(0)
    drawn = [each.text for each in sample_prompts(prompts, 25, generator)]
    assert len(drawn) == 25
    assert sorted(drawn[:10]) == sorted(drawn[10:20]) == sorted(each.text for each in prompts)
    assert len(set(drawn[20:])) == 5


def test_a_step_from_scripted_answers_holds_the_numbers_worked_out_by_hand() -> None:
    config = changed(TINY, distractors=0, prompts_per_step=10, rollouts_per_prompt=2, reward="exact", seed=3)
    answers = {
        each.text: (rollout((int(each.expected), END)), rollout((END,)))
        for each in build_trainer(config, CPU, seed=0).task.train
    }
    answers["4="] = (rollout((5, END)), rollout((5, END)))
    trainer, engine = scripted(config, answers)
    turn = train_step(trainer, 1)
    assert turn.rewards_PG.sum().item() == 11
    judged = (
        trainer.learner.compute_advantages(turn.batch, trainer.learner.compute_logprobs(turn.batch))
        .advantages_BT[:, 0]
        .reshape(10, 2)
    )
    by_prompt = {group.prompt.text: row.tolist() for group, row in zip(turn.groups, judged, strict=True)}
    assert by_prompt["4="] == [0.0, 0.0]
    # two answers, one right: 0.5 over the deviation 0.7071
    assert by_prompt["7="] == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert int(turn.batch.mask_BT.sum()) == 10 * 2 + 9 + 2
    assert all(torch.equal(engine.received[name], weight) for name, weight in trainer.learner.weights().items())


def test_groups_without_signal_are_drawn_again_until_there_are_enough() -> None:
    """Of ten prompts only those below 3 have answers that differ; a step wants two such groups."""
    config = changed(
        TINY, distractors=0, prompts_per_step=2, rollouts_per_prompt=2, reward="exact", dynamic_sampling=True
    )
    same, mixed = (rollout((END,)), rollout((END,))), (rollout((1, END)), rollout((END,)))
    answers = {each.text: same for each in build_trainer(config, CPU, seed=0).task.train}
    answers |= {"0=": mixed, "1=": (rollout((2, END)), rollout((END,))), "2=": (rollout((3, END)), rollout((END,)))}
    trainer, _ = scripted(config, answers)
    made = next_rollouts(trainer)
    groups, rewards_PG, num_generated = made.groups, made.rewards_PG, made.num_generated
    assert [row.tolist() for row in rewards_PG] == [[1.0, 0.0], [1.0, 0.0]]
    assert {group.prompt.text for group in groups} <= {"0=", "1=", "2="}
    assert num_generated > 2


def test_dynamic_sampling_ends_when_no_group_ever_has_a_signal() -> None:
    config = changed(TINY, distractors=0, rollouts_per_prompt=2, dynamic_sampling=True, max_generations=4)
    same = (rollout((END,)), rollout((END,)))
    trainer, _ = scripted(config, {each.text: same for each in build_trainer(config, CPU, seed=0).task.train})
    made = next_rollouts(trainer)
    groups, rewards_PG, num_generated = made.groups, made.rewards_PG, made.num_generated
    assert (len(groups), num_generated) == (3, 12)
    assert rewards_PG.unique().numel() == 1


def test_an_answer_near_its_limit_costs_reward() -> None:
    config = changed(TINY, distractors=0, reward="exact", overlong_buffer=2, overlong_factor=0.5)
    trainer, _ = scripted(config, {each.text: (rollout((1, 1, 1)), rollout((1, END)), rollout((END,)), rollout((END,)))
                                 for each in build_trainer(config, CPU, seed=0).task.train})  # fmt: skip
    rewards = next_rollouts(trainer).rewards_PG
    # of at most 3 tokens the last 2 cost 0.25 each
    assert rewards[:, 0].tolist() == [-0.5] * 3
    assert rewards[:, 2].tolist() == [0.0] * 3
    with pytest.raises(BadSetting, match=r"^overlong_buffer=4 .* 3 "):
        build_trainer(changed(config, overlong_buffer=4), CPU, seed=0)


def test_the_page_about_the_trainer_names_what_there_is() -> None:
    page, loop = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/TRAINER.md", "trainer/loop.py"))
    calls = [each for each in re.findall(r"`((?:trainer|learner)\.[a-z_.]+)`", page) if not each.endswith(".py")]
    assert len(calls) > 8
    assert [each for each in calls if each not in loop] == []
    names = {
        path.name for folder in ("trainer", "tests/trainer", "tests/smoke") for path in (ROOT / folder).rglob("*.py")
    }
    assert [each for each in re.findall(r"`(?:[a-z_]+/)*([a-z_]+\.py)`", page) if each not in names] == []
