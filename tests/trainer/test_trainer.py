"""The parts of a run, of one rank and of several, and what accompanies it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from tests.trainer.core_cases import SMALL, on_ranks
from tests.trainer.trainer_cases import CPU, END, changed, group, only, read, rollout, run, scripted, watched
from trainer import device as devices
from trainer import run_state
from trainer.algorithms.advantages import Advantages
from trainer.config import BadSetting
from trainer.distributed import World
from trainer.engines.remote import Remote
from trainer.loop import make_rollouts, next_rollouts, train_step, update_policy
from trainer.metrics.records import Records
from trainer.rollouts import reward_limit_s
from trainer.run_state import learner_state, restore, save_checkpoint, state_of
from trainer.saving import Saved, State
from trainer.saving.checkpoint import difference, save
from trainer.stages.watch import evaluate, logprob_limits
from trainer.trainer import build_trainer
from trainer.types import Group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainer.engines.engine import Engine, Sampling, Tokens
    from trainer.types import Rollout


def test_ranks_start_from_one_policy_ask_other_questions_and_draw_other_answers() -> None:
    config = changed(SMALL, prompts_per_step=10)
    one, two = (build_trainer(config, CPU, seed=0, world=World(rank, 2)) for rank in range(2))
    assert difference(learner_state(one.learner), learner_state(two.learner)) is None
    assert not torch.equal(one.engine.random_state(), two.engine.random_state())
    for _ in range(2):
        asked = [each.text for trainer in (one, two) for each in trainer.next_prompts()]
        assert len(asked) == len(set(asked)) == 10


def test_a_state_holds_the_random_numbers_of_every_rank_and_gives_each_its_own_back() -> None:
    def job(world: World) -> list[bool]:
        trainer, other = (build_trainer(SMALL, CPU, seed=seed, world=world) for seed in (0, 5))
        next_rollouts(trainer)
        state = state_of(trainer, 0)
        kept = trainer.engine.random_state().clone()
        restore(other, state)
        return [
            list(state["sampler_random"]) == ["0", "1"],
            torch.equal(other.engine.random_state(), kept),
            difference(state["learner"], learner_state(other.learner)) is None,
            [each.text for each in trainer.next_prompts()] == [each.text for each in other.next_prompts()],
            all(
                torch.equal(weight, other.engine.weights()[name]) for name, weight in trainer.learner.weights().items()
            ),
        ]

    assert on_ranks(job) == [[True] * 5] * 2


def test_only_the_first_rank_writes_a_checkpoint_and_all_know_what_was_written(tmp_path: Path) -> None:
    wrote: list[int] = []

    def job(world: World) -> Saved:
        def save(state: State, folder: Path) -> Saved:
            wrote.append(world.rank)
            return Saved(f"state-{world.rank}.pt", "", 0, 0)

        made = build_trainer(SMALL, CPU, seed=0, world=world)
        made.save = save  # type: ignore[method-assign]
        return save_checkpoint(made, {}, tmp_path)

    assert [saved.file for saved in on_ranks(job)] == ["state-0.pt", "state-0.pt"]
    assert wrote == [0]


def test_answers_are_sampled_as_the_settings_say_and_validation_takes_the_likeliest() -> None:
    trainer = build_trainer(changed(SMALL, temperature=0.7), CPU, seed=0)
    training, validation = trainer.sampling(), trainer.sampling(is_greedy=True)
    assert (training.rollouts_per_prompt, training.temperature, training.is_greedy) == (4, 0.7, False)
    assert (validation.rollouts_per_prompt, validation.is_greedy) == (1, True)
    before = trainer.engine.random_state().clone()
    one, other = (evaluate(trainer) for _ in range(2))
    assert one["correct"] == other["correct"]
    assert torch.equal(trainer.engine.random_state(), before)


@pytest.mark.parametrize(("engine", "most"), [("builtin", 8), ("vllm", 10)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_evaluation_asks_for_no_more_rows_at_once_than_a_step_unless_the_engine_queues_them(
    engine: str, most: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = [[] for _ in range(ranks)]

    def job(world: World) -> dict[str, Any]:
        trainer = build_trainer(changed(SMALL, prompts_per_step=4, rollouts_per_prompt=2), CPU, seed=0, world=world)
        generate = trainer.engine.generate

        def noted(prompts: Sequence[Tokens], sampling: Sampling) -> list[tuple[Rollout, ...]]:
            asked[world.rank].append(len(prompts))
            return generate(prompts, sampling)

        monkeypatch.setattr(trainer.engine, "generate", noted)
        return evaluate(replace(trainer, config=changed(trainer.config, engine=engine)))

    found = on_ranks(job, ranks)
    trainer = build_trainer(SMALL, CPU, seed=0)
    answers = trainer.engine.generate([each.tokens for each in trainer.task.heldout], trainer.sampling(is_greedy=True))
    pairs = zip(trainer.task.heldout, answers, strict=True)
    right = [int(trainer.task.is_right(each, one)) for each, (one,) in pairs]
    assert [each["correct"] for each in found] == [right] * ranks
    assert [sum(each) for each in asked] == [len(right) // ranks] * ranks
    assert [max(each) for each in asked] == [most // ranks] * ranks


@pytest.mark.parametrize(
    ("settings", "longest"), [({}, 3), ({"task": "frozen_lake", "map_size": 2, "max_turns": 4}, 8)]
)
def test_what_divides_a_row_of_dr_grpo_is_what_an_answer_may_have_not_what_the_longest_one_has(
    settings: dict[str, Any], longest: int
) -> None:
    trainer = build_trainer(changed(SMALL, aggregation="seq-mean-token-sum-norm", kl_coef=0.0, **settings), CPU, seed=0)
    assert longest == trainer.task.max_new_tokens * trainer.task.max_turns
    answers = rollout((1, 2)), rollout((1,))
    of = trainer.make_batch(
        [Group(each, answers) for each in trainer.task.train[:2]], torch.tensor([[1.0, -0.5], [0.5, 0.25]])
    )
    advantages_BT = torch.where(of.mask_BT, of.rewards_B[:, None], 0.0)
    found = update_policy(trainer.learner, of, trainer.learner.compute_logprobs(of), Advantages(advantages_BT, None))
    assert found.policy_loss == pytest.approx(-(2 * 1.0 - 0.5 + 2 * 0.5 + 0.25) / 4 / longest)


def test_dynamic_sampling_stops_at_enough_groups_and_keeps_the_first() -> None:
    config = changed(SMALL, prompts_per_step=4, rollouts_per_prompt=2, reward="exact", dynamic_sampling=True)
    prompts = build_trainer(config, CPU, seed=0).task.train
    useful = {each.text: (rollout((int(each.expected), END)), rollout((END,))) for each in prompts}
    trainer, _ = scripted(config, useful)
    assert next_rollouts(trainer).num_generated == 4
    # One group of the first batch has no signal: three are kept, and one of the second.
    trainer, _ = scripted(config, useful)
    expected = [each.text for each in scripted(config, useful)[0].next_prompts()]
    dull = {**useful, expected[1]: (rollout((END,)), rollout((END,)))}
    trainer, _ = scripted(config, dull)
    made = next_rollouts(trainer)
    groups, rewards_PG, num_generated = made.groups, made.rewards_PG, made.num_generated
    assert num_generated == 8
    assert [each.prompt.text for each in groups[:3]] == [expected[0], *expected[2:]]
    assert rewards_PG.tolist() == [[1.0, 0.0]] * 4


def test_rewards_have_32_bits_at_least() -> None:
    for dtype, wanted in (("bfloat16", torch.float32), ("float32", torch.float32), ("float64", torch.float64)):
        trainer = build_trainer(changed(SMALL, dtype=dtype), CPU, seed=0)
        assert trainer.compute_rewards([group("1=", (1, END), (END,))]).dtype == wanted


def test_a_step_has_one_time_limit_but_where_each_answer_has_its_own() -> None:
    assert reward_limit_s(changed(SMALL, reward_timeout_s=7.0)) == 7.0
    for change in ({"task": "code"}, {"task": "math"}, {"reward_function": "r.py:f"}):
        assert reward_limit_s(changed(SMALL, reward_timeout_s=7.0, **change)) is None, change


# What accompanies a run.


def test_what_is_due_after_a_step_is_done_after_that_step_and_not_at_the_end_again(tmp_path: Path) -> None:
    trainer, saved = build_trainer(changed(SMALL, steps=4), CPU, seed=0), []
    config = changed(SMALL, steps=4, validate_every=2, save_every=2)

    def noted(state: State, folder: Path) -> Saved:
        saved.append(state["step"])
        return save(state, folder)

    trainer.config, trainer.save = config, noted  # type: ignore[method-assign]
    records = run(tmp_path, config, trainer)
    told = [(each["when"], each["step"]) for each in records if each["kind"] == "eval"]
    assert told == [("before", 0), ("during", 2), ("after", 4)]
    # in the middle, where it is tried, then what is due, then the last
    assert saved == [2, 2, 4]
    stage = only(records, kind="stage", name="validation")
    assert (stage["passed"], stage["evaluations"]) == (True, {"before": 10, "during": 10, "after": 10})


def test_the_stages_numbers_are_those_of_the_steps(tmp_path: Path) -> None:
    """Noise sets sampler and learner apart, so that there is something to tell."""
    records = run(tmp_path, changed(SMALL, steps=3, noise_stages=2, noise_start=0.05, noise_end=0.05))
    steps = [each for each in records if each["kind"] == "step"]
    stages = {each["name"]: each for each in records if each["kind"] == "stage"}
    assert stages["logprobs"]["largest"] > stages["logprobs"]["mean"] > stages["logprobs"]["kl"] > 0
    assert stages["update"]["lr_highest"] == max(each["actor/lr"] for each in steps)
    assert stages["update"]["grad_norm_highest"] == max(each["actor/grad_norm"] for each in steps)
    generation = stages["generation"]
    assert generation["tokens"] == sum(each["generated_tokens"] for each in steps)
    assert generation["tokens_per_s"] == pytest.approx(generation["tokens"] / generation["seconds"])


@pytest.mark.slow
def test_a_run_that_skips_its_evaluations_or_ends_with_others_has_no_validation(tmp_path: Path) -> None:
    records = run(tmp_path / "none", changed(SMALL, fault="skipped-validation"))
    assert only(records, kind="stage", name="validation")["passed"] is False
    out = tmp_path / "other"
    with Records(out) as written:
        watched(build_trainer(SMALL, CPU, seed=0), SMALL, out, written, num_validated=7)
    found = only(read(out), kind="stage", name="validation")
    assert (found["passed"], found["evaluations"]) == (False, {"before": 7, "after": 10})


@pytest.mark.slow
def test_shuffled_rewards_are_found_by_asking_past_what_shuffles_them(tmp_path: Path) -> None:
    found = only(run(tmp_path, changed(SMALL, fault="shuffled-reward")), kind="stage", name="reward")
    assert (found["passed"], found["is_reordered"]) == (False, True)
    assert found["judged_again"] == 12


def test_a_checkpoint_that_restores_nothing_is_noticed_even_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fresh parts start from another seed, so that they are not the live ones by birth."""
    monkeypatch.setattr(run_state, "restore_learner", lambda learner, state: None)
    found = only(run(tmp_path, changed(SMALL, steps=1)), kind="stage", name="checkpoint")
    assert (found["passed"], found["restored_equal"], found["step"]) == (False, False, 0)
    assert found["first_different"].startswith("learner/policy/")


