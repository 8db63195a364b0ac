"""From rewards to the advantages that a learner is given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import pytest
import torch
from torch import Tensor

from tests.trainer.algorithms.algorithm_cases import advantages
from tests.trainer.core_cases import ADAPTIVE, GROUPS, REWARDS, batch, learner
from tests.trainer.trainer_cases import PAD
from trainer.algorithms.advantages import EstimatorInputs
from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.packing import make_batch
from trainer.learner import ForwardOutputs
from trainer.loop import update_policy
from trainer.types import Group, Rollout, Stop

if TYPE_CHECKING:
    from trainer.models.critic import Critic
    from trainer.types import Batch


# Advantages.


def test_the_reward_stands_on_the_models_last_word_though_the_environment_speaks_after_it() -> None:
    episode = Rollout((1, 2, 3, 4), (-0.5, -0.5, 0.0, 0.0), Stop.TERMINATED, (True, True, False, False), 1.0)
    of = make_batch([Group(GROUPS[0].prompt, (episode,))], torch.tensor([[1.0]], dtype=torch.float64), pad=PAD)
    for estimator, first in (("reinforce", 0.5), ("gae", 0.25)):
        made = learner(estimator=estimator, gamma=0.5, lam=0.5, convention="trl" if estimator == "gae" else "verl")
        values_BT = torch.zeros_like(of.rollout_logprobs_BT)
        judged = made.compute_advantages(of, ForwardOutputs(None, None, values_BT))
        assert judged.returns_BT is not None
        assert judged.returns_BT[0, :2].tolist() == pytest.approx([first, 1.0]), estimator


def test_rewards_are_divided_by_their_deviation_or_not() -> None:
    of = batch()
    centred = (REWARDS - REWARDS.mean(dim=1, keepdim=True)).reshape(-1)
    found = learner(scale_by_std=False).compute_advantages(of, ForwardOutputs(None, None, None)).advantages_BT[:, 0]
    assert found.tolist() == pytest.approx(centred.tolist())
    scaled = (centred.reshape(3, 3) / (REWARDS.std(dim=1, keepdim=True) + 1e-6)).reshape(-1)
    found = learner(scale_by_std=True).compute_advantages(of, ForwardOutputs(None, None, None)).advantages_BT[:, 0]
    assert found.tolist() == pytest.approx(scaled.tolist())


class Forecasts:
    """A critic that foresees prepared values and remembers what it was taught."""

    def __init__(self, values_BT: Tensor) -> None:
        self.values_BT = values_BT
        self.taught: tuple[Tensor, Tensor] | None = None

    def values(self, of: Batch) -> Tensor:
        return self.values_BT

    def update(self, of: Batch, old_values_BT: Tensor, returns_BT: Tensor) -> float:
        self.taught = old_values_BT, returns_BT
        return 0.75


def test_a_critics_forecasts_are_in_the_advantages_and_it_learns_the_returns() -> None:
    of = batch()
    values_BT = torch.where(of.mask_BT, torch.linspace(-1, 1, of.mask_BT.numel()).view_as(of.mask_BT).double(), 0.0)
    critic = Forecasts(values_BT)
    made = learner(critic=cast("Critic", critic), estimator="gae", gamma=0.9, lam=0.5)
    known = made.compute_logprobs(of)
    judged = made.compute_advantages(of, known)
    rewards_BT = torch.zeros_like(values_BT)
    for row, length in enumerate(of.lengths_B.tolist()):
        rewards_BT[row, length - 1] = of.rewards_B[row]
    scores = EstimatorInputs(rewards_BT, of.mask_BT, of.prompt_of_B, values_BT)
    wanted = advantages("gae", scores, CONVENTIONS["verl"], gamma=0.9, lam=0.5)
    assert judged.returns_BT is not None and wanted.returns_BT is not None
    assert torch.allclose(judged.advantages_BT, wanted.advantages_BT)
    assert torch.allclose(judged.returns_BT, wanted.returns_BT)
    assert update_policy(made, of, known, judged).value_loss == 0.75
    assert critic.taught is not None
    assert torch.equal(critic.taught[0], values_BT)
    assert torch.equal(critic.taught[1], judged.returns_BT)


def apart(of: Batch, nats: float) -> ForwardOutputs:
    """Reference and old policy are so far apart on every masked token; what stands elsewhere is no number."""
    zeros_BT = torch.zeros_like(of.rollout_logprobs_BT)
    return ForwardOutputs(zeros_BT, torch.where(of.mask_BT, zeros_BT - nats, math.nan), None)


def test_the_adaptive_coefficient_follows_the_mean_divergence_of_a_token_after_the_rewards_were_made() -> None:
    made, of = learner(**ADAPTIVE, kl_target=0.2), batch()
    first = made.compute_advantages(of, apart(of, 0.22))
    less_B = of.rewards_B - 0.1 * 0.22 * of.mask_BT.sum(dim=1)
    assert first.advantages_BT[:, 0].tolist() == pytest.approx(less_B.tolist())
    assert first.rewards_after_kl_B.tolist() == pytest.approx(less_B.tolist())
    assert first.kl_coef == 0.1
    second = made.compute_advantages(of, apart(of, 0.0))
    assert (
        second.rewards_after_kl_B.tolist()
        == second.advantages_BT[:, 0].tolist()
        == pytest.approx(of.rewards_B.tolist())
    )
    # 10 % above the target over 9 rows of a horizon of 100
    assert second.kl_coef == pytest.approx(0.1 * 1.009)
    third = made.compute_advantages(of, apart(of, 0.0))
    assert third.kl_coef == pytest.approx(0.1 * 1.009 * (1 - 0.2 * 0.09))
