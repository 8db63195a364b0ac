"""What each setting does to the numbers of an update."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from tests.trainer.core_cases import (
    GROUPS,
    NUM_TOKENS,
    REWARDS,
    batch,
    by_policy,
    learner,
    off_policy,
    said,
    total,
    update,
)
from tests.trainer.trainer_cases import END, PAD, group
from trainer.algorithms.advantages import Advantages
from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.packing import make_batch, select
from trainer.algorithms.policy_losses import correction
from trainer.algorithms.update_metrics import UpdateMetrics
from trainer.loop import update_policy
from trainer.run_state import learner_state

if TYPE_CHECKING:
    from trainer.types import Batch


# What an update is made of.


def test_the_bounds_of_the_ratio_are_each_on_its_own_side() -> None:
    settings: dict[str, Any] = {"clip_low": 0.05, "clip_high": 0.5, "dual_clip": 0.0}
    made, of = learner(**settings), batch()
    found = update(made, of, off_policy(made, of, math.log(1.2)))
    assert found.policy_loss == pytest.approx(total(of, 1.2, 1.2))
    assert found.clip_fraction == 0.0
    found = update(made, of, off_policy(made, of, math.log(1.7)))
    assert found.policy_loss == pytest.approx(total(of, 1.5, 1.7))
    assert found.clip_fraction == pytest.approx(int(of.mask_BT[of.rewards_B > 0].sum()) / NUM_TOKENS)
    assert [found.ratio_mean, found.ratio_max] == pytest.approx([1.7, 1.7])
    found = update(made, of, off_policy(made, of, math.log(0.9)))
    assert found.policy_loss == pytest.approx(total(of, 0.9, 0.95))


def test_a_bad_token_that_became_far_likelier_is_held_by_the_second_bound_if_there_is_one() -> None:
    for dual_clip, times in ((3.0, 3.0), (0.0, 7.0)):
        made, of = learner(dual_clip=dual_clip), batch()
        found = update(made, of, off_policy(made, of, math.log(7.0)))
        assert found.policy_loss == pytest.approx(total(of, 1.2, times)), dual_clip
        bad = int(of.mask_BT[of.rewards_B < 0].sum()) / NUM_TOKENS
        assert found.clip_fraction_lower == pytest.approx(bad if dual_clip else 0.0)


@pytest.mark.parametrize("rows", [0, 2])
def test_the_divergence_of_the_old_policy_from_the_new_one_is_the_mean_over_the_models_tokens(rows: int) -> None:
    made, of = learner(micro_batch_rows=rows), batch()
    assert update(made, of).ppo_kl == 0.0
    known = off_policy(made, of, math.log(1.2))
    assert known.old_BT is not None
    known.old_BT[4, 1] += 0.34
    assert update(made, of, known).ppo_kl == pytest.approx(-math.log(1.2) + 0.34 / NUM_TOKENS)


@pytest.mark.parametrize(("cap", "weight"), [(2.0, 1.25), (1.1, 1.1)])
def test_the_correction_weighs_the_old_policy_against_the_sampler_up_to_its_cap(cap: float, weight: float) -> None:
    """Ratio of new to old 0.8, of old to sampler 1.25: what is left of both is the new against the sampler."""
    made = learner(correction="token", correction_cap=cap, clip_low=0.5, dual_clip=0.0)
    of = by_policy(made, batch())
    found = update(made, of, off_policy(made, of, math.log(0.8)))
    assert found.policy_loss == pytest.approx(total(of, 0.8 * weight, 0.8 * weight))
    assert found.weights is not None
    high = float(cap < 1.25)
    assert (found.weights.mean, found.weights.ratio_fraction_high) == (pytest.approx(weight), high)
    plain = learner(correction="none", clip_low=0.5)
    assert update(plain, of).weights is None
    assert update(plain, of, off_policy(plain, of, math.log(0.8))).policy_loss == pytest.approx(total(of, 0.8, 0.8))


@pytest.mark.parametrize(
    ("gap", "settings", "weight"),
    [
        (0.5, {"correction_floor": 0.8}, 0.8),
        (0.5, {"correction_floor": 0.8, "correction_bound": "mask"}, 0.0),
        (3.0, {"correction_bound": "mask"}, 0.0),
        (1.5, {"correction_bound": "mask"}, 1.5),
    ],
)
def test_a_weight_beyond_floor_or_cap_is_held_there_or_is_0(
    gap: float, settings: dict[str, Any], weight: float
) -> None:
    made = learner(correction="token", **settings)
    found = update(made, by_policy(made, batch(), math.log(gap)))
    assert found.weights is not None
    assert found.weights.mean == pytest.approx(weight)
    assert (found.weights.ratio_fraction_high, found.weights.ratio_fraction_low) == (gap > 2, gap < 0.8)


def test_a_weight_counts_as_low_below_the_floor_where_there_is_one() -> None:
    for floor, low in ((0.0, 0.0), (0.8, 1.0)):
        made = learner(correction="token", correction_floor=floor)
        found = update(made, by_policy(made, batch(), math.log(0.7)))
        assert found.weights is not None
        assert found.weights.ratio_fraction_low == low


def test_the_gap_to_the_sampler_is_that_of_the_policy_before_the_update() -> None:
    made = learner()
    of = by_policy(made, batch(), math.log(1.25))
    found = update(made, of, off_policy(made, of, math.log(1.25)))
    assert found.logprob_diff_max == pytest.approx(0.0, abs=1e-12)
    assert update(made, of).logprob_diff_max == pytest.approx(math.log(1.25))


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
@pytest.mark.parametrize("convention", ["verl", "trl"])
def test_divergence_and_entropy_are_averaged_as_the_policy_loss_is(aggregation: str, convention: str) -> None:
    """TRL's entropy alone is a mean over tokens; the recorded means are over tokens for every convention."""
    made = learner(kl_coef=0.1, entropy_coef=0.05, aggregation=aggregation, convention=convention, kl="k2")
    of = batch()
    known = made.compute_logprobs(of)
    assert known.reference_BT is not None
    scored = made.model.token_logprobs(of, temperature=1.0)
    kl_BT = 0.5 * torch.where(of.mask_BT, known.reference_BT - scored.logprobs_BT.detach(), 0.0).square()
    entropy_BT = torch.where(of.mask_BT, scored.entropy_BT.detach(), 0.0)

    def mean(values_BT: Tensor, mode: str) -> float:
        if mode == "token-mean":
            return float(values_BT.sum() / NUM_TOKENS)
        sums_B = values_BT.sum(dim=1)
        return float((sums_B / of.mask_BT.sum(dim=1) if mode == "seq-mean-token-mean" else sums_B).mean())

    found = update(made, of, known)
    bonus = mean(entropy_BT, aggregation if convention == "verl" else "token-mean")
    assert found.loss - found.policy_loss == pytest.approx(0.1 * mean(kl_BT, aggregation) - 0.05 * bonus)
    assert found.kl == pytest.approx(mean(kl_BT, "token-mean"))
    assert found.entropy == pytest.approx(mean(entropy_BT, "token-mean"))


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
@pytest.mark.parametrize(("convention", "fixed"), [("verl", "seq-mean-token-mean"), ("trl", ""), ("roll", "")])
def test_the_loss_of_gspo_alone_is_averaged_over_rows_by_verl_whatever_is_asked_for(
    aggregation: str, convention: str, fixed: str
) -> None:
    settings: dict[str, Any] = {"aggregation": aggregation, "convention": convention, "entropy_coef": 0.05}
    of = replace(batch(), rewards_B=batch().rewards_B + 0.3)
    found, plain = update(learner(loss="gspo", **settings), of), update(learner(**settings), of)
    sums_B = -of.rewards_B * of.mask_BT.sum(dim=1)
    wanted = {
        "token-mean": sums_B.sum() / NUM_TOKENS,
        "seq-mean-token-sum": sums_B.mean(),
        "seq-mean-token-mean": -of.rewards_B.mean(),
    }
    assert found.policy_loss == pytest.approx(float(wanted[fixed or aggregation]))
    assert found.loss - found.policy_loss == pytest.approx(plain.loss - plain.policy_loss)


