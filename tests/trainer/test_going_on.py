"""Going on from a checkpoint, and settings that depend on each other."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.core_cases import SMALL
from tests.trainer.trainer_cases import CPU, changed, only, read, run
from trainer import saving
from trainer.config import BadSetting, Config, differing, parse
from trainer.metrics.records import FILE
from trainer.saving.checkpoint import load, save
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# Going on, and settings.


def saved_at(out: Path, step: int, **settings: object) -> None:
    save({"step": step, "settings": {**Config().lasting(), **settings}}, out / saving.CHECKPOINT)


def test_a_run_goes_on_at_its_last_step_and_epochs_decide_over_steps(tmp_path: Path) -> None:
    saved_at(tmp_path / "steps", 9, steps=9)
    assert saving.find_resume_point(
        tmp_path / "steps", changed(Config(), resume="true", steps=9)
    ) == saving.ResumePoint(9, {})
    with pytest.raises(BadSetting, match=r"\b9 steps .* steps=8 "):
        saving.find_resume_point(tmp_path / "steps", changed(Config(), resume="true", steps=8))
    saved_at(tmp_path / "epochs", 30, epochs=2, steps=60)
    config = changed(Config(), resume="true", epochs=2, steps=10)
    assert saving.find_resume_point(tmp_path / "epochs", config) == saving.ResumePoint(30, {})


def test_every_file_of_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            done.append(name)
            return real(*given)

        return call

    monkeypatch.setattr(os, "fsync", noted("sync", os.fsync))
    monkeypatch.setattr(os, "replace", noted("name", os.replace))
    save({"step": 1}, tmp_path)
    assert done == ["sync", "name", "sync"] * 2


class Code:
    """What runs a function of its maker's choice when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("it ran",)


def test_a_checkpoint_that_holds_code_is_not_run_though_its_digest_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save({"step": 1, "x": Code()}, tmp_path)
    with pytest.raises(pickle.UnpicklingError):
        load(tmp_path, CPU)
    assert capsys.readouterr().out == ""


def test_a_last_record_without_its_line_end_and_what_was_said_of_ranks_are_written_again(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"kind": "header"}\n{"kind": "step", "step": 1}')
    assert saving.continue_records(tmp_path, 1).num_dropped == 1
    assert read(tmp_path) == [{"kind": "header"}]
    (tmp_path / FILE).write_text('{"kind": "header"}\n{"kind": "ranks", "rank": 1}\n')
    assert saving.continue_records(tmp_path, 1).num_dropped == 1
    assert read(tmp_path) == [{"kind": "header"}]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["dual_clip=1"], "^dual_clip=1 .* 1"),
        (["ranks=3", "prompts_per_step=8"], "^prompts_per_step=8 .* ranks=3"),
        (["ranks=2", "estimator=gae"], "estimator=gae takes ranks=1"),
        (["ranks=4", "prompts_per_step=4", "mini_batches=2"], "^mini_batches=2 .* 4 ranks "),
    ],
)
def test_ranks_that_cannot_share_a_step_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        parse(words, devices=("cpu",))


def test_as_many_mini_batches_as_groups_and_ranks_that_share_them_are_taken() -> None:
    found = parse(["++ranks=2", "+prompts_per_step=8", "mini_batches=4"], devices=("cpu",))
    assert (found.run.ranks, found.rollout.prompts_per_step, found.optim.mini_batches) == (2, 8, 4)


def test_how_often_a_run_saves_and_validates_may_change_on_the_way() -> None:
    before = {**Config().lasting(), "save_every": 5, "validate_every": 7, "peak_tflops": 1.0}
    free, refused = differing(before, Config())
    assert (set(free), refused) == ({"save_every", "validate_every", "peak_tflops"}, {})


def test_adapters_reach_the_sampler_merged_into_the_weights(tmp_path: Path) -> None:
    config = changed(SMALL, steps=3, lora_rank=2, lr=0.05)
    trainer = build_trainer(config, CPU, seed=0)
    plain = build_trainer(changed(SMALL, steps=3), CPU, seed=0)
    before = {name: weight.clone() for name, weight in trainer.learner.weights().items()}
    assert list(before) == list(plain.learner.weights())
    records = run(tmp_path, config, trainer)
    assert only(records, kind="stage", name="logprobs")["passed"] is True
    moved = {name for name, weight in trainer.engine.weights().items() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if "_proj.weight" in name}


def test_the_fault_of_a_rate_of_nothing_reaches_the_learner() -> None:
    assert build_trainer(changed(SMALL, fault="lr-zero"), CPU, seed=0).learner.lr() == 0.0
    assert build_trainer(SMALL, CPU, seed=0).learner.lr() > 0.0
