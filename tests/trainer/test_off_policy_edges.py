"""The batch that is made ahead, at its edges: learnt from once, its time counted whole, its rewards kept to the bit."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.trainer_cases import CPU, END
from trainer.metrics.records import Progress
from trainer.off_policy import Prefetch, prefetched_of_state, prefetched_state
from trainer.rollouts import GeneratedGroups, RolloutBatch
from trainer.tasks.digits import prompt
from trainer.tasks.tokenizers import Characters
from trainer.types import Group, Rollout, Stop


def test_what_lies_ready_is_taken_once() -> None:
    ahead, made = Prefetch(), RolloutBatch([], torch.zeros(0, 0), 0, 3)
    ahead.ready = made
    assert ahead.take() is made
    assert ahead.take() is None and ahead.ready is None


def test_seconds_of_generation_add_up_over_the_run_and_waiting_is_counted_apart() -> None:
    ahead, progress = Prefetch(), Progress()
    progress.seconds["gen"] = 1000.0

    def generate(own: Progress) -> GeneratedGroups:
        own.seconds["gen"], own.seconds["reference"] = 10.0, 1.0
        return GeneratedGroups([])

    for _ in range(2):
        ahead.start(generate)
        assert ahead.wait(progress) == GeneratedGroups([])
    assert progress.seconds.pop("gen_wait") < 60.0
    assert progress.seconds == {"gen": 1020.0, "reference": 2.0}


def test_an_error_is_raised_once_and_the_next_batch_can_be_begun() -> None:
    ahead = Prefetch()
    ahead.start(lambda _: GeneratedGroups([][1]))
    with pytest.raises(IndexError):
        ahead.wait(Progress())
    ahead.start(lambda _: GeneratedGroups([]))
    assert ahead.wait(Progress()) == GeneratedGroups([])


def test_what_an_environment_paid_keeps_every_bit() -> None:
    questions = [prompt("1=", "2", Characters())]
    rollouts = tuple(Rollout((END,), (-0.1,), Stop.END, reward=paid) for paid in (0.1, None, 0.0, -1 / 3))
    made = RolloutBatch([Group(questions[0], rollouts)], torch.tensor([[0.1, 0.0, 0.0, -1 / 3]]), 1, 2)
    found = prefetched_of_state(prefetched_state(made, questions), questions, CPU)
    assert found is not None
    assert [each.reward for each in found.groups[0].rollouts] == [0.1, None, 0.0, -1 / 3]