@pytest.mark.parametrize("convention", ["verl", "trl", "roll"])
def test_a_row_that_is_longer_does_not_weigh_the_others_down_where_a_constant_divides(convention: str) -> None:
    settings: dict[str, Any] = {"aggregation": "seq-mean-token-sum-norm", "convention": convention}
    of = batch()
    wide = make_batch([GROUPS[0], GROUPS[1], group("33=", (4, END), (4, END), (2, *[0] * 50, END))], REWARDS, pad=PAD)
    idle = replace(wide, mask_BT=wide.mask_BT & (wide.lengths_B < 9)[:, None])
    kept = replace(of, mask_BT=of.mask_BT & (wide.lengths_B < 9)[:, None])
    one, other = (update(learner(longest_answer=100, **settings), each) for each in (kept, idle))
    assert one.policy_loss == pytest.approx(other.policy_loss)
    sums_B = -kept.rewards_B * kept.mask_BT.sum(dim=1)
    num_rows = {"verl": 8, "trl": 9, "roll": 1}[convention]
    assert one.policy_loss == pytest.approx(float(sums_B.sum()) / 100 / num_rows)


def test_the_divergence_of_trl_is_weighed_by_how_much_likelier_a_token_became() -> None:
    for convention, times in (("trl", 1.25), ("verl", 1.0)):
        made, of = learner(kl_coef=0.1, kl="k3", convention=convention), batch()
        known = off_policy(made, of, math.log(1.25), said(made, of) + 0.5)
        assert update(made, of, known).kl == pytest.approx(times * (math.exp(0.5) - 0.5 - 1)), convention


