"""What the machine is asked, and what is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from tests.trainer.core_cases import GROUPS, REWARDS, batch
from tests.trainer.trainer_cases import CPU, END, PAD, TINY, changed, read, rollout
from trainer import device as devices
from trainer.algorithms.optimizer import learning_rate
from trainer.algorithms.packing import make_batch, select
from trainer.distributed import World
from trainer.metrics.checks import GenerationCheck, LogprobsCheck, RewardCheck, UpdateCheck
from trainer.metrics.records import Progress, Records
from trainer.stages import probes
from trainer.stages.probes import Stage, StageFailed
from trainer.trainer import build_trainer
from trainer.types import Group, Rollout, Stop

if TYPE_CHECKING:
    from pathlib import Path


# What the machine is asked, and what is counted.


def test_a_run_needs_the_gradients_of_what_it_trains_and_the_logits_of_one_forward_pass() -> None:
    tokens, vocabulary = 3, 19

    def needed(**changes: object) -> int:
        config = changed(TINY, **changes)
        return probes.needed_bytes(build_trainer(config, CPU, seed=0), config)

    whole, cut = needed(), needed(mini_batches=3)
    assert whole - cut == 3 * 4 * (12 - 4) * tokens * vocabulary
    adapted = build_trainer(changed(TINY, lora_rank=2), CPU, seed=0)
    trained = sum(each.numel() for each in adapted.learner.model.parameters() if each.requires_grad)
    assert needed(lora_rank=2) == 4 * trained + 3 * 4 * 12 * tokens * vocabulary


def test_memory_that_is_as_full_as_before_was_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "allocated", lambda device: 10)
    assert probes.memory(build_trainer(TINY, CPU, seed=0), TINY).passed is True


def test_one_number_that_was_not_added_up_fails_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: World, tensor: Tensor) -> Tensor:
        tensor[1:] += 2
        return tensor

    monkeypatch.setattr(World, "all_reduce_sum", add)
    monkeypatch.setattr(World, "barrier", lambda self: None)
    assert probes.collective(World(0, 2), CPU).passed is False


@pytest.mark.parametrize(("place", "name"), [("present", "device"), ("matmul", "matmul"), ("decoder", "decoder")])
def test_training_does_not_begin_where_a_question_that_it_needs_has_a_wrong_answer(
    place: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "installed_packages", list)
    monkeypatch.setattr(f"trainer.stages.probes.{place}", lambda *given: Stage(False, "it is wrong", {}))
    with Records(tmp_path) as records, pytest.raises(StageFailed, match=f"{name}: it is wrong"):
        probes.run_probes(build_trainer(TINY, CPU, seed=0), TINY, records, Progress())
    assert read(tmp_path)[-1]["name"] == name


def test_the_largest_of_all_ranks_is_not_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank gives 2 and 5."""
    operations = torch.distributed.ReduceOp

    def all_reduce(tensor: Tensor, op: Any = operations.SUM) -> None:
        other = torch.tensor([2.0, 5.0])
        tensor.copy_(torch.maximum(tensor, other) if op == operations.MAX else tensor + other)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    assert World(0, 2).all_reduce_max(torch.tensor([3.0, 4.0])).tolist() == [3.0, 5.0]
    assert World(0, 2).all_reduce_sum(torch.tensor([3.0, 4.0])).tolist() == [5.0, 9.0]


def test_a_gap_at_its_limit_is_within_it() -> None:
    check = LogprobsCheck(limit=1.0, mean_limit=0.5)
    check.add(1.0, 0.5)
    assert check.result()["passed"] is True


def test_rewards_that_arrive_in_another_number_are_all_lost_and_the_first_spread_stays() -> None:
    of, check = batch(), RewardCheck()
    check.add(REWARDS, of)
    check.add(REWARDS * 3, replace(of, rewards_B=of.rewards_B[:4]))
    assert check.lost == 9
    assert check.first_spread == pytest.approx(2.2)


def test_an_answer_that_the_environment_ended_has_ended_and_one_of_several_may_be_empty() -> None:
    check = GenerationCheck(END)
    check.add([Group(GROUPS[0].prompt, (replace(rollout((1, 2)), stop=Stop.TERMINATED),))])
    check.add([Group(GROUPS[0].prompt, (rollout(()), rollout((END,))))])
    assert (check.result()["ended"], check.result()["empty"], check.result()["passed"]) == (3, 1, True)
    check = GenerationCheck(END)
    check.add([Group(GROUPS[0].prompt, (replace(rollout(()), stop=Stop.END),))])
    assert check.result()["passed"] is False


def test_a_weight_that_moved_far_from_its_first_value_is_seen() -> None:
    weights = {"a": torch.ones(3000)}
    check = UpdateCheck.begin(weights)
    check.add(1e-3, 1.0)
    weights["a"][2999] = 2.0
    assert check.result(weights)["tensors_moved"] == 1


def test_some_rows_of_episodes_keep_the_environments_words_and_every_number_of_theirs() -> None:
    episode = Rollout((1, 2, 3, 4), (-0.5, 0.0, 0.0, -0.25), Stop.TERMINATED, (True, False, False, True), 1.0)
    groups = [GROUPS[1], Group(GROUPS[0].prompt, (episode, rollout((7,), -0.75)))]
    whole = make_batch(
        [replace(groups[0], rollouts=groups[0].rollouts[:2]), groups[1]], torch.arange(4.0).view(2, 2), pad=PAD
    )
    part = select(whole, torch.tensor([2, 3]))
    assert part.tokens_BT.tolist() == [[1, 2, 3, 4], [7, PAD, PAD, PAD]]
    assert part.mask_BT.int().tolist() == [[1, 0, 0, 1], [1, 0, 0, 0]]
    assert part.lengths_B.tolist() == [4, 1]
    assert part.rollout_logprobs_BT.tolist() == [[-0.5, 0.0, 0.0, -0.25], [-0.75, 0.0, 0.0, 0.0]]
    assert (part.rewards_B.tolist(), part.prompt_lengths_P.tolist()) == ([2.0, 3.0], [3])


def test_the_rate_over_a_run_in_each_shape() -> None:
    def rates(shape: str, warmup: int = 0) -> list[float]:
        return [learning_rate(shape, done, 4 + warmup, warmup=warmup) for done in range(6 + warmup)]

    assert rates("linear") == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rates("constant", 2) == [0.5, 1.0, *[1.0] * 6]
    assert rates("linear", 2) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rates("cosine") == pytest.approx([1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0], abs=1e-6)