def test_a_checkpoint_that_was_restored_otherwise_does_not_pass_though_the_next_step_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = iter(("learner/updates", None))
    monkeypatch.setattr("trainer.stages.watch.difference", lambda one, other: next(said))
    found = only(run(tmp_path, SMALL), kind="stage", name="checkpoint")
    assert (found["restored_equal"], found["next_step_equal"], found["passed"]) == (False, True, False)


def test_a_run_with_noise_holds_the_sampler_to_the_noisy_weights_and_validates_the_clean_ones(tmp_path: Path) -> None:
    config = changed(SMALL, steps=3, noise_stages=2, noise_start=5.0, noise_end=5.0, lr=0.0, validate_every=2)
    records = run(tmp_path, config)
    stages = {each["name"]: each["passed"] for each in records if each["kind"] == "stage"}
    assert (stages["sampler-weights"], stages["checkpoint"]) == (True, True)
    # The rate is 0 and the answers the likeliest: the same weights give the same answers three times.
    answers = [[sample["answer"] for sample in each["samples"]] for each in records if each["kind"] == "eval"]
    assert len(answers) == 3 and answers[0] == answers[1] == answers[2]


def test_how_far_sampler_and_learner_may_be_apart_depends_on_their_arithmetic() -> None:
    strict, loose, noisy = (1e-3, 1e-3), (4.0, 0.05), (8.0, 1.0)
    for change, wanted in (
        ({}, strict),
        ({"dtype": "float64"}, strict),
        ({"dtype": "bfloat16"}, loose),
        ({"matmul_precision": "high"}, loose),
        ({"matmul_precision": "medium"}, loose),
        ({"engine": "vllm"}, loose),
        ({"noise_stages": 2}, noisy),
    ):
        assert logprob_limits(changed(SMALL, **change)) == wanted, change