def test_the_gradient_of_that_weight_counts_too() -> None:
    """On policy the weight is 1 and its gradient is that of the log-probability."""
    made, of = learner(kl_coef=0.1, kl="k3", convention="trl"), batch()
    of = replace(of, rewards_B=torch.zeros_like(of.rewards_B))
    known = made.compute_logprobs(of)
    assert known.reference_BT is not None
    logprobs_BT = made.model.token_logprobs(of, temperature=1.0).logprobs_BT
    gap_BT = torch.where(of.mask_BT, known.reference_BT - logprobs_BT, 0.0)
    weighed_BT = (gap_BT.exp() - gap_BT - 1) * (logprobs_BT - logprobs_BT.detach()).exp()
    parameters = dict(made.model.named_parameters())
    wanted = torch.autograd.grad(0.1 * weighed_BT.sum() / NUM_TOKENS, list(parameters.values()))
    update(made, of, known)
    for (name, each), gradient in zip(parameters.items(), wanted, strict=True):
        assert each.grad is not None and float((each.grad - gradient).abs().max()) < 1e-12, name


def test_a_divergence_that_is_in_the_reward_is_told_but_is_not_in_the_loss() -> None:
    found = update(learner(kl_coef=0.1, kl_in="reward"), batch())
    assert found.kl > 0.01
    assert found.loss == found.policy_loss


@pytest.mark.parametrize("mini_batches", [1, 3])
def test_log_probabilities_are_those_at_the_temperature_of_the_sampler(mini_batches: int) -> None:
    made = learner(temperature=0.5, mini_batches=mini_batches)
    of = replace(batch(), rollout_logprobs_BT=said(made, batch(), 0.5))
    found = update(made, of)
    assert found.logprob_diff_max < 1e-12
    assert [found.ratio_mean, found.ratio_max] == pytest.approx([1.0, 1.0])


def test_a_batch_without_a_token_of_the_models_own_divides_by_nothing() -> None:
    made, of = learner(entropy_coef=0.05), batch()
    found = update(made, replace(of, mask_BT=torch.zeros_like(of.mask_BT)))
    assert all(math.isfinite(value) for value in asdict(found).values() if value is not None)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_the_weights_are_told_of_the_whole_step_however_it_is_cut(level: str, rows: int) -> None:
    made = learner(correction=level, correction_cap=1.5, micro_batch_rows=rows)
    of = by_policy(made, batch(), math.log(1.1))
    of.rollout_logprobs_BT[1, 0] -= math.log(2.0)
    of.rollout_logprobs_BT[8, 1] += math.log(2.2)
    found = update(made, of)
    wanted = correction(
        said(made, of), of.rollout_logprobs_BT, of.mask_BT, CONVENTIONS["verl"], level=level, cap=1.5
    ).weights_BT[of.mask_BT]
    assert found.weights is not None
    assert found.weights.mean == pytest.approx(float(wanted.mean()))
    assert found.weights.std == pytest.approx(float(wanted.std(correction=0)))
    assert found.weights.eff_sample_size == pytest.approx(float(wanted.mean() ** 2 / wanted.square().mean()))
    high, low = {"token": (1 / NUM_TOKENS, 1 / NUM_TOKENS), "sequence": (1 / 9, 1 / 9)}[level]
    assert (found.weights.ratio_fraction_high, found.weights.ratio_fraction_low) == pytest.approx((high, low))
    largest, least = {"token": (1.5, 0.5), "sequence": (2 * 1.1**3, 1.1**2 / 2.2)}[level]
    assert (found.weights.max, found.weights.min) == pytest.approx((largest, least))
    direct = -math.log(1.1) + (math.log(2.2) - math.log(2.0)) / NUM_TOKENS
    assert found.rollout_kl_direct == pytest.approx(direct)


# Mini batches.


