"""What a step of the loop made, the interface of those who follow the steps, and a step's metrics.

The metrics have verl's names and verl's meaning of each. A value that a run does not measure is not in its records: no
critic, no `critic/values`; no reference policy, no `actor/kl_loss` (as in verl, except 0.7.1, whose FSDP actor writes 0
there). Means, maxima and minima are over the model's tokens or over the answers, as in verl.
Source: verl 0.7.1, trainer/ppo (metric_utils.py, ray_trainer.py,
core_algos.py, rollout_corr_helper.py), workers/actor/dp_actor.py, utils/seqlen_balancing.py, utils/debug/metrics.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.losses import masked_mean
from trainer.device import peak_rss_mib
from trainer.types import Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.algorithms.advantages import Advantages
    from trainer.algorithms.update_metrics import UpdateMetrics
    from trainer.config import Config
    from trainer.distributed import World
    from trainer.engines.generator_client import GeneratorStats
    from trainer.learner import ForwardOutputs, StepAdvantages
    from trainer.metrics.records import Progress, Records
    from trainer.types import Batch, Group, Prompt, Rollout


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step of the loop made."""

    groups: list[Group]
    rewards_PG: Tensor
    batch: Batch
    logprobs: ForwardOutputs
    advantages: StepAdvantages
    update: UpdateMetrics
    num_generated: int  # groups generated; more than `groups` where some had no signal and others were drawn
    stats: GeneratorStats | None = None  # of generators in other processes; None: there are none
    reward_errors: int | None = None  # answers whose reward could not be had; None: one of them ends the run
    staleness: int = 0  # steps that the weights which drew the answers were behind those that learnt from them
    seconds: float = 0.0


class Observer:
    """Follows a run; the loop does not know what it does."""

    def on_start(self) -> None:
        """Before the first step."""

    def on_step_start(self, step: int) -> None:
        """Before a step, when everything that the one before it brought about is done."""

    def on_step(self, step: int, result: StepResult) -> None:
        """After a step."""

    def on_end(self) -> None:
        """After the last step."""


# verl's name of each number of an update.
NAMES: Mapping[str, str] = {
    "loss": "actor/loss",
    "policy_loss": "actor/pg_loss",
    "kl": "actor/kl_loss",
    "entropy": "actor/entropy",
    "clip_fraction": "actor/pg_clipfrac",
    "clip_fraction_lower": "actor/pg_clipfrac_lower",
    "ppo_kl": "actor/ppo_kl",
    "ratio_mean": "actor/ratio_mean",
    "ratio_max": "actor/ratio_max",
    "grad_norm": "actor/grad_norm",
    "lr": "actor/lr",
    "logprob_diff_mean": "training/rollout_logprobs_diff_mean",
    "logprob_diff_max": "training/rollout_logprobs_diff_max",
    "rollout_kl": "training/rollout_kl",
}
# verl divides these phases' times by the answers' tokens, or by those of prompts and answers.
_PER_ANSWER_TOKEN = ("gen",)
_PER_TOKEN = ("ref", "values", "adv", "update_critic", "update_actor")


def of_update(result: StepResult, config: Config) -> dict[str, float]:
    """The learner's metrics; the coefficient is that of the divergence from the reference in this step."""
    update, algorithm = result.update, config.algorithm
    absent = _unmeasured(result.logprobs, config)
    metrics = {name: getattr(update, field) for field, name in NAMES.items() if field not in absent}
    if algorithm.kl_coef > 0:
        name = "actor/kl_coef" if algorithm.kl_in == "loss" else "actor/reward_kl_penalty_coeff"
        metrics[name] = result.advantages.kl_coef
    if algorithm.estimator == "gae":
        metrics["critic/vf_loss"] = update.value_loss
    if algorithm.rejection:
        rollouts = [each for group in result.groups for each in group.rollouts]
        generated = sum(sum(each.response_mask) if each.response_mask else len(each.tokens) for each in rollouts)
        remaining = int(result.batch.mask_BT.sum())
        metrics["rollout_corr/rollout_rs_masked_fraction"] = 1 - remaining / max(1, generated)
    if update.weights is not None:
        metrics |= {f"rollout_corr/rollout_is_{name}": each for name, each in asdict(update.weights).items()}
        metrics |= {"rollout_corr/kl": update.rollout_kl_direct, "rollout_corr/k3_kl": update.rollout_kl}
    return metrics


