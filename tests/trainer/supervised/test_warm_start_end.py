"""A warm start that ends as soon as enough greedy answers are right."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.core_cases import on_ranks
from tests.trainer.trainer_cases import CPU, TINY, changed, read
from trainer.config import BadSetting, parse
from trainer.metrics.records import NoRecords, Progress, Records
from trainer.rollouts import collect
from trainer.run_state import learner_state
from trainer.saving.checkpoint import difference
from trainer.supervised import warm_start
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trainer.config import Config
    from trainer.distributed import World
    from trainer.trainer import Trainer
    from trainer.types import Group, Prompt

LEARNS = changed(TINY, prompts_per_step=16, hidden=32, warm_start_steps=200, warm_start_lr=1e-2, warm_start_until=0.3)


class Kept(NoRecords):
    """The last record's step and share."""

    def write(self, kind: str, **values: Any) -> None:
        self.step, self.accuracy = values["step"], values["accuracy"]


def started(config: Config, folder: Path) -> tuple[Trainer, list[dict[str, Any]]]:
    trainer = build_trainer(config, CPU, seed=0)
    with Records(folder) as records:
        warm_start.run(trainer, config, records, Progress())
    return trainer, read(folder)


@pytest.mark.slow
def test_it_ends_at_the_first_look_that_finds_the_share_and_says_so(tmp_path: Path) -> None:
    trainer, told = started(LEARNS, tmp_path)
    assert [each["step"] for each in told] == list(range(10, 10 * len(told) + 1, 10))
    assert len(told) < 20
    assert all(each["accuracy"] < 0.3 and each["ended"] is None for each in told[:-1])
    assert told[-1]["accuracy"] >= 0.3
    assert told[-1]["ended"] == "reached"
    # what is learnt from there on, and sampled with, is what was looked at
    assert warm_start.share_right(trainer) == told[-1]["accuracy"]
    assert difference(dict(trainer.engine.weights()), dict(trainer.learner.model.named_parameters())) is None


@pytest.mark.slow
def test_a_share_that_is_not_reached_leaves_the_bound_and_costs_nothing_but_time(tmp_path: Path) -> None:
    least = changed(LEARNS, warm_start_steps=13, warm_start_until=1.0)
    trainer, told = started(least, tmp_path / "looked")
    assert [(each["step"], each["ended"]) for each in told] == [(10, None), (13, "steps")]
    assert all(0 <= each["accuracy"] < 1 for each in told)
    other, plain = started(changed(least, warm_start_until=0.0), tmp_path / "plain")
    assert [(each["step"], each["ended"]) for each in plain] == [(10, None), (13, "steps")]
    assert all(each["accuracy"] is None for each in plain)
    assert difference(learner_state(trainer.learner), learner_state(other.learner)) is None
    assert torch.equal(trainer.engine.random_state(), other.engine.random_state())
    assert torch.equal(trainer.prompts.generator.get_state(), other.prompts.generator.get_state())


def test_every_lesson_and_every_look_is_seen_to_get_on() -> None:
    config = changed(LEARNS, warm_start_steps=13, warm_start_until=1.0)
    ended: list[str] = []

    class Counted(Progress):
        @contextmanager
        def phase(self, name: str) -> Iterator[None]:
            with Progress.phase(self, name):
                yield
            ended.append(name)

    warm_start.run(build_trainer(config, CPU, seed=0), config, NoRecords(), Counted())
    assert ended == ["warm_start"] * (13 + 2 + 1)  # and what starts the run


@pytest.mark.parametrize("task", ["successor", "frozen_lake"])
@pytest.mark.slow
def test_a_look_asks_the_same_prompts_each_time_and_none_that_is_held_out(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def noted(engine: Any, prompts: Sequence[Prompt], *rest: Any) -> list[Group]:
        asked.append([each.text for each in prompts])
        return collect(engine, prompts[:4], *rest)

    monkeypatch.setattr(warm_start, "collect", noted)
    for seed in (0, 1):
        trainer = build_trainer(changed(TINY, task=task), CPU, seed=seed)
        warm_start.share_right(trainer)
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == len(asked[0]) == min(256, len(trainer.task.train))
    assert not set(asked[0]) & {each.text for each in trainer.task.heldout}


@pytest.mark.slow
def test_ranks_look_at_a_part_each_and_end_together() -> None:
    config = changed(LEARNS, warm_start_lr=5e-3)

    def job(world: World) -> tuple[int, float]:
        trainer = build_trainer(config, CPU, seed=0, world=world)
        told = Kept()
        warm_start.run(trainer, config, told, Progress())
        return told.step, told.accuracy

    one, two = on_ranks(job)
    assert one == two
    assert 10 <= one[0] < 200
    assert one[1] >= 0.3


def test_a_share_without_steps_to_reach_it_in_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"warm_start_until=0\.4 needs warm_start_steps"):
        parse(["warm_start_until=0.4"], devices=("cpu",))
    with pytest.raises(BadSetting, match="warm_start_until"):
        parse(["warm_start_until=1.2", "warm_start_steps=10"], devices=("cpu",))
