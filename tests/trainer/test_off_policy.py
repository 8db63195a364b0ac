"""One step off policy: what is learnt from when, what a checkpoint holds, and what ends a run."""

from __future__ import annotations

import io
import math
import re
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.generator_cases import Crew, dead
from tests.trainer.trainer_cases import CPU, END, TINY, changed, only, read, run
from trainer.config import BadSetting, Config
from trainer.config import read as read_settings
from trainer.engines.generator_client import GeneratorLost
from trainer.loop import finish_prefetch, make_rollouts, next_rollouts, train_step, update_policy
from trainer.metrics.records import Progress, stage_of_error
from trainer.off_policy import Prefetch, StaleWeights, prefetched_of_state, prefetched_state
from trainer.rollouts import RolloutBatch
from trainer.run_state import learner_state, restore, state_of
from trainer.saving import flatten
from trainer.saving.checkpoint import _nested, difference
from trainer.tasks.digits import prompt
from trainer.tasks.tokenizers import Characters
from trainer.trainer import build_trainer
from trainer.types import Group, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from trainer.engines.generator_client import Generated
    from trainer.saving import State
    from trainer.trainer import Trainer
    from trainer.types import Batch

pytestmark = pytest.mark.slow

AHEAD = changed(
    TINY, layers=1, distractors=0, steps=5, generators=2, off_policy=1, correction="token", mini_batches=2,
    generator_timeout_s=60.0,
)  # fmt: skip


def trainer_of(config: Config = AHEAD, crew: Crew | None = None, *, seed: int = 0) -> Trainer:
    """A trainer whose generators are servers in this process."""
    crew = crew or Crew(config)
    return build_trainer(config, CPU, seed=seed, engine=crew.engine(config.rollout.generators))


def copied(state: State) -> State:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    found: State = torch.load(file, weights_only=True)
    return found


# What is learnt from when.


def test_every_batch_but_the_first_was_drawn_with_the_weights_of_before_the_last_update() -> None:
    made = trainer_of()
    for step in range(1, 6):
        train_step(made, step)
    # The same by hand, with nothing at the same time as anything else.
    slow = trainer_of(changed(AHEAD, off_policy=0))
    batches = [make_rollouts(slow), make_rollouts(slow)]
    for step in range(1, 6):
        now = batches.pop(0)
        batch = slow.make_batch(now.groups, now.rewards_PG)
        known = slow.learner.compute_logprobs(batch)
        update_policy(slow.learner, batch, known, slow.learner.compute_advantages(batch, known))
        slow.sync_weights(step)
        if step <= 3:
            batches.append(make_rollouts(slow))
    assert difference(learner_state(made.learner), learner_state(slow.learner)) is None
    assert all(torch.equal(each, slow.engine.weights()[name]) for name, each in made.engine.weights().items())
    plain = trainer_of(changed(AHEAD, off_policy=0))
    for step in range(1, 6):
        train_step(plain, step)
    assert difference(learner_state(made.learner), learner_state(plain.learner)) is not None


@pytest.mark.slow
def test_records_tell_how_far_behind_answers_were_and_who_waited(tmp_path: Path) -> None:
    steps = [each for each in run(tmp_path, AHEAD, trainer_of()) if each["kind"] == "step"]
    assert [each["generators/lag"] for each in steps] == [0, 1, 1, 1, 1]
    for each in steps[:-1]:
        assert each["timing_s/gen_wait"] == each["learner/idle_s"] >= 0
        assert 0 < each["generators/busy_s"] <= each["timing_s/gen"] + 0.001
        assert each["generators/idle_s"] == pytest.approx(each["timing_s/step"] - each["generators/busy_s"])
        assert each["generators/lost"] == 0
        assert each["generators/weights_mib_per_s"] > 0
    # The last step begins nothing: all that was generated was learnt from.
    assert "timing_s/gen_wait" not in steps[-1]
    assert steps[-1]["generators/busy_s"] == 0
    assert only(read(tmp_path), kind="stage", name="logprobs")["passed"] is True
    assert only(read(tmp_path), kind="stage", name="checkpoint")["next_step_equal"] is True
    assert only(read(tmp_path), kind="stage", name="sampler-weights")["unequal"] == 0


def test_on_policy_the_learner_waits_for_all_of_the_generation(tmp_path: Path) -> None:
    config = changed(AHEAD, off_policy=0, correction="none", steps=2)
    for each in run(tmp_path, config, trainer_of(config)):
        if each["kind"] == "step":
            assert each["generators/lag"] == 0
            assert each["learner/idle_s"] == each["timing_s/gen"] >= each["generators/busy_s"]
    assert only(read(tmp_path), kind="stage", name="logprobs")["largest"] < 1e-4
    assert only(read(tmp_path), kind="stage", name="generators")["num_lost"] == 0


def test_generation_runs_while_the_learner_learns() -> None:
    is_learning, waited = threading.Event(), []

    def after_the_update_began(found: Generated) -> Generated:
        if threading.current_thread().name == "generation":
            waited.append(is_learning.wait(60.0))
        return found

    made = trainer_of(crew=Crew(AHEAD, {0: [after_the_update_began], 1: [after_the_update_began]}))
    real = made.learner.split_mini_batches

    def split_mini_batches(batch: Batch) -> Iterator[Tensor]:
        is_learning.set()
        return real(batch)

    made.learner.split_mini_batches = split_mini_batches  # type: ignore[method-assign]
    train_step(made, 1)
    assert waited == [True, True]
    assert made.prefetch is not None and made.prefetch.ready is not None