def test_a_mini_batch_is_whole_groups_in_an_order_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made, of = learner(mini_batches=2, prompts_per_step=3), batch()
    cuts: list[list[int]] = []

    def noted(whole: Batch, rows: Tensor) -> Batch:
        cuts.append(rows.tolist())
        return select(whole, rows)

    monkeypatch.setattr("trainer.learner.select", noted)
    for _ in range(12):
        update(made, of)
    steps = [tuple(tuple(cut) for cut in cuts[at : at + 2]) for at in range(0, len(cuts), 2)]
    for two, one in steps:
        assert (len(two), len(one)) == (6, 3)
        assert sorted({row // 3 for row in two} | {row // 3 for row in one}) == [0, 1, 2]
        assert len({row // 3 for row in one}) == 1
    assert len({one for _, one in steps}) == 3


def test_numbers_of_several_mini_batches_are_means_but_for_maxima_and_the_rate() -> None:
    of = batch()
    alone = [update(learner(kl_coef=0.1, entropy_coef=0.05), batch(number)) for number in range(3)]
    found = update(learner(kl_coef=0.1, entropy_coef=0.05, mini_batches=3), of)
    maxima = {"ratio_max", "logprob_diff_max"}
    for name in {each.name for each in fields(UpdateMetrics)} - maxima - {"weights"}:
        assert getattr(found, name) == pytest.approx(sum(getattr(each, name) for each in alone) / 3), name
    for name in maxima:
        assert getattr(found, name) == pytest.approx(max(getattr(each, name) for each in alone)), name
    assert update(learner(lr=0.01, mini_batches=2, steps=2), of).lr == pytest.approx(0.0075)


@pytest.mark.parametrize("rows", [1, 2, 4, 9, 20])
def test_what_is_known_of_a_batch_does_not_depend_on_how_it_is_cut(rows: int) -> None:
    of = batch()
    whole, cut = (
        learner(kl_coef=0.1, mini_batches=3, micro_batch_rows=size).compute_logprobs(of) for size in (0, rows)
    )
    for one, other in ((whole.old_BT, cut.old_BT), (whole.reference_BT, cut.reference_BT)):
        assert one is not None and other is not None
        assert float(torch.where(of.mask_BT, one - other, 0.0).abs().max()) < 1e-12


def test_old_log_probabilities_are_asked_for_only_where_something_needs_them() -> None:
    of = batch()
    assert learner().compute_logprobs(of).old_BT is None
    assert learner(mini_batches=2).compute_logprobs(of).old_BT is not None
    assert learner(kl_coef=0.1, kl_in="reward").compute_logprobs(of).old_BT is not None


# Optimizer steps.


def test_the_first_step_moves_a_weight_by_the_rate_whatever_its_gradient() -> None:
    """As Adam's moments are corrected for their start at 0."""
    made = learner(lr=0.01)
    before = {name: weight.detach().clone() for name, weight in made.model.named_parameters()}
    update(made, batch())
    moved = torch.cat([(w.detach() - before[name]).abs().reshape(-1) for name, w in made.model.named_parameters()])
    assert float(moved.max()) == pytest.approx(0.01, rel=1e-3)
    assert float((moved > 0.0099).double().mean()) > 0.5


def test_weights_decay_by_the_rate_times_their_decay() -> None:
    made, of = learner(lr=0.01, weight_decay=0.5), batch()
    before = {name: weight.detach().clone() for name, weight in made.model.named_parameters()}
    update_policy(made, of, made.compute_logprobs(of), Advantages(torch.zeros_like(of.rollout_logprobs_BT), None))
    for name, weight in made.model.named_parameters():
        assert torch.allclose(weight, before[name] * (1 - 0.01 * 0.5), rtol=1e-12, atol=0), name


def test_the_rate_rises_then_falls_to_nothing_at_the_end() -> None:
    made, of, found = learner(lr=0.01, steps=3, mini_batches=2, warmup_steps=2), batch(), []
    for _ in range(3):
        found += [made.lr(), update(made, of).lr]
    assert found == pytest.approx([0.005, 0.01, 0.01, 0.0075, 0.005, 0.0025])


def test_a_step_whose_gradient_is_not_finite_counts_as_done() -> None:
    made, of = learner(lr=0.1), batch()
    update_policy(
        made, of, made.compute_logprobs(of), Advantages(torch.full_like(of.rollout_logprobs_BT, math.nan), None)
    )
    assert (made.global_step, made.optimizer_steps) == (1, 1)


def test_a_mini_batch_without_rows_leaves_the_numbers_of_the_others_as_they_are() -> None:
    """With dynamic sampling fewer groups may be kept than there are mini batches."""
    made = learner(mini_batches=2, correction="token", micro_batch_rows=2)
    found = update(made, by_policy(made, batch(0), log_ratio=-0.5))
    assert made.optimizer_steps == 2
    assert found.weights is not None
    assert (found.weights.min, found.weights.max) == pytest.approx((math.exp(-0.5), math.exp(-0.5)))


def test_the_order_of_later_groups_does_not_depend_on_how_many_were_kept() -> None:
    states = []
    for numbers in ((0,), (0, 1, 2)):
        made = learner(prompts_per_step=3, mini_batches=2)
        update(made, batch(*numbers))
        states.append(learner_state(made)["groups_random"])
    assert torch.equal(*states)