def _unmeasured(logprobs: ForwardOutputs, config: Config) -> set[str]:
    """Fields of an update that are 0 because the run does not measure them."""
    algorithm = config.algorithm
    absent: set[str] = set()
    if logprobs.reference_BT is None:
        absent.add("kl")
    if algorithm.loss in ("plain", "gpg", "sapo", "kl_cov"):
        absent.add("clip_fraction")
    # As in `policy_loss`; verl writes 0 for its losses without a second bound.
    has_second = algorithm.loss in ("clip", "dppo_tv", "dppo_kl") or (
        algorithm.loss == "gspo" and CONVENTIONS[algorithm.convention].dual_clip != "constant"
    )
    if not (has_second and algorithm.dual_clip):
        absent.add("clip_fraction_lower")
    return absent


def of_rewards(scores_PG: Tensor, rewards_B: Tensor) -> dict[str, float]:
    """Scores and rewards over all answers, and the number of groups with a signal.

    `score` is the task's reward. `rewards` is what the learner uses: the score, less the divergence from the reference
    if it is part of the reward.
    """
    wide_PG = scores_PG.double()
    low, high = wide_PG.aminmax()
    numbers = torch.stack((wide_PG.mean(), high, low, wide_PG.std(correction=0))).tolist()
    metrics = {f"critic/score/{name}": each for name, each in zip(("mean", "max", "min", "std"), numbers, strict=True)}
    metrics |= _mean_max_min("critic/rewards", rewards_B.double())
    with_signal = int((wide_PG.amax(dim=1) > wide_PG.amin(dim=1)).sum())
    return {**metrics, "groups_with_signal": with_signal}


def of_advantages(batch: Batch, logprobs: ForwardOutputs, advantages: Advantages) -> dict[str, float]:
    """Advantages and returns of the model's tokens; values if there is a critic.

    Estimators without returns use the advantages as returns, as in verl. If the returns do not vary there is no
    explained variance.
    """
    mask_BT = batch.mask_BT
    returns_BT = advantages.advantages_BT if advantages.returns_BT is None else advantages.returns_BT
    metrics = {
        **_mean_max_min("critic/advantages", advantages.advantages_BT[mask_BT]),
        **_mean_max_min("critic/returns", returns_BT[mask_BT]),
    }
    if logprobs.values_BT is not None:
        metrics |= _mean_max_min("critic/values", logprobs.values_BT[mask_BT])
        if bool(mask_BT.any()) and metrics["critic/returns/max"] > metrics["critic/returns/min"]:
            metrics["critic/vf_explained_var"] = float(explained_variance(logprobs.values_BT, returns_BT, mask_BT))
    return metrics