class Sleeper:
    """An engine that notes what it is asked, in the order of asking."""

    def __init__(self, engine: Engine, told: list[str]) -> None:
        self._engine, self._told = engine, told

    def __getattr__(self, name: str) -> Any:
        if name in ("generate", "sleep", "wake", "load_weights"):
            self._told.append(name)
        return getattr(self._engine, name)


def test_the_engine_sleeps_while_the_learner_learns_and_wakes_before_it_gets_the_weights() -> None:
    told: list[str] = []
    trainer = build_trainer(changed(SMALL, steps=2), CPU, seed=0)
    engine = Sleeper(trainer.engine, told)
    weights = trainer.learner.weights
    trainer.engine = cast("Engine", engine)
    trainer.sync_weights = lambda step: engine.load_weights(weights())  # type: ignore[method-assign]
    train_step(trainer, 1)
    assert told == ["generate", "sleep", "wake", "load_weights"]


def test_beside_an_engine_that_has_its_card_for_itself_the_checkpoint_is_compared_on_the_disk(tmp_path: Path) -> None:
    """One that is called vllm stands for it: its own sampler is the built-in one here, and no second one is made."""
    config = changed(SMALL, steps=2)
    trainer = build_trainer(config, CPU, seed=0)
    named = changed(config, engine="vllm")
    records = run(tmp_path, named, replace(trainer, config=named))
    found = only(records, kind="stage", name="checkpoint")
    assert (found["passed"], found["restored_equal"], found["next_step_equal"]) == (True, True, None)


