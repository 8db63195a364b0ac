"""A reward that cannot be had now and then: what it costs a run, on one rank and on several."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.core_cases import SMALL, on_ranks
from tests.trainer.saving.test_saving_resume import told
from tests.trainer.trainer_cases import CPU, END, changed, group, only, read, rollout, watched
from trainer import saving
from trainer.loop import finish_prefetch, make_rollouts, next_rollouts
from trainer.metrics.records import Records
from trainer.off_policy import Prefetch
from trainer.rollouts import GeneratedGroups, compute_rewards
from trainer.run_state import restore, state_of
from trainer.saving.checkpoint import difference, load
from trainer.stages.watch import evaluate
from trainer.tasks.base import RewardBroken, RewardHung, group_rewards
from trainer.tasks.digits import successor
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from trainer.config import Config
    from trainer.distributed import World
    from trainer.trainer import Trainer
    from trainer.types import Prompt, Rollout

LONG = changed(SMALL, steps=3)
ANSWERS = LONG.rollout.prompts_per_step * LONG.rollout.rollouts_per_prompt


def flaky(trainer: Trainer, broken: Collection[int]) -> Trainer:
    """The trainer with a reward that raises for these answers, counted from 0 over the run."""
    count = 0

    def reward(prompt: Prompt, answer: Rollout) -> float:
        nonlocal count
        count += 1
        if count - 1 in broken:
            raise ZeroDivisionError("now and then")
        return trainer.task.reward(prompt, answer)

    task, errors = replace(trainer.task, reward=reward), trainer.reward_errors
    trainer.compute_rewards = partial(compute_rewards, task=task, config=trainer.config, device=CPU, errors=errors)  # type: ignore[method-assign]
    return trainer


def go(out: Path, config: Config, broken: Collection[int] = (), *, is_resumed: bool = False) -> Trainer:
    """A run, or the rest of one."""
    trainer, num_validated = build_trainer(config, CPU, seed=config.run.seed), None
    if is_resumed:
        step = restore(trainer, load(out / saving.CHECKPOINT, CPU))
        num_validated = saving.continue_records(out, step).num_validated
    with Records(out, append=is_resumed) as records:
        watched(flaky(trainer, broken), config, out, records, num_validated=num_validated)
    return trainer


def rewards_of(trainer: Trainer) -> torch.Tensor:
    return make_rollouts(trainer).rewards_PG


# The end of a run.


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param({}, id="random prompts"),
        pytest.param({"epochs": 9, "prompts_per_step": 4}, id="epochs", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_a_reward_ends_saves_first_and_goes_on_as_if_it_had_not(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    config = changed(LONG, **kind)
    whole = go(tmp_path / "whole", config)
    last = 2 * config.rollout.prompts_per_step * config.rollout.rollouts_per_prompt
    with pytest.raises(RewardBroken, match=r"ZeroDivisionError at test_rewards_broken\.py:\d+ reward: now and then$"):
        go(tmp_path / "parts", config, {last + 1})
    assert saving.saved_step(tmp_path / "parts") == 2
    ended = go(tmp_path / "parts", config, is_resumed=True)
    assert difference(state_of(whole, 3), state_of(ended, 3)) is None
    assert told(tmp_path / "parts") == told(tmp_path / "whole")


def test_a_reward_that_breaks_in_an_evaluation_ends_a_run_that_is_saved(tmp_path: Path) -> None:
    trainer = build_trainer(SMALL, CPU, seed=0)

    def is_right(prompt: Prompt, answer: Rollout) -> bool:
        if trainer.learner.global_step:
            raise RewardBroken("no")
        return True

    made = replace(trainer, task=replace(trainer.task, is_right=is_right))
    with Records(tmp_path) as records, pytest.raises(RewardBroken):
        watched(made, SMALL, tmp_path, records)
    assert saving.saved_step(tmp_path) == SMALL.run.steps
    tolerant = replace(made, config=changed(SMALL, on_reward_error="zero"))
    found = evaluate(tolerant)
    assert (found["num_correct"], len(tolerant.reward_errors)) == (0, found["num_prompts"])


def test_one_step_ahead_the_step_at_hand_is_done_before_the_reward_ends_the_run() -> None:
    trainer = flaky(build_trainer(SMALL, CPU, seed=0), {0})
    trainer.prefetch = Prefetch()
    trainer.prefetch.start(lambda own: GeneratedGroups([group("1=", *[(END,)] * 4)] * 3))
    finish_prefetch(trainer)
    with pytest.raises(RewardBroken):
        next_rollouts(trainer)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_all_ranks_end_with_the_reward_of_one_and_draw_the_same_again(num_ranks: int) -> None:
    config = changed(SMALL, prompts_per_step=4, ranks=num_ranks)

    def job(world: World) -> tuple[str, bool]:
        trainer = build_trainer(config, CPU, seed=0, world=world)
        before = trainer.prompts.generator.get_state(), trainer.engine.random_state().clone()
        with pytest.raises(RewardBroken) as caught:
            make_rollouts(flaky(trainer, {1} if world.rank == num_ranks - 1 else ()))
        after = trainer.prompts.generator.get_state(), trainer.engine.random_state()
        return str(caught.value), all(torch.equal(*pair) for pair in zip(before, after, strict=True))

    found = on_ranks(job, num_ranks) if num_ranks > 1 else [job(build_trainer(config, CPU, seed=0).world)]
    assert [is_same for _, is_same in found] == [True] * num_ranks
    assert len({reason for reason, _ in found}) == 1


# A run that goes on.


@pytest.mark.parametrize(("choice", "groups"), [("zero", 3), ("drop", 2)])
def test_a_run_goes_on_without_the_reward_or_without_its_group_and_counts_it(
    choice: str, groups: int, tmp_path: Path
) -> None:
    config = changed(LONG, on_reward_error=choice)
    go(tmp_path, config, {ANSWERS, ANSWERS + 1})
    steps = [record for record in read(tmp_path) if record["kind"] == "step"]
    assert [step["reward_errors"] for step in steps] == [0, 2, 0]
    stage = only(read(tmp_path), kind="stage", name="reward")
    assert (stage["passed"], stage["errors"], stage["answers"]) == (True, 2, ANSWERS * 2 + groups * 4)
    assert "now and then" in stage["first_error"]


def test_the_reward_is_0_or_its_group_is_left_out_and_the_others_are_what_they_were() -> None:
    whole = rewards_of(build_trainer(SMALL, CPU, seed=0))
    zero = rewards_of(flaky(build_trainer(changed(SMALL, on_reward_error="zero"), CPU, seed=0), {5}))
    whole[1, 1] = 0.0
    assert torch.equal(zero, whole)
    kept = make_rollouts(flaky(build_trainer(changed(SMALL, on_reward_error="drop"), CPU, seed=0), {5}))
    assert torch.equal(kept.rewards_PG, whole[[0, 2]])
    assert len(kept.groups) == 2


def test_with_dynamic_sampling_a_group_that_is_left_out_is_drawn_again() -> None:
    config = changed(SMALL, on_reward_error="drop", dynamic_sampling=True, max_generations=20)
    made = make_rollouts(flaky(build_trainer(config, CPU, seed=0), {0}))
    assert len(made.groups) == 3
    assert bool((made.rewards_PG.amax(dim=1) > made.rewards_PG.amin(dim=1)).all())


def test_where_no_group_is_left_the_run_ends_after_all() -> None:
    trainer = build_trainer(changed(SMALL, on_reward_error="drop"), CPU, seed=0)
    with pytest.raises(RewardBroken, match="now and then"):
        rewards_of(flaky(trainer, range(0, ANSWERS, 4)))


def test_ranks_with_different_numbers_of_groups_ask_the_reference_together() -> None:
    config = changed(SMALL, prompts_per_step=4, on_reward_error="drop", ranks=2)
    asked: list[tuple[int, int]] = []

    def job(world: World) -> int:
        made = flaky(build_trainer(config, CPU, seed=0, world=world), {1} if world.is_first else ())

        def noted(groups: Any, progress: Any = None) -> None:
            asked.append((world.rank, len(groups)))

        made.reference_logprobs = noted  # type: ignore[method-assign]
        return len(make_rollouts(made).groups)

    assert on_ranks(job) == [1, 2]
    assert sorted(asked) == [(0, 1), (0, 2), (1, 2), (1, 2)]  # when they were drawn, and of those that are left


def test_what_was_not_judged_in_time_has_no_reward() -> None:
    slow = [0.0]

    def reward(prompt: Prompt, answer: Rollout) -> float:
        while slow[0]:
            time.sleep(0.01)
        slow[0] = 1.0
        return 1.0

    groups, errors = [group("1=", (END,), (END,), (END,))], list[str]()
    task = replace(successor(1), reward=reward)
    found = group_rewards(groups, task, limit_s=0.2, errors=errors)
    assert [each == each for each in found[0]] == [True, False, False]
    assert len(errors) == 2
    with pytest.raises(RewardHung):
        group_rewards(groups, task, limit_s=0.1)
    paid = replace(groups[0], rollouts=(replace(rollout((END,)), reward=0.5),))
    assert group_rewards([paid], task, limit_s=None, errors=[]) == [[0.5]]
