"""The numbers of a step: verl's names and meanings, counted by hand; nothing invented."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.trainer_cases import CPU, END, PAD, TEXT, TINY, changed, group, rollout
from trainer.algorithms.advantages import Advantages
from trainer.algorithms.packing import make_batch
from trainer.config import Config
from trainer.learner import ForwardOutputs
from trainer.loop import next_rollouts, update_policy
from trainer.metrics import meter, step
from trainer.metrics.records import Progress
from trainer.tasks.digits import prompt
from trainer.trainer import build_trainer
from trainer.types import Group, Prompt, Rollout, Stop

# Names of ours that verl does not have; every other name must be one of verl's.
OURS = {
    "critic/score/std", "actor/ratio_mean", "actor/ratio_max", "training/rollout_logprobs_diff_mean",
    "training/rollout_logprobs_diff_max", "training/rollout_kl", "groups_with_signal", "groups_drawn",
    "generated_tokens", "computed_tokens", "wall_s", "perf/end_to_end_tokens_per_s", "perf/generated_tokens_per_s",
    "perf/computed_tokens_per_s", "perf/memory_used_share", "perf/mfu/gen", "perf/mfu/step", "actor/loss",
    "timing_s/update_weights", "timing_s/step",
}  # fmt: skip


CORRECTION = {
    "rollout_corr/kl", "rollout_corr/k3_kl", "rollout_corr/rollout_is_mean", "rollout_corr/rollout_is_std",
    "rollout_corr/rollout_is_max", "rollout_corr/rollout_is_min", "rollout_corr/rollout_is_eff_sample_size",
    "rollout_corr/rollout_is_ratio_fraction_high", "rollout_corr/rollout_is_ratio_fraction_low",
}  # fmt: skip


def described(config: Config, *, with_meter: bool = False) -> dict[str, Any]:
    """A step record of a real turn."""
    progress = Progress()
    trainer = build_trainer(config, CPU, seed=0)
    if with_meter:
        config = changed(config, peak_tflops=0.5)
        progress.meter = meter.start(trainer.learner.model, config, CPU)
    with progress.phase("gen"):
        made = next_rollouts(trainer)
        groups, rewards_PG, num_generated = made.groups, made.rewards_PG, made.num_generated
    with progress.phase("old_log_prob"):
        batch = trainer.make_batch(groups, rewards_PG)
        known = trainer.learner.compute_logprobs(batch)
    judged = trainer.learner.compute_advantages(batch, known)
    with progress.phase("update_actor"):
        update = update_policy(trainer.learner, batch, known, judged)
    turn = SimpleNamespace(
        groups=groups, rewards_PG=rewards_PG, batch=batch, logprobs=known, advantages=judged, update=update,
        num_generated=num_generated, reward_errors=None, stats=None,
    )  # fmt: skip
    return step.describe_step(turn, config, 2.0, progress)  # type: ignore[arg-type]


def two_groups() -> list[Group]:
    """Prompts of 2 and 3 tokens; answers of 2, 3, 1 and 4, the last one cut off."""
    groups = [group("1=", [5, END], [5, 6, END]), group("12=", [END], [1, 2, 3, 4])]
    cut = Rollout((1, 2, 3, 4), (-1.0,) * 4, Stop.LENGTH)
    return [groups[0], replace(groups[1], rollouts=(groups[1].rollouts[0], cut))]


def test_lengths_count_each_prompt_with_each_of_its_answers_as_verl_does() -> None:
    found = step.of_lengths(two_groups(), Config())
    assert (found["response_length/mean"], found["response_length/max"], found["response_length/min"]) == (2.5, 4, 1)
    assert found["response_length/clip_ratio"] == 0.25
    assert (found["prompt_length/mean"], found["prompt_length/max"], found["prompt_length/min"]) == (2.5, 3, 2)
    assert found["prompt_length/clip_ratio"] == 0.0
    assert found["perf/total_num_tokens"] == found["global_seqlen/mean"] == 10 + 2 * 2 + 2 * 3
    assert found["computed_tokens"] == 10 + 2 + 3
    assert found["generated_tokens"] == 10
    assert found["response/aborted_ratio"] == 0.0
    assert "num_turns/mean" not in found


def test_a_prompt_that_fills_its_limit_and_an_empty_answer_are_counted() -> None:
    groups = [Group(two_groups()[1].prompt, (rollout([]), rollout([END])))]
    found = step.of_lengths(groups, changed(Config(), max_prompt_tokens=3))
    assert (found["prompt_length/clip_ratio"], found["response/aborted_ratio"]) == (1.0, 0.5)


def test_an_episode_has_twice_as_many_turns_as_answers_and_only_its_actions_are_generated() -> None:
    episode = replace(rollout([1, 2, 3, 4, 5]), response_mask=(True, True, False, True, True))
    found = step.of_lengths([Group(prompt("1=", "1", TEXT), (episode, rollout([7])))], Config())
    assert (found["num_turns/max"], found["num_turns/min"], found["num_turns/mean"]) == (4, 2, 3.0)
    assert found["generated_tokens"] == 4 + 1
    assert "episode/valid_action_ratio" not in found


def test_valid_actions_are_a_share_of_all_turns() -> None:
    long, short = replace(rollout([1, 2]), is_valid=(True, False, False)), replace(rollout([7]), is_valid=(True,))
    found = step.of_lengths([Group(prompt("1=", "1", TEXT), (long, short))], Config())
    assert found["episode/valid_action_ratio"] == 0.5


def test_a_score_is_what_the_task_paid_and_a_reward_what_was_learnt_from() -> None:
    scores_PG = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    found = step.of_rewards(scores_PG, torch.tensor([0.75, -0.25, 0.5, 0.5]))
    assert (found["critic/score/mean"], found["critic/score/max"], found["critic/score/min"]) == (0.5, 1.0, 0.0)
    rewards = (found["critic/rewards/mean"], found["critic/rewards/max"], found["critic/rewards/min"])
    assert rewards == (0.375, 0.75, -0.25)
    assert found["groups_with_signal"] == 1


def test_rewards_of_a_run_are_its_scores_less_the_divergence_if_that_is_in_the_reward() -> None:
    in_loss = described(changed(TINY, kl_in="loss"))
    assert in_loss["critic/rewards/mean"] == in_loss["critic/score/mean"]
    trainer = build_trainer(changed(TINY, kl_in="reward", kl="k1", kl_coef=0.5), CPU, seed=0)
    made = next_rollouts(trainer)
    groups, rewards_PG = made.groups, made.rewards_PG
    batch = trainer.make_batch(groups, rewards_PG)
    known = trainer.learner.compute_logprobs(batch)
    assert known.reference_BT is not None
    apart = replace(known, reference_BT=known.reference_BT - 0.25)
    judged = trainer.learner.compute_advantages(batch, apart)
    found = step.of_rewards(rewards_PG, judged.rewards_after_kl_B)
    less = 0.5 * 0.25 * int(batch.mask_BT.sum()) / len(batch.rewards_B)
    assert found["critic/rewards/mean"] == pytest.approx(found["critic/score/mean"] - less, rel=1e-5)


def test_advantages_returns_and_values_are_over_the_masked_tokens_alone() -> None:
    batch = make_batch(two_groups(), torch.zeros(2, 2), pad=PAD)
    numbers_BT = torch.full(batch.mask_BT.shape, math.nan)
    numbers_BT[batch.mask_BT] = torch.arange(10.0)
    values_BT = torch.where(batch.mask_BT, 4.5, math.nan)
    found = step.of_advantages(batch, ForwardOutputs(None, None, None), Advantages(numbers_BT, None))
    assert {name: found[f"critic/advantages/{name}"] for name in ("mean", "max", "min")} == {
        "mean": 4.5, "max": 9.0, "min": 0.0,
    }  # fmt: skip
    assert found["critic/returns/max"] == 9.0
    assert not [name for name in found if "values" in name or "vf" in name]
    known = ForwardOutputs(None, None, torch.nan_to_num(values_BT))
    with_critic = step.of_advantages(batch, known, Advantages(numbers_BT, torch.nan_to_num(numbers_BT)))
    assert with_critic["critic/values/mean"] == 4.5
    assert with_critic["critic/vf_explained_var"] == pytest.approx(0.0, abs=1e-6)


def test_probabilities_differ_by_what_the_logarithms_say() -> None:
    batch = make_batch(two_groups(), torch.zeros(2, 2), pad=PAD)
    assert step.of_probabilities(batch, ForwardOutputs(None, None, None)) == {}
    old_BT = torch.where(batch.mask_BT, math.log(0.5), math.nan)
    found = step.of_probabilities(batch, ForwardOutputs(old_BT, None, None))
    assert found["training/rollout_probs_diff_mean"] == pytest.approx(0.5 - math.exp(-1.0), abs=1e-6)
    assert found["training/rollout_probs_diff_std"] == pytest.approx(0.0, abs=1e-6)


def test_times_are_divided_by_the_tokens_that_verl_divides_by() -> None:
    lengths = step.of_lengths(two_groups(), Config())
    found = step.of_times({"gen": 2.0, "adv": 1.0, "update_actor": 4.0, "old_log_prob": 1.0}, lengths, 8.0)
    assert found["timing_per_token_ms/gen"] == pytest.approx(2000 / 10)
    assert found["timing_per_token_ms/adv"] == pytest.approx(1000 / 20)
    assert found["timing_per_token_ms/update_actor"] == pytest.approx(4000 / 20)
    assert "timing_per_token_ms/old_log_prob" not in found
    assert (found["perf/throughput"], found["perf/time_per_step"]) == (20 / 8.0, 8.0)
    assert found["perf/generated_tokens_per_s"] == 5.0
    assert found["perf/computed_tokens_per_s"] == 15 / 4.0
    assert found["perf/end_to_end_tokens_per_s"] == 10 / 8.0
    assert "perf/generated_tokens_per_s" not in step.of_times({}, lengths, 8.0)


def test_validation_is_told_by_data_source_and_by_the_task_where_there_is_none() -> None:
    prompts = [Prompt("a", (1,), "1", {"data_source": "openai/gsm8k"}), Prompt("b", (1,), "1"), Prompt("c", (1,), "1")]
    assert step.of_validation(prompts, [1, 1, 0], task="successor") == {
        "val-core/openai/gsm8k/acc/mean@1": 1.0,
        "val-core/successor/acc/mean@1": 0.5,
    }


def test_a_number_that_nobody_measures_has_no_name() -> None:
    plain = described(changed(TINY, mini_batches=1))
    assert not [name for name in plain if "values" in name or "vf_" in name or "mfu" in name or "rollout_probs" in name]
    assert plain["actor/kl_coef"] == 0.001
    assert "actor/kl_coef" not in described(changed(TINY, kl_coef=0.0))
    in_reward = described(changed(TINY, kl_in="reward"))
    assert in_reward["actor/reward_kl_penalty_coeff"] == 0.001
    assert in_reward["critic/rewards/mean"] == pytest.approx(in_reward["critic/score/mean"], abs=1e-6)
    assert not [name for name in plain if name.startswith(("rollout_corr", "episode"))]
    corrected = described(changed(TINY, correction="token"))
    assert {name for name in corrected if name.startswith("rollout_corr")} == CORRECTION
    assert corrected["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-4)
    with_critic = described(changed(TINY, estimator="gae"))
    assert {"critic/values/mean", "critic/vf_explained_var", "critic/vf_loss"} <= set(with_critic)


UNMEASURED = {"actor/kl_loss", "actor/pg_clipfrac", "actor/pg_clipfrac_lower"}


@pytest.mark.parametrize(
    ("change", "absent"),
    [
        ({}, set()),
        ({"kl_coef": 0.0}, {"actor/kl_loss"}),
        ({"kl_in": "reward"}, set()),
        ({"dual_clip": 0.0}, {"actor/pg_clipfrac_lower"}),
        ({"loss": "gspo"}, {"actor/pg_clipfrac_lower"}),
        ({"loss": "gspo", "convention": "roll"}, set()),
        ({"loss": "cispo"}, {"actor/pg_clipfrac_lower"}),
        ({"loss": "plain"}, {"actor/pg_clipfrac", "actor/pg_clipfrac_lower"}),
    ],
)
def test_a_zero_is_a_measurement(change: dict[str, Any], absent: set[str]) -> None:
    """No reference policy, no bound: not 0, but nothing."""
    found = described(changed(TINY, **change))
    assert UNMEASURED - set(found) == absent
    assert {"actor/loss", "actor/pg_loss", "actor/entropy", "actor/ppo_kl"} <= set(found)


def test_a_critic_explains_nothing_where_the_returns_do_not_vary() -> None:
    batch = make_batch(two_groups(), torch.zeros(2, 2), pad=PAD)
    ones_BT = batch.mask_BT.float()
    found = step.of_advantages(batch, ForwardOutputs(None, None, ones_BT / 2), Advantages(ones_BT, ones_BT))
    assert found["critic/values/mean"] == 0.5
    assert "critic/vf_explained_var" not in found


def test_utilisation_is_of_each_phase_over_its_time_and_of_the_step_over_all_of_it() -> None:
    found = described(changed(TINY, mini_batches=2), with_meter=True)
    phases = {"gen": "gen", "actor_infer": "old_log_prob", "actor": "update_actor"}
    done = sum(found[f"perf/mfu/{name}"] * found[f"timing_s/{phase}"] for name, phase in phases.items())
    assert found["perf/mfu/step"] == pytest.approx(done / 2.0)
    assert 0 < found["perf/memory_used_share"] < 1
    assert 0.02 < found["perf/cpu_memory_used_gb"] < 100


def test_every_name_is_one_of_verls_or_known_to_be_ours() -> None:
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs verl's sources")
    root = Path(next(iter(spec.submodule_search_locations)))
    files = ["trainer/ppo/metric_utils.py", "trainer/ppo/ray_trainer.py", "trainer/ppo/core_algos.py"]
    files += ["workers/actor/dp_actor.py", "workers/critic/dp_critic.py", "workers/fsdp_workers.py"]
    files += ["utils/debug/metrics.py", "utils/seqlen_balancing.py"]
    text = "\n".join((root / file).read_text(encoding="utf-8") for file in files)
    text += (root / "trainer/ppo/rollout_corr_helper.py").read_text(encoding="utf-8")
    config = changed(TINY, mini_batches=2, estimator="gae", correction="token")

    def is_verls(name: str) -> bool:
        group_of, _, rest = name.partition("/")
        if group_of in ("timing_s", "timing_per_token_ms", "rollout_corr"):
            return f'"{rest}"' in text
        return f'"{name}"' in text if group_of != "global_seqlen" else f"{{prefix}}/{rest}" in text

    unknown = [name for name in described(config, with_meter=True) if name not in OURS and not is_verls(name)]
    assert unknown == []


def test_ranks_add_tokens_average_rates_of_a_card_and_keep_what_only_one_measured() -> None:
    one = {"perf/throughput": 10.0, "generated_tokens": 5, "global_seqlen/min": 7, "global_seqlen/max": 7}
    two = {"perf/throughput": 20.0, "generated_tokens": 6, "global_seqlen/min": 9, "global_seqlen/max": 9, "x": 3.0}
    merged = step.over_ranks([one, two])
    assert merged["perf/throughput"] == 15.0
    assert merged["generated_tokens"] == 11
    assert (merged["global_seqlen/min"], merged["global_seqlen/max"], merged["global_seqlen/minmax_diff"]) == (7, 9, 2)
    assert merged["x"] == 3.0
