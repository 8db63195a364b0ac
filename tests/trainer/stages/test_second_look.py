"""A healthy run has a second opinion of everything; what it cannot judge is left out, what breaks is left open."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.trainer_cases import CPU, TINY, changed, only, run
from trainer.algorithms.update_metrics import UpdateMetrics
from trainer.metrics import second_opinion
from trainer.metrics import step as metrics_of_step
from trainer.rollouts import Episode
from trainer.stages import second_look
from trainer.stages.evidence import QUESTIONS, Results, Tap, Update
from trainer.stages.recompute import _is_rounded, _unsummed
from trainer.stages.second_look import SecondLook
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trainer.trainer import Trainer
    from trainer.types import Batch, Group, Rollout


SMALL = changed(TINY, steps=3, prompts_per_step=4, mini_batches=2, layers=1)


def stages(records: list[dict[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    return {name: only(records, kind="stage", name=name) for name in QUESTIONS}


def test_a_healthy_run_passes_every_question(tmp_path: Path) -> None:
    found = stages(run(tmp_path, SMALL))
    assert {name: each["passed"] for name, each in found.items()} == dict.fromkeys(QUESTIONS, True)
    assert found["prompts"]["steps"] == 3
    assert found["recomputed"]["errors"]["gradient"] < 1e-5
    assert found["recomputed"]["errors"]["optimizer"] < 1
    validation = only(run(tmp_path / "again", SMALL), kind="stage", name="validation")
    assert validation["samples_differ"] == 0


@pytest.mark.slow
def test_it_changes_nothing_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = build_trainer(SMALL, CPU, seed=0)
    run(tmp_path / "looked", SMALL, looked)
    plain = build_trainer(SMALL, CPU, seed=0)
    for name in ("on_start", "on_step_start", "on_step", "on_end"):
        monkeypatch.setattr(SecondLook, name, lambda *args: None)
    run(tmp_path / "plain", SMALL, plain)
    for name, each in looked.learner.parameters().items():
        assert torch.equal(each, plain.learner.parameters()[name])
    assert torch.equal(looked.engine.random_state(), plain.engine.random_state())


def more(trainer: Trainer) -> None:
    score = trainer.compute_rewards
    trainer.compute_rewards = lambda groups: score(groups) + 0.5  # type: ignore[method-assign]


def reverse(trainer: Trainer) -> None:
    mini_batches = trainer.learner.split_mini_batches
    trainer.learner.split_mini_batches = lambda batch: reversed(list(mini_batches(batch)))  # type: ignore[method-assign]


def repeat(trainer: Trainer) -> None:
    generate = trainer.engine.generate
    trainer.engine.generate = lambda *asked: [each[:1] * len(each) for each in generate(*asked)]  # type: ignore[method-assign]


def unmask(trainer: Trainer) -> None:
    make_batch = trainer.make_batch

    def masked(groups: Sequence[Group], rewards_PG: torch.Tensor) -> Batch:
        batch = make_batch(groups, rewards_PG)
        return replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))

    trainer.make_batch = masked  # type: ignore[method-assign]


def cut(trainer: Trainer) -> None:
    def short(each: Rollout) -> Rollout:
        return replace(each, tokens=each.tokens[:-1], logprobs=each.logprobs[:-1]) if len(each.tokens) > 1 else each

    generate = trainer.engine.generate
    trainer.engine.generate = lambda *given: [tuple(map(short, each)) for each in generate(*given)]  # type: ignore[method-assign]


def round_weights(trainer: Trainer) -> None:
    load = trainer.engine.load_weights
    trainer.engine.load_weights = lambda weights: load(  # type: ignore[method-assign]
        {name: each.bfloat16().to(each.dtype) for name, each in weights.items()}
    )


def overstate(trainer: Trainer) -> None:
    def louder(each: Rollout) -> Rollout:
        return replace(each, logprobs=tuple(value + 0.05 for value in each.logprobs))

    generate = trainer.engine.generate
    trainer.engine.generate = lambda *given: [tuple(map(louder, each)) for each in generate(*given)]  # type: ignore[method-assign]


def shift(trainer: Trainer) -> None:
    """Only in the passes that gradients are taken of."""
    token_logprobs = trainer.learner.model.token_logprobs

    def shifted(batch: Batch, **settings: Any) -> Any:
        found = token_logprobs(batch, **settings)
        return replace(found, logprobs_BT=found.logprobs_BT + 0.01) if torch.is_grad_enabled() else found

    trainer.learner.model.token_logprobs = shifted  # type: ignore[method-assign]


def negate(trainer: Trainer) -> None:
    reduce = trainer.learner.reduce_metrics
    trainer.learner.reduce_metrics = lambda shares: {**reduce(shares), "ppo_kl": -reduce(shares)["ppo_kl"]}  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("name", "wrong", "break_it"),
    [
        ("batch", "rewards-wrong", more),
        ("batch", "batch-differs", unmask),
        ("mini-batches", "order-differs", reverse),
        ("samples", "rows-repeat", repeat),
        ("samples", "answers-cut", cut),
        ("recomputed", "learner-logprobs-wrong", shift),
        ("recomputed", "metrics-wrong", negate),
        ("samples", "sampler-weights-failed", round_weights),
        ("samples", "sampler-logprobs-wrong", overstate),
    ],
)
@pytest.mark.one_in(4)
def test_what_is_computed_or_drawn_again_shows_what_is_wrong(
    name: str, wrong: str, break_it: Callable[[Trainer], None], tmp_path: Path
) -> None:
    trainer = build_trainer(SMALL, CPU, seed=0)
    break_it(trainer)
    assert stages(run(tmp_path, SMALL, trainer))[name]["wrong"] == wrong


def test_an_answer_is_scored_by_its_own_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[tuple[int, ...], float] = {}
    monkeypatch.setattr(
        "trainer.tasks.base._judge",
        lambda prompt, rollout, task, _: known.setdefault(rollout.tokens, task.reward(prompt, rollout)),
    )
    assert stages(run(tmp_path, SMALL))["batch"]["wrong"] == "rewards-wrong"


@pytest.mark.slow
def test_the_mask_is_off_on_what_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Episode._append
    monkeypatch.setattr(Episode, "_append", lambda self, *given, **_: append(self, *given, is_response=True))
    found = stages(run(tmp_path, changed(SMALL, task="frozen_lake")))
    assert found["samples"]["wrong"] == "mask-on-observations"


def test_a_record_is_held_against_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = metrics_of_step.of_lengths
    wrong = {"response_length/clip_ratio": -1.0}
    monkeypatch.setattr(metrics_of_step, "of_lengths", lambda *given: {**lengths(*given), **wrong})
    found = stages(run(tmp_path, SMALL))["recomputed"]
    assert (found["wrong"], found["what"]) == ("metrics-wrong", "response_length/clip_ratio")


@pytest.mark.slow
def test_the_rate_in_the_record_is_that_of_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mean = UpdateMetrics.mean
    monkeypatch.setattr(UpdateMetrics, "mean", lambda *given, **more: replace(mean(*given, **more), lr=0.5))
    found = stages(run(tmp_path, SMALL))
    assert (found["recomputed"]["wrong"], found["recomputed"]["what"]) == ("metrics-wrong", "lr")
    assert found["schedules"]["passed"] is True


@pytest.mark.slow
def test_rewards_that_cannot_be_computed_again_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: object) -> float:
        raise RuntimeError("no sandbox")

    monkeypatch.setattr("trainer.metrics.second_opinion.reward", raises)
    found = stages(run(tmp_path, SMALL, build_trainer(SMALL, CPU, seed=0)))["batch"]
    assert found["passed"] is None and found["reason"] == "RuntimeError: no sandbox"


def test_numbers_of_few_bits_are_told_from_those_of_many() -> None:
    values = torch.randn(64, dtype=torch.float64)
    assert _is_rounded(values.bfloat16().double()) and not _is_rounded(values.float().double())
    assert not _is_rounded(torch.zeros(64, dtype=torch.float64))


def test_a_sum_of_gradients_is_rounded_once() -> None:
    shares = torch.randn(32, 256, dtype=torch.float64)
    narrow = torch.zeros(256, dtype=torch.bfloat16)
    for each in shares:
        narrow += each.bfloat16()
    update = Update([], shares={"x": shares.sum(0)}, sizes={"x": shares.abs().sum(0)})
    update.gradients = {"x": shares.sum(0).bfloat16().double()}
    assert _unsummed(update, torch.bfloat16) is None
    update.gradients = {"x": narrow.double()}
    assert _unsummed(update, torch.bfloat16) == "x"


def test_a_setting_without_a_formula_leaves_its_questions_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_look, "_KNOWN", second_look._KNOWN.replace(" gamma ", " "))
    found = stages(run(tmp_path, changed(SMALL, gamma=0.9)))
    assert found["recomputed"]["passed"] is None and "gamma=0.9" in found["recomputed"]["skipped"]
    assert found["batch"]["passed"] is found["heldout"]["passed"] is True


@pytest.mark.slow
def test_what_breaks_while_it_looks_is_unknown_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> Any:
        raise KeyError("nothing")

    monkeypatch.setattr(second_opinion, "loss", broken)
    found = stages(run(tmp_path, SMALL))["recomputed"]
    assert found["passed"] is None and "KeyError" in found["reason"] and "skipped" not in found


def test_what_explains_comes_before_what_follows() -> None:
    results = Results()
    results.fail("recomputed", "gradient-wrong", step=1)
    results.fail("recomputed", "advantages-wrong", step=2)
    results.fail("recomputed", "optimizer-wrong", step=3)
    assert results.failed == {"recomputed": {"wrong": "advantages-wrong", "step": 2}}


def test_a_model_too_large_to_recompute_is_neither_recomputed_nor_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_look, "_LARGEST", 100)
    monkeypatch.delattr(Tap, "_snapshot")
    found = stages(run(tmp_path, SMALL))
    assert "too large" in found["recomputed"]["skipped"]
    assert found["prompts"]["passed"] is found["batch"]["passed"] is found["reference"]["passed"] is True