def test_where_a_device_has_no_room_for_the_state_twice_nothing_is_restored_beside_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = build_trainer(SMALL, CPU, seed=0)
    monkeypatch.setattr("trainer.stages.watch.build_trainer", None)
    monkeypatch.setattr("trainer.device.memory", lambda device: devices.Memory(free=40_000, total=1 << 40))
    records = run(tmp_path, SMALL, trainer)
    found = only(records, kind="stage", name="checkpoint")
    assert found["bytes"] > 40_000
    assert (found["passed"], found["restored_equal"], found["next_step_equal"]) == (True, True, None)


def test_a_file_that_is_not_the_state_is_found_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.device.memory", lambda device: devices.Memory(free=40_000, total=1 << 40))
    monkeypatch.setattr("trainer.stages.watch.load", lambda folder, device: {"step": 0})
    found = only(run(tmp_path, SMALL), kind="stage", name="checkpoint")
    assert (found["passed"], found["restored_equal"]) == (False, False)


@pytest.mark.parametrize("kv_heads", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 4))])
def test_one_prompt_is_enough_however_many_heads_share_their_keys(kv_heads: int, tmp_path: Path) -> None:
    config = changed(SMALL, prompts_per_step=1, mini_batches=1, steps=1, heads=4, kv_heads=kv_heads)
    assert only(run(tmp_path, config), kind="stage", name="logprobs")["passed"] is True