@pytest.mark.slow
def test_groups_that_are_drawn_again_are_of_the_same_weights() -> None:
    config = changed(AHEAD, dynamic_sampling=True, reward="exact", prompts_per_step=4, rollouts_per_prompt=2, steps=3)
    made = trainer_of(config)
    lags = [train_step(made, step) for step in (1, 2, 3)]
    assert [each.staleness for each in lags] == [0, 1, 1]
    assert max(each.num_generated for each in lags) > 4


# Going on.


@pytest.mark.slow
def test_a_run_that_goes_on_from_any_step_makes_the_same_bits(tmp_path: Path) -> None:
    live = trainer_of()
    states = []
    for step in range(1, 6):
        train_step(live, step)
        states.append(copied(state_of(live, step)))
    for step in range(1, 5):
        other = trainer_of(seed=9)
        assert restore(other, states[step - 1]) == step
        for later in range(step + 1, 6):
            train_step(other, later)
        assert difference(copied(state_of(other, 5)), states[-1]) is None, step
    assert states[3]["ready"]["0"] and not states[4]["ready"]["0"]


def test_a_batch_comes_back_from_its_tensors_as_it_was() -> None:
    text = Characters()
    questions = [prompt("1=", "2", text), prompt("1=", "2", text), prompt("22=", "3", text)]
    rollouts = (
        Rollout((5, END), (-0.1, -math.pi), Stop.END),
        Rollout((5, 6, 7), (-0.3, 0.0, -1e-30), Stop.TERMINATED, (True, False, True), 0.25, (True, False)),
        Rollout((), (), Stop.LENGTH),
    )
    groups = [Group(questions[2], rollouts), Group(questions[1], (rollouts[1],) * 3), Group(questions[2], rollouts)]
    made = RolloutBatch(groups, torch.rand(3, 3, dtype=torch.float64), 7, 4)
    found = prefetched_of_state(copied(prefetched_state(made, questions)), questions, CPU)
    assert found is not None
    assert (found.groups, found.num_generated, found.step) == (groups, 7, 4)
    assert found.groups[1].prompt is questions[1]
    assert torch.equal(found.rewards_PG, made.rewards_PG)
    assert prefetched_of_state(copied(prefetched_state(None, questions)), questions, CPU) is None
    elsewhere = prefetched_of_state(prefetched_state(made, questions), questions, torch.device("meta"))
    assert elsewhere is not None and elsewhere.rewards_PG.is_meta


def test_a_run_that_was_at_its_end_goes_on_from_a_state_that_keeps_no_empty_parts() -> None:
    made = trainer_of()
    for step in range(1, 6):
        train_step(made, step)
    state = _nested(flatten(copied(state_of(made, 5))))  # as shards keep it
    assert "ready" not in state
    longer = trainer_of(changed(AHEAD, steps=7), seed=4)
    assert restore(longer, state) == 5
    assert train_step(longer, 6).staleness == 0  # nothing lay ready
    assert train_step(longer, 7).staleness == 1


# What ends a run.


def test_weights_that_stay_behind_end_the_run_with_a_reason() -> None:
    for limit, last in ((1, 3), (2, 4)):
        made = trainer_of(changed(AHEAD, off_policy=0, correction="none", max_staleness=limit, fault="stale-weights"))
        with pytest.raises(StaleWeights) as caught:
            for step in range(1, 6):
                train_step(made, step)
        assert step == last + 1
        told = rf"step {step} .* step 1, {step - 2} steps .* max_staleness={limit}"
        assert re.search(told, str(caught.value))
    stage = stage_of_error(caught.value)
    assert stage is not None and (stage["name"], stage["cause"]) == ("generation", "stale-weights")


def test_what_generation_ends_with_ends_the_step_that_waits_for_it() -> None:
    crew = Crew(AHEAD)
    made = trainer_of(crew=crew)
    ready = make_rollouts(made)
    assert made.prefetch is not None
    made.prefetch.ready = ready
    crew.spoils = {0: [dead] * 9, 1: [dead] * 9}
    for each in crew.started:
        each.spoil = dead
    assert next_rollouts(made) is ready
    with pytest.raises(GeneratorLost, match="killed by SIGKILL") as caught:
        finish_prefetch(made)
    stage = stage_of_error(caught.value)
    assert stage is not None and (stage["name"], stage["cause"]) == ("generation", "generator-lost")
    ahead = Prefetch()
    ahead.start(lambda _: [][1])
    with pytest.raises(IndexError):
        ahead.wait(Progress())
    assert ahead.wait(Progress()) is None


# Settings.


def given(*words: str) -> Config:
    return read_settings(words, devices=("auto", "cpu")).config


def test_the_correction_is_on_one_step_off_policy_unless_somebody_said_otherwise() -> None:
    found = read_settings(["generators=1", "off_policy=1"], devices=("auto", "cpu"))
    assert found.config.algorithm.correction == "token"
    assert found.assumed == {"correction": "token"}
    for word in ("none", "sequence"):
        said = read_settings(["generators=1", "off_policy=1", f"correction={word}"], devices=("auto", "cpu"))
        assert (said.config.algorithm.correction, said.assumed) == (word, {})
    assert given("generators=1").algorithm.correction == "none"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("off_policy=1", "off_policy=1 needs generators=1 or more"),
        ("off_policy=1 generators=1 engine=vllm sleep=true", "off_policy=1 takes sleep=false"),
        ("off_policy=1 generators=1 max_staleness=0", "it takes max_staleness=1 or more"),
        ("generators=1 ranks=2", "generators=1 .* ranks=2"),
        ("generators=1 engine=scripted", "it takes generators=0"),
        ("fault=stale-weights", "fault=stale-weights needs generators=1 or more"),
        ("fault=generator-dies", "fault=generator-dies needs generators=1 or more"),
        ("off_policy=2 generators=1", "off_policy=2 "),
    ],
)
def test_settings_that_do_not_go_together_are_refused_with_a_sentence(words: str, said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        given(*words.split())