def explained_variance(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """1 - variance of the error over variance of the returns, over the mask; a scalar."""

    def variance(numbers_BT: Tensor) -> Tensor:
        return masked_mean((numbers_BT - masked_mean(numbers_BT, mask_BT)).square(), mask_BT)

    whole = variance(returns_BT)
    return torch.where(whole > 0, 1 - variance(returns_BT - values_BT) / whole, 0.0)


def of_probabilities(batch: Batch, logprobs: ForwardOutputs) -> dict[str, float]:
    """Differences between the engine's and the learner's probabilities of sampled tokens; empty if they are unknown.

    Unlike the differences of log-probabilities these do not grow with how unlikely a token was.
    """
    if logprobs.old_BT is None or not bool(batch.mask_BT.any()):
        return {}
    rollout_probs, learner_probs = (
        each[batch.mask_BT].double().exp() for each in (batch.rollout_logprobs_BT, logprobs.old_BT)
    )
    apart = (rollout_probs - learner_probs).abs()
    numbers = torch.stack((apart.max(), apart.mean(), apart.std(correction=0))).tolist()
    names = ("max", "mean", "std")
    return {f"training/rollout_probs_diff_{name}": each for name, each in zip(names, numbers, strict=True)}


def of_lengths(groups: Sequence[Group], config: Config) -> dict[str, Any]:
    """Lengths in tokens; `clip_ratio` is the share of answers cut off at their limit, of prompts that fill theirs.

    Of episodes also their turns, and the share of all turns with an action in them: verl does not measure that, the
    name is verl-agent's.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    answers = [len(rollout.tokens) for rollout in rollouts]
    prompts = [len(group.prompt.tokens) for group in groups for _ in group.rollouts]
    total = sum(prompts) + sum(answers)
    metrics = {
        **_lengths("response_length", answers, [each.stop is Stop.LENGTH for each in rollouts]),
        **_lengths("prompt_length", prompts, [each >= config.task.max_prompt_tokens for each in prompts]),
        "response/aborted_ratio": answers.count(0) / len(answers),
        "generated_tokens": sum(
            sum(each.response_mask) if each.response_mask else len(each.tokens) for each in rollouts
        ),
        # Each prompt once: it is computed once.
        "computed_tokens": sum(answers) + sum(len(group.prompt.tokens) for group in groups),
        "perf/total_num_tokens": total,  # each prompt with each of its answers, as verl counts
        **{f"global_seqlen/{name}": total for name in ("min", "max", "mean")},
    }
    if any(each.response_mask for each in rollouts):
        metrics |= _range("num_turns", [_turns(each) for each in rollouts])
    if valid := [is_valid for each in rollouts for is_valid in each.is_valid]:
        metrics["episode/valid_action_ratio"] = sum(valid) / len(valid)
    return metrics


def _turns(rollout: Rollout) -> int:
    """verl's number of an episode's turns: the prompt, each answer, each observation."""
    mask = rollout.response_mask
    answers = sum(now and not before for before, now in zip((False, *mask), mask, strict=False)) if mask else 1
    return 2 * answers


def _lengths(name: str, values: Sequence[int], is_cut: Sequence[bool]) -> dict[str, float]:
    return {**_range(name, values), f"{name}/clip_ratio": sum(is_cut) / len(is_cut)}


def _range(name: str, values: Sequence[int]) -> dict[str, float]:
    return {f"{name}/mean": sum(values) / len(values), f"{name}/max": max(values), f"{name}/min": min(values)}


def _mean_max_min(name: str, values_N: Tensor) -> dict[str, float]:
    """Mean, maximum and minimum, in one transfer from the device; nothing of no values."""
    if not values_N.numel():
        return {}
    low, high = values_N.aminmax()
    numbers = torch.stack((values_N.mean(), high, low)).tolist()
    return {f"{name}/{part}": each for part, each in zip(("mean", "max", "min"), numbers, strict=True)}


def of_times(parts: Mapping[str, float], lengths: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """Seconds by phase and per token, and tokens a second.

    `perf/throughput` is verl's: all tokens of prompts and answers over the step, per card. In addition: generated
    tokens over generation time, trained tokens over training time, and generated tokens over the step.
    """
    answers, total = lengths["response_length/mean"], lengths["response_length/mean"] + lengths["prompt_length/mean"]
    rows = lengths["perf/total_num_tokens"] / total if total else 0.0
    per_token = dict.fromkeys(_PER_ANSWER_TOKEN, answers * rows) | dict.fromkeys(_PER_TOKEN, total * rows)
    metrics = {
        **{f"timing_s/{name}": spent for name, spent in parts.items()},
        "timing_s/step": seconds,
        **{f"timing_per_token_ms/{n}": parts[n] * 1000 / each for n, each in per_token.items() if n in parts and each},
        "perf/time_per_step": seconds,
        "perf/throughput": lengths["perf/total_num_tokens"] / seconds,
        "perf/end_to_end_tokens_per_s": lengths["generated_tokens"] / seconds,
    }
    for name, phase, tokens in (
        ("generated", "gen", "generated_tokens"),
        ("computed", "update_actor", "computed_tokens"),
    ):
        if parts.get(phase, 0.0) > 0:
            metrics[f"perf/{name}_tokens_per_s"] = lengths[tokens] / parts[phase]
    return metrics


def of_generators(result: StepResult, parts: Mapping[str, float], seconds: float) -> dict[str, float]:
    """What each side waited for the other, and how far apart they are; nothing where each rank generates itself.

    The generators are idle while the learner learns, unless they work one step ahead; the learner is while it waits
    for answers. `staleness`: updates between the weights that drew the answers and those that learnt from them.
    """
    if result.stats is None:
        return {}
    stats = result.stats
    metrics = {
        "generators/lag": result.staleness,
        "generators/busy_s": stats.busy_s,
        "generators/idle_s": max(seconds - stats.busy_s, 0.0),
        "generators/lost": stats.num_lost,
        "learner/idle_s": parts.get("gen_wait", parts.get("gen", 0.0) + parts.get("ref", 0.0)),
    }
    if stats.weights_s > 0:
        metrics["generators/weights_mib_per_s"] = stats.weights_bytes / (1 << 20) / stats.weights_s
    return metrics


def of_validation(prompts: Sequence[Prompt], correct: Sequence[int], *, task: str) -> dict[str, float]:
    """Greedy accuracy by the data source of the prompts: `val-core/openai/gsm8k/acc/mean@1`.

    A prompt without a data source counts under the task's name. One answer per prompt, hence mean@1.
    """
    by_source: dict[str, list[int]] = {}
    for prompt, is_right in zip(prompts, correct, strict=True):
        by_source.setdefault(str(prompt.extra.get("data_source") or task), []).append(is_right)
    return {f"val-core/{source}/acc/mean@1": sum(each) / len(each) for source, each in by_source.items()}


def describe_step(result: StepResult, config: Config, seconds: float, progress: Progress) -> dict[str, Any]:
    """The values of a `step` record."""
    lengths, parts = of_lengths(result.groups, config), progress.since_last_step()
    metrics = {
        **of_generators(result, parts, seconds),
        **of_rewards(result.rewards_PG, result.advantages.rewards_after_kl_B),
        **of_advantages(result.batch, result.logprobs, result.advantages),
        **of_update(result, config),
        **of_probabilities(result.batch, result.logprobs),
        **lengths,
        "groups_drawn": result.num_generated,
        **({} if result.reward_errors is None else {"reward_errors": result.reward_errors}),
        **of_times(parts, lengths, seconds),
    }
    if progress.meter is None:
        metrics["perf/cpu_memory_used_gb"] = peak_rss_mib() / 1024
    else:
        metrics |= progress.meter.mfu(result.groups, result.num_generated, config, parts, seconds)
        metrics |= progress.meter.memory()
    return {**metrics, "wall_s": progress.elapsed_s()}


# Of several ranks these add up, these are the slowest rank's or the largest; every other number is averaged.
_ADDED = (
    *("groups_with_signal", "groups_drawn", "reward_errors", "generators/lost", "generated_tokens", "computed_tokens"),
    *("perf/total_num_tokens", "perf/generated_tokens_per_s", "perf/computed_tokens_per_s"),
    "perf/end_to_end_tokens_per_s",
)
_LARGEST = ("/max", "generators/lag", "_max", "wall_s", "_used_share", "_gb", "perf/time_per_step")


def over_ranks(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of one step from those of each rank; a number that some ranks lack is that of the others."""
    if len(records) == 1:
        return dict(records[0])
    names = dict.fromkeys(name for record in records for name in record)
    metrics = {name: _merged(name, [record[name] for record in records if name in record]) for name in names}
    if "global_seqlen/max" in metrics:
        metrics["global_seqlen/minmax_diff"] = metrics["global_seqlen/max"] - metrics["global_seqlen/min"]
    return metrics


def _merged(name: str, values: Sequence[float]) -> float:
    if name in _ADDED:
        return sum(values)
    if name.endswith(_LARGEST) or name.startswith("timing_s/"):
        return max(values)
    if name.endswith("/min"):
        return min(values)
    return sum(values) / len(values)


class StepRecords(Observer):
    """Writes the `step` record of each step, with the numbers of all ranks."""

    def __init__(self, config: Config, records: Records, progress: Progress, world: World) -> None:
        self._config, self._records, self._progress, self._world = config, records, progress, world

    def on_step(self, step: int, result: StepResult) -> None:
        described = describe_step(result, self._config, result.seconds, self._progress)
        self._records.write("step", step=step, **over_ranks(self._world.gather(described)))
        self._progress.steps_done = step
