"""Settings of the algorithm at work in a learner and in a whole trainer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.core_cases import SMALL, batch, by_policy, by_row, learner, off_policy, said, total, update
from tests.trainer.trainer_cases import CPU, END, changed, rollout, scripted
from trainer.algorithms.packing import make_batch
from trainer.config import load_function, parse
from trainer.learner import ForwardOutputs
from trainer.loop import sample_groups, train_step
from trainer.metrics.step import of_update
from trainer.sections import BadSetting
from trainer.trainer import build_trainer
from trainer.types import Group, Stop

if TYPE_CHECKING:
    from pathlib import Path


def test_an_epoch_of_a_batch_takes_as_many_optimizer_steps_as_the_first_in_another_order() -> None:
    made, of = learner(mini_batches=3, ppo_epochs=2, lr=1e-2), batch()
    rows = [tuple(each.tolist()) for each in made.split_mini_batches(of)]
    assert sorted(rows[:3]) == sorted(rows[3:]) and rows[:3] != rows[3:]
    assert len(rows) == 6
    update(made, of)
    assert (made.optimizer_steps, made.global_step) == (6, 1)


def test_two_epochs_clip_against_the_policy_before_the_first() -> None:
    made = learner(ppo_epochs=2, mini_batches=1)
    assert made.compute_logprobs(batch()).old_BT is not None
    assert learner(mini_batches=1).compute_logprobs(batch()).old_BT is None


def test_rejected_tokens_have_no_loss_and_no_place_in_its_mean() -> None:
    made, of = learner(rejection="seq_mean_k3", rejection_threshold="0.01"), batch()
    of = by_policy(made, of)
    of.rollout_logprobs_BT[1] -= 0.5
    logprobs = made.compute_logprobs(of)
    rejected = made.reject(of, logprobs)
    assert rejected.mask_BT.any(dim=1).tolist() == [row != 1 for row in range(9)]
    advantages = made.compute_advantages(rejected, logprobs)
    assert torch.equal(advantages.rewards_after_kl_B, of.rewards_B)  # the answer counts in the mean of its group
    assert not advantages.advantages_BT[1].any()
    num_tokens = int(rejected.mask_BT.sum())
    found = update(made, rejected, logprobs)
    rewards = torch.where(rejected.mask_BT, of.rewards_B[:, None], 0.0).sum()
    assert found.policy_loss == pytest.approx(-float(rewards) / num_tokens)
    plain = learner()
    assert plain.reject(of, logprobs) is of


def test_the_share_of_rejected_tokens_is_recorded() -> None:
    trainer = build_trainer(changed(SMALL, rejection="token_k1", rejection_threshold="2"), CPU, seed=0)
    sync, noise = trainer.sync_weights, torch.Generator().manual_seed(0)

    def sync_others(step: int) -> None:
        sync(step)
        moved = {
            name: each + torch.randn(each.shape, generator=noise) for name, each in trainer.engine.weights().items()
        }
        trainer.engine.load_weights(moved)

    trainer.sync_weights = sync_others  # type: ignore[method-assign]
    trainer.sync_weights(0)
    metrics = of_update(train_step(trainer, 1), trainer.config)
    assert 0 < metrics["rollout_corr/rollout_rs_masked_fraction"] < 1
    assert "rollout_corr/rollout_rs_masked_fraction" not in of_update(
        train_step(build_trainer(SMALL, CPU, seed=0), 1), SMALL
    )


def test_bad_answers_far_from_the_sampler_do_not_learn() -> None:
    made = learner(off_policy_mask=0.1)
    near, far = by_policy(made, batch(), 0.2), by_policy(made, batch(), -0.2)  # learner above the sampler; below
    assert update(made, near).policy_loss == pytest.approx(total(near))
    assert update(made, far).policy_loss == pytest.approx(total(far, 1.0, 0.0))


def test_only_uncertain_tokens_learn_and_the_mean_is_over_all() -> None:
    of = batch()
    made = learner(entropy_share=0.25)
    entropy_BT = made.model.token_logprobs(of, temperature=1.0).entropy_BT.detach()
    learns_BT = of.mask_BT & (entropy_BT >= torch.quantile(entropy_BT[of.mask_BT], 0.75))
    expected = -torch.where(learns_BT, of.rewards_B[:, None], 0.0).sum() / of.mask_BT.sum()
    rows = torch.arange(9)
    loss, _ = made.loss(of, rows, off_policy(made, of, 0.0), by_row(of), made.split_micro_batches(of, rows)[1])
    assert loss.item() == pytest.approx(expected.item())


def test_answers_cut_at_their_length_count_as_rewards_alone() -> None:
    whole, cut = rollout((1, END)), replace(rollout((1, 2)), stop=Stop.LENGTH)
    groups = [Group(batch_prompt(), (whole, cut))]
    of = make_batch(groups, torch.tensor([[1.0, 0.0]]), pad=0, mask_truncated=True)
    assert of.mask_BT.tolist() == [[True, True], [False, False]]
    found = learner(dtype="float32").compute_advantages(of, ForwardOutputs(None, None, None))
    assert found.advantages_BT.tolist() == [pytest.approx([math.sqrt(0.5)] * 2, abs=1e-5), [0.0, 0.0]]


def batch_prompt() -> Any:
    return build_trainer(SMALL, CPU, seed=0).task.train[0]


def test_the_reference_becomes_the_policy_every_so_many_steps_and_the_optimizer_goes_on() -> None:
    trainer = build_trainer(changed(SMALL, reference_every=2, steps=3, dtype="bfloat16"), CPU, seed=0)
    reference = trainer.learner.reference
    assert reference is not None
    start = [each.clone() for each in reference.parameters()]
    train_step(trainer, 1)
    assert all(map(torch.equal, start, reference.parameters()))
    train_step(trainer, 2)
    assert all(map(torch.equal, trainer.learner.model.parameters(), reference.parameters()))
    assert not all(map(torch.equal, start, reference.parameters()))
    wide = trainer.learner.optimizer.adamw.master  # of 32 bits: what was not yet rounded is not lost
    assert any(not torch.equal(each, each.bfloat16().float()) for each in wide.values())


def test_remax_takes_off_the_reward_of_a_greedy_answer() -> None:
    config = changed(SMALL, estimator="remax", reward="exact", prompts_per_step=4, rollouts_per_prompt=2, kl_coef=0.0)
    prompts = build_trainer(config, CPU, seed=0).task.train
    right = {each.text: (rollout((int(each.expected), END)), rollout((END,))) for each in prompts}
    trainer, _ = scripted(config, right)  # the first of them is the greedy one
    scored = sample_groups(trainer)
    of = trainer.make_batch(scored.groups, scored.rewards_PG)
    assert of.baselines_B is not None and of.baselines_B.tolist() == [1.0] * 8
    found = trainer.learner.compute_advantages(of, trainer.learner.compute_logprobs(of))
    assert found.advantages_BT[:, 0].tolist() == [0.0, -1.0] * 4


def test_a_reward_with_components_is_normalised_component_by_component(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(prompt, answer):\n    return {'score': 1, 'short': len(answer) < 2, 'zero': 0}\n"
    )
    words = [f"reward_function={tmp_path / 'mine.py'}:score", "estimator=gdpo", "reward_parts=short,zero"]
    words += ["prompts_per_step=4", "rollouts_per_prompt=2", "mini_batches=1", "max_new_tokens=3", "kl_coef=0"]
    config = parse(words, devices=("cpu",))
    prompts = build_trainer(config, CPU, seed=0).task.train
    trainer, _ = scripted(config, {each.text: (rollout((1, END)), rollout((1, 2, END))) for each in prompts})
    scored = sample_groups(trainer)
    assert [group.parts for group in scored.groups] == [((1.0, 0.0), (0.0, 0.0))] * 4
    of = trainer.make_batch(scored.groups, scored.rewards_PG)
    found = trainer.learner.compute_advantages(of, trainer.learner.compute_logprobs(of)).advantages_BT
    assert (found[::2, 0] > 0).all() and (found[1::2, 0] < 0).all()
    assert found[of.mask_BT].std() == pytest.approx(1.0, abs=1e-5)
    (tmp_path / "mine.py").write_text("def score(prompt, answer):\n    return {'score': 1}\n")
    with pytest.raises(Exception, match="one of reward_parts"):
        sample_groups(scripted(config, {each.text: (rollout((1, END)),) * 2 for each in prompts})[0])


def test_an_estimator_and_a_loss_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from trainer.algorithms.advantages import Advantages\n"
        "from trainer.algorithms.losses import clip\n\n\n"
        "def ones(scores, convention, *, settings):\n    return Advantages(scores.mask_BT.double(), None)\n\n\n"
        "def doubled(inputs):\n    made = clip(inputs)\n    return replace(made, losses_BT=2 * made.losses_BT)\n"
    )
    made = learner(estimator=f"{tmp_path / 'mine.py'}:ones", loss=f"{tmp_path / 'mine.py'}:doubled")
    of = batch()
    logprobs = ForwardOutputs(said(made, of), None, None)
    assert torch.equal(made.compute_advantages(of, logprobs).advantages_BT, of.mask_BT.double())
    assert update(made, of, logprobs).policy_loss == pytest.approx(2 * total(of))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{}/no.py:f", "FILE.py:NAME of a file that is there"),
        ("{}/mine.py:no", "has no attribute 'no'"),
        ("{}/mine.py:number", "number is no function"),
        ("{}/broken.py:f", "cannot be loaded: NameError: name 'nothing'"),
    ],
)
def test_a_function_that_cannot_be_had_is_refused(tmp_path: Path, given: str, says: str) -> None:
    (tmp_path / "mine.py").write_text("number = 1\n")
    (tmp_path / "broken.py").write_text("nothing\n")
    with pytest.raises(BadSetting, match=says):
        load_function("loss", given.format(tmp_path))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("estimator=mine", "Accepted: grpo, .*, FILE.py:NAME"),
        ("loss=no/such.py:f", "loss=no/such.py:f is not accepted"),
        ("rejection=token", "rejection=token is not accepted"),
        ("reference_every=2 kl_coef=0", "needs kl_coef above 0"),
        ("estimator=gdpo", "needs reward_function and reward_parts"),
        ("estimator=gdpo reward_function=a.py:b reward_parts=x,y reward_part_weights=1", "must be as many as"),
        ("estimator=gdpo reward_function=a.py:b reward_parts=x reward_part_weights=much", "could not convert"),
        ("estimator=remax off_policy=1 generators=1", "takes off_policy=0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(words: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        parse(words.split(), devices=("cpu",))
