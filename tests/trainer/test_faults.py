"""Each fault changes the one thing it says it changes."""

from __future__ import annotations

import errno
import math
import os
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.trainer_cases import CPU, END, PAD, TINY, changed, group, rollout
from trainer import faults
from trainer.algorithms.packing import make_batch
from trainer.run_state import learner_state
from trainer.saving import CorruptCheckpoint, Saved, State
from trainer.saving.checkpoint import difference, load, save
from trainer.sections import Run
from trainer.tasks.digits import successor
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Faults of other processes: `trainer.launch`, the world and generators know them.
ELSEWHERE = {"rank-dies", "rank-differs", "generator-dies", "generator-garbage", "stale-weights"}
PLACES = {
    "task": {"constant-reward", "no-signal", "reward-raises", "reward-hangs", "no-end-token"},
    "arithmetic": {"wrong-arithmetic"},
    "validation": {"skipped-validation"},
}


def accepted_faults() -> set[str]:
    accepted: Iterable[str] = Run.__dataclass_fields__["fault"].metadata["accepted"]
    return set(accepted)


def test_every_fault_that_can_be_asked_for_changes_something() -> None:
    made = successor(1)
    for fault in accepted_faults() - {"none"} - ELSEWHERE:
        config = changed(TINY, fault=fault)
        trainer, plain = build_trainer(config, CPU, seed=0), build_trainer(TINY, CPU, seed=0)
        hooks = sum(len(each._backward_hooks or ()) for _, each in trainer.learner.model.named_parameters())
        is_changed = {
            "task": faults.task(made, fault) != made,
            "arithmetic": isinstance(faults.arithmetic(fault), faults.WrongProducts),
            "validation": faults.skips_validation(fault),
            "trainer": hooks > 0
            or trainer.learner.lr.__qualname__ != plain.learner.lr.__qualname__
            or any(
                getattr(trainer, name).__qualname__ != getattr(plain, name).__qualname__
                for name in ("compute_rewards", "make_batch", "sync_weights", "save")
            ),
        }
        place = next((place for place, names in PLACES.items() if fault in names), "trainer")
        assert {name for name, differs in is_changed.items() if differs} == {place}, fault


def test_no_fault_changes_nothing() -> None:
    made = successor(1)
    assert faults.task(made, "none") is made
    assert not isinstance(faults.arithmetic("none"), faults.WrongProducts)
    assert faults.skips_validation("none") is False


def test_a_learning_rate_of_zero_is_all_that_the_learner_loses() -> None:
    broken, plain = (build_trainer(changed(TINY, fault=fault), CPU, seed=0) for fault in ("lr-zero", "none"))
    assert (broken.learner.lr(), plain.learner.lr()) == (0.0, TINY.optim.lr)
    assert difference(learner_state(broken.learner), learner_state(plain.learner)) is None


def test_the_broken_rewards_are_what_they_are_called() -> None:
    prompt, answer = successor(1).train[0], rollout((1, END))
    tasks = {name: faults.task(successor(1), name) for name in ("constant-reward", "no-signal", "reward-raises")}
    constant = {tasks["constant-reward"].reward(each, answer) for each in successor(1).train}
    assert constant == {0.5}
    by_prompt = {tasks["no-signal"].reward(each, rollout((token,))) for each in (prompt,) for token in range(5)}
    assert len(by_prompt) == 1
    assert {tasks["no-signal"].reward(each, answer) for each in successor(1).train} == {0.0, 1.0}
    with pytest.raises(KeyError):
        tasks["reward-raises"].reward(prompt, answer)


def test_a_tokenizer_without_end_is_the_other_in_all_else() -> None:
    made = successor(1)
    broken = faults.task(made, "no-end-token").tokenizer
    assert broken.end is None
    assert (broken.pad, broken.vocabulary_size) == (made.tokenizer.pad, made.tokenizer.vocabulary_size)
    assert broken.encode("12=") == made.tokenizer.encode("12=")


def test_shuffled_rewards_are_the_same_rewards_in_a_seeded_order() -> None:
    rewards = torch.arange(12.0).reshape(3, 4)
    one, same, other = (faults.shuffled(lambda groups: rewards, seed)([]) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one, rewards)
    assert one.shape == (3, 4)
    assert sorted(one.reshape(-1).tolist()) == list(range(12))


def test_the_mask_moves_one_token_to_the_right() -> None:
    groups = [group("4=", (5, 6, END), (5, END))]
    batch = faults.off_by_one(lambda groups, rewards_PG: make_batch(groups, rewards_PG, pad=PAD))(
        groups, torch.zeros(1, 2)
    )
    assert batch.mask_BT.int().tolist() == [[1, 1, 1], [0, 1, 1]]
    assert batch.tokens_BT.tolist() == [[5, 6, END], [5, END, PAD]]


def test_lost_rewards_are_zero_in_the_batch_and_all_else_stays() -> None:
    groups, rewards = [group("4=", (5, END), (END,))], torch.tensor([[1.0, 0.5]])
    batch = faults.unrewarded(lambda groups, rewards_PG: make_batch(groups, rewards_PG, pad=PAD))(groups, rewards)
    assert batch.rewards_B.tolist() == [0.0, 0.0]
    assert batch.tokens_BT.tolist() == make_batch(groups, rewards, pad=PAD).tokens_BT.tolist()


def test_a_stale_sampler_is_given_weights_once() -> None:
    calls: list[int] = []
    sync_weights = faults.once(calls.append)
    for step in (1, 2, 3):
        sync_weights(step)
    assert calls == [1]


def test_a_poisoned_gradient_is_nan_though_the_loss_is_a_number() -> None:
    model = torch.nn.Linear(2, 1)
    faults.poison(model.named_parameters())
    loss = model(torch.ones(1, 2)).sum()
    loss.backward()
    assert math.isfinite(loss.item())
    assert model.weight.grad is not None and bool(model.weight.grad.isnan().all())


def test_a_corrupted_checkpoint_differs_in_one_bit_and_is_refused(tmp_path: Path) -> None:
    good: list[bytes] = []

    def keep(state: State, folder: Path) -> Saved:
        saved = save(state, folder)
        good.append((folder / saved.file).read_bytes())
        return saved

    saved = faults.corrupted(keep)({"w": torch.arange(100.0)}, tmp_path)
    bad = (tmp_path / saved.file).read_bytes()
    assert len(bad) == len(good[0])
    assert sum((a ^ b).bit_count() for a, b in zip(good[0], bad, strict=True)) == 1
    with pytest.raises(CorruptCheckpoint):
        load(tmp_path, CPU)


def test_a_full_disk_raises_what_the_system_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        faults.full({}, tmp_path)
    assert caught.value.errno == errno.ENOSPC


def test_wrong_products_are_wrong_in_one_value_and_only_below_64_bits() -> None:
    left, right = torch.ones(4, 3), torch.ones(3, 2)
    with faults.WrongProducts():
        for product in (left @ right, torch.matmul(left, right), torch.nn.functional.linear(left, right.T)):
            assert product.reshape(-1)[1:].tolist() == [3.0] * 7
            assert float(product[0, 0]) == pytest.approx(3.3)
        assert (left.double() @ right.double()).tolist() == [[3.0, 3.0]] * 4
    assert (left @ right).tolist() == [[3.0, 3.0]] * 4