@pytest.mark.slow
def test_ranks_that_draw_again_different_numbers_of_times_stay_with_one_stream_of_prompts() -> None:
    config = changed(SMALL, prompts_per_step=4, rollouts_per_prompt=2, dynamic_sampling=True, max_generations=5)

    def job(world: World) -> tuple[int, torch.Tensor]:
        dull = 3 * world.rank  # batches in a row

        def score(groups: Any) -> torch.Tensor:
            nonlocal dull
            dull -= 1
            return torch.tensor([[0.0, float(dull < 0)]] * len(groups))

        trainer = build_trainer(config, CPU, seed=0, world=world)
        trainer.compute_rewards = score  # type: ignore[method-assign]
        return make_rollouts(trainer).num_generated, trainer.prompts.generator.get_state()

    (first, one), (second, two) = on_ranks(job)
    assert (first, second) == (2, 8)
    assert torch.equal(one, two)


@pytest.mark.parametrize("settings", [{"generators": 2}, {"train_cards": "0", "infer_cards": "1"}], ids=str)
def test_generators_that_nobody_started_are_missed(settings: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match=rf"^{next(reversed(settings))}\b"):
        build_trainer(changed(SMALL, **settings), CPU, seed=0)


def test_weights_are_published_when_all_ranks_have_their_answers_and_have_sent_theirs() -> None:
    """Ranks may have a generator in common."""
    config = changed(SMALL, prompts_per_step=4, generators=2)
    done: list[str] = []

    class Engine(Remote):
        def __init__(self) -> None:
            """Without generators."""

        def load_weights_each(self, weights: object) -> None:
            done.append("load_weights")

    def job(world: World) -> None:
        engine: Any = Engine()
        trainer = build_trainer(config, CPU, seed=0, world=world, engine=engine)
        done.append("answers")
        trainer.sync_weights(1)
        done.append("asks")

    on_ranks(job)
    assert done == ["answers"] * 2 + ["load_weights"] * 2 + ["asks"] * 2


def test_an_epoch_asks_each_prompt_once_and_leaves_out_what_is_less_than_a_step() -> None:
    config = changed(SMALL, epochs=3, prompts_per_step=4)
    trainer = build_trainer(config, CPU, seed=0)
    assert len(trainer.task.train) == 10
    epochs = [[each.text for _ in range(2) for each in trainer.next_prompts()] for _ in range(5)]
    assert [len(set(asked)) for asked in epochs] == [8] * 5
    assert len({tuple(asked) for asked in epochs}) == 5
    assert {text for asked in epochs for text in asked} == {each.text for each in trainer.task.train}
    few = build_trainer(changed(config, prompts_per_step=16), CPU, seed=0)
    assert len({each.text for each in few.next_prompts()}) == 10


@pytest.mark.parametrize("num_taken", range(6))
def test_an_epoch_goes_on_at_the_prompt_where_it_was_left(num_taken: int) -> None:
    config = changed(SMALL, epochs=3, prompts_per_step=4)
    trainer, other = (build_trainer(config, CPU, seed=seed) for seed in (0, 5))
    for _ in range(num_taken):
        trainer.next_prompts()
    restore(other, state_of(trainer, 0))
    assert difference(state_of(trainer, 0), state_of(other, 0)) is None
    for _ in range(5):
        assert [each.text for each in trainer.next_prompts()] == [each.text for each in other.next_prompts()]
