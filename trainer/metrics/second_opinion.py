"""The arithmetic of a step once more: in float64, by plain formulas that share no code with the step itself.

`stages.second_look` holds a run against it. Nothing of `trainer.algorithms` and `trainer.models` is imported: what is
wrong there must not be wrong here too. Slow and obvious, for a batch or two of a run. Every name that this file does
not know raises Unknown: then there is no second opinion, and none is pretended.

Letters: B rows, T tokens of an answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from trainer.types import Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from trainer.metrics.plain_decoder import Answers
    from trainer.types import Group, Prompt, Rollout


class Unknown(ValueError):
    """A setting that this file has no formula for."""


# Prompts and schedules.


@dataclass(slots=True)
class Prompts:
    """The prompts of each step of all ranks, in the order that the run's seed gives."""

    prompts: Sequence[Prompt]
    count: int
    generator: torch.Generator
    by_epoch: bool
    left: list[int] = field(default_factory=list)  # of the epoch

    def draw(self) -> list[Prompt]:
        """Those of the next step: no prompt twice before each was there once, in a step or in an epoch."""
        numbers = self.left if self.by_epoch and len(self.left) >= self.count else self.order()
        while len(numbers) < self.count:
            numbers = numbers + self.order()
        self.left = numbers[self.count :]
        return [self.prompts[number] for number in numbers[: self.count]]

    def order(self) -> list[int]:
        """The numbers of all prompts in the next random order."""
        return torch.randperm(len(self.prompts), generator=self.generator).tolist()


def mini_batches(sizes: Sequence[int], optim: Any, *, usual: int, generator: torch.Generator) -> list[list[int]]:
    """The rows of each mini batch of a step: groups of these sizes in an order of their own for each epoch.

    A rank draws for its `usual` number of groups, also where it has fewer.
    """
    ends = list(accumulate(sizes))
    result = []
    for _ in range(optim.ppo_epochs):
        order = torch.randperm(max(len(sizes), usual), generator=generator).tolist()
        own = [group for group in order if group < len(sizes)]
        size, larger = divmod(len(own), optim.mini_batches)
        for number in range(optim.mini_batches):
            taken, own = own[: size + (number < larger)], own[size + (number < larger) :]
            result.append(sorted(row for group in taken for row in range(ends[group] - sizes[group], ends[group])))
    return result


def learning_rate(optim: Any, *, done: int, steps: int) -> float:
    """The rate of the optimizer step after `done` of a run of so many rollout batches."""
    total = steps * optim.mini_batches * optim.ppo_epochs
    if done < optim.warmup_steps:
        return float(optim.lr * (done + 1) / optim.warmup_steps)
    left = max(1, total - optim.warmup_steps)
    share = min(1.0, (done - optim.warmup_steps) / left)
    factors = {"constant": 1.0, "linear": 1.0 - share, "cosine": (1.0 + math.cos(math.pi * share)) / 2}
    if optim.lr_schedule not in factors:
        raise Unknown(f"lr_schedule={optim.lr_schedule}")
    return float(optim.lr * factors[optim.lr_schedule])


def noise_deviation(noise: Any, *, step: int, steps: int) -> float:
    """The deviation of the engine's noise after a step."""
    stages = noise.noise_stages
    if stages == 1:
        return float(noise.noise_start)
    stage = min(step * stages // steps, stages - 1)
    if stage == 0:
        return 0.0
    share = (stage - 1) / max(1, stages - 2)
    if noise.noise_shape == "linear":
        return float(noise.noise_start + (noise.noise_end - noise.noise_start) * share)
    if noise.noise_shape == "geometric":
        return float(noise.noise_start ** (1 - share) * noise.noise_end**share) if noise.noise_start else 0.0
    raise Unknown(f"noise_shape={noise.noise_shape}")


def adapted(coef: float, algorithm: Any, *, kl: float, rows: int) -> float:
    """The coefficient of the divergence after a step that measured `kl` over `rows` answers of all ranks."""
    error = max(-0.2, min(0.2, kl / algorithm.kl_target - 1))
    return float(coef * (1 + error * rows / algorithm.kl_horizon))


# Rewards.


def reward(task: Any, prompt: Prompt, rollout: Rollout, algorithm: Any) -> float:
    """What the environment, else the task gives an answer to its prompt, less the penalty for its length."""
    own = task.reward(prompt, rollout) if rollout.reward is None else rollout.reward
    buffer = algorithm.overlong_buffer
    over = max(0, len(rollout.tokens) - (task.max_new_tokens - buffer))
    return float(own - algorithm.overlong_factor * over / buffer if buffer else own)


# What a record says of the answers.


def counted(groups: Sequence[Group], rewards: Sequence[float], credit: Sequence[float]) -> dict[str, float]:
    """Numbers of a step's record: of the answers, their rewards, and the advantages of their tokens."""
    if not (answers := [each for group in groups for each in group.rollouts]):
        return {}
    values = {
        "response_length": [len(each.tokens) for each in answers],
        "prompt_length": [len(group.prompt.tokens) for group in groups for _ in group.rollouts],
        "critic/score": rewards,
        "critic/advantages": credit,
    }
    found = {"response_length/clip_ratio": sum(each.stop is Stop.LENGTH for each in answers) / len(answers)}
    for name, each in values.items():
        if each and math.isfinite(sum(each)):
            found |= {f"{name}/mean": sum(each) / len(each), f"{name}/max": max(each), f"{name}/min": min(each)}
    return found


# Advantages.


def divergence(name: str, logprob_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor, convention: str) -> Tensor:
    """The estimate for each token of how far the policy is from the reference; 0 off the mask."""
    d = torch.where(mask_BT, reference_BT - logprob_BT, 0.0)
    limited = d.clamp(-20, 20) if convention == "verl" else d
    k3 = limited.exp() - limited - 1
    k3 = k3 if convention == "trl" else k3.clamp(-10, 10)
    plain = {"k1": -d, "k2": d * d / 2, "k3": k3, "low_var": k3, "abs": d.abs()}
    if name in plain:
        return plain[name]
    if name in ("k1+", "k3+"):  # its value, with the gradient of k2
        return plain["k2"] + (plain[name[:2]] - plain["k2"]).detach()
    raise Unknown(f"kl={name}")


def token_rewards(answers: Answers, penalty_BT: Tensor | None) -> list[list[float]]:
    """The reward on the last token of each answer, less the penalty on every token."""
    result = []
    for row, reward in enumerate(answers.rewards_B.tolist()):
        on = [at for at, is_on in enumerate(answers.mask_BT[row].tolist()) if is_on]
        own = [0.0] * answers.mask_BT.shape[1]
        own[on[-1] if on else 0] = reward
        if penalty_BT is not None:
            own = [value - float(penalty_BT[row, at]) for at, value in enumerate(own)]
        result.append(own)
    return result


def advantages(
    rewards: Sequence[Sequence[float]], answers: Answers, algorithm: Any, *, values_BT: Tensor | None = None
) -> list[list[float]]:
    """An advantage for each token, before whitening (`is_whitened` says whether that follows); 0 off the mask."""
    by_answer = {"grpo": _grpo, "rloo": _rloo, "reinforce_plus_plus_baseline": _centred, "opo": _opo}
    mask = answers.mask_BT.tolist()
    name = algorithm.estimator
    if name in by_answer:
        totals = [sum(each) for each in rewards]
        lengths = [sum(row) for row in mask]
        credit = [0.0] * len(totals)
        for group in sorted(set(answers.group_B)):
            rows = [row for row, own in enumerate(answers.group_B) if own == group]
            numbers = [totals[row] for row in rows]
            if len(rows) == 1 and algorithm.convention != "verl":
                found = [0.0]
            else:
                found = by_answer[name](numbers, [lengths[row] for row in rows], algorithm)
            for row, number in zip(rows, found, strict=True):
                credit[row] = 0.0 if number != number and algorithm.convention == "trl" else number
        return [_on_tokens(credit[row], each, algorithm) for row, each in enumerate(mask)]
    if name in ("reinforce", "reinforce_plus_plus"):
        return [_returns(each, on, algorithm) for each, on in zip(rewards, mask, strict=True)]
    if name == "gae" and values_BT is not None:
        values = values_BT.tolist()
        return [_gae(*each, algorithm) for each in zip(rewards, values, mask, strict=True)]
    raise Unknown(f"estimator={name}")


def is_whitened(algorithm: Any) -> bool:
    name: str = algorithm.estimator
    return name.startswith("reinforce_plus_plus") or (name == "gae" and algorithm.convention != "roll")


def whitened(values: Tensor, everywhere: Tensor) -> Tensor:
    """Values shifted and scaled so that those of all ranks together have mean 0 and deviation 1."""
    if len(everywhere) < 2:
        return values
    return (values - everywhere.mean()) / (everywhere.var() + 1e-8).sqrt()


def _grpo(rewards: list[float], lengths: list[int], algorithm: Any) -> list[float]:
    present = [each for each in rewards if each == each] if algorithm.convention == "trl" else rewards
    if len(rewards) == 1:  # verl alone: mean 0, deviation 1
        return [rewards[0] / (1 + 1e-6) if algorithm.scale_by_std else rewards[0]]
    mean = sum(present) / len(present) if present else math.nan
    if not algorithm.scale_by_std:
        return [each - mean for each in rewards]
    squares = sum((each - mean) ** 2 for each in present)
    deviation = math.sqrt(squares / (len(present) - 1)) if len(present) > 1 else math.nan
    if algorithm.convention == "roll" and deviation <= 1e-6:
        return [0.0] * len(rewards)
    return [(each - mean) / (deviation + (1e-4 if algorithm.convention == "trl" else 1e-6)) for each in rewards]


def _centred(rewards: list[float], lengths: list[int], algorithm: Any) -> list[float]:
    present = [each for each in rewards if each == each] if algorithm.convention == "trl" else rewards
    mean = 0.0 if len(rewards) == 1 else sum(present) / len(present) if present else math.nan
    return [each - mean for each in rewards]


def _rloo(rewards: list[float], lengths: list[int], algorithm: Any) -> list[float]:
    result = []
    for own, reward in enumerate(rewards):
        others = [each for at, each in enumerate(rewards) if at != own]
        if algorithm.convention == "trl":
            others = [each for each in others if each == each]
        result.append(reward - (sum(others) / len(others) if others else 0.0))
    return result


def _opo(rewards: list[float], lengths: list[int], algorithm: Any) -> list[float]:
    if len(rewards) == 1:
        return rewards
    weighted = sum(length * reward for length, reward in zip(lengths, rewards, strict=True))
    baseline = weighted / sum(lengths) if sum(lengths) else math.nan
    return [each - baseline for each in rewards]


def _on_tokens(credit: float, mask: list[bool], algorithm: Any) -> list[float]:
    """The number of an answer on each of its tokens; in ROLL's way discounted from the last one."""
    if algorithm.convention != "roll" or algorithm.gamma == 1.0 or not any(mask):
        return [credit if is_on else 0.0 for is_on in mask]
    last = max(at for at, is_on in enumerate(mask) if is_on)
    return [credit * algorithm.gamma ** (last - at) if is_on else 0.0 for at, is_on in enumerate(mask)]


def _returns(rewards: Sequence[float], mask: list[bool], algorithm: Any) -> list[float]:
    result, later = [0.0] * len(mask), 0.0
    for at in reversed(range(len(mask))):
        if mask[at]:
            later = rewards[at] + algorithm.gamma * later
            result[at] = later
        elif algorithm.convention == "roll":  # observations take their share of the discount
            later = algorithm.gamma * later
    return result


def _gae(rewards: Sequence[float], values: list[float], mask: list[bool], algorithm: Any) -> list[float]:
    result, later, next_value = [0.0] * len(mask), 0.0, 0.0
    for at in reversed(range(len(mask))):
        if not mask[at] and algorithm.convention != "roll":
            continue
        value, reward = (values[at], rewards[at]) if mask[at] else (0.0, 0.0)
        later = reward + algorithm.gamma * next_value - value + algorithm.gamma * algorithm.lam * later
        next_value = value
        result[at] = later if mask[at] else 0.0
    return result


# The loss.


@dataclass(frozen=True, slots=True)
class Counts:
    """What the sums of an optimizer step are divided by: over all ranks."""

    tokens: float
    rows: float
    width: float  # of seq-mean-token-sum-norm

    @classmethod
    def of(cls, masks: Sequence[Tensor], algorithm: Any, *, longest: float | None) -> Counts:
        """Of the masks of a mini batch on every rank; `longest`: tokens that an answer may have."""
        tokens = sum(int(each.sum()) for each in masks)
        is_counted = algorithm.convention != "verl"
        rows = sum(len(each) if is_counted else int(each.any(dim=1).sum()) for each in masks)
        width = longest or max(each.shape[1] for each in masks)
        return cls(max(1, tokens), max(1, rows), width)


def loss(
    now_BT: Tensor,
    entropy_BT: Tensor,
    old_BT: Tensor,
    reference_BT: Tensor | None,
    advantages_BT: Tensor,
    answers: Answers,
    algorithm: Any,
    *,
    counts: Counts,
    kl_coef: float,
) -> dict[str, Tensor]:
    """These rows' share of the loss of an optimizer step, and of what it is made of."""
    mask, verl = answers.mask_BT, algorithm.convention == "verl"
    advantages_BT = torch.where(mask, advantages_BT, 0.0)
    each_BT = _policy_loss(now_BT, old_BT, advantages_BT, mask, algorithm)
    if algorithm.correction != "none":
        each_BT = each_BT * _correction(old_BT, answers, algorithm)
    mode = "seq-mean-token-mean" if algorithm.loss == "gspo" and verl else algorithm.aggregation
    policy = _aggregated(each_BT, mask, mode, counts, algorithm)
    mode = "token-mean" if algorithm.convention == "trl" else algorithm.aggregation
    whole = policy - algorithm.entropy_coef * _aggregated(entropy_BT, mask, mode, counts, algorithm)
    kl_BT = torch.zeros_like(now_BT)
    if reference_BT is not None:
        kl_BT = divergence(algorithm.kl, now_BT, reference_BT, mask, algorithm.convention)
        if algorithm.convention == "trl" and algorithm.kl in ("k3", "low_var"):
            kl_BT = kl_BT * torch.where(mask, now_BT - old_BT, 0.0).exp()
        if algorithm.kl_in == "loss":
            whole = whole + kl_coef * _aggregated(kl_BT, mask, algorithm.aggregation, counts, algorithm)
    log_ratio, gap = now_BT.detach() - old_BT, old_BT - answers.rollout_BT
    log_ratio = log_ratio.clamp(-20, 20) if verl and algorithm.loss != "gspo" else log_ratio
    reported = {
        "entropy": entropy_BT,
        "kl": kl_BT,
        "ppo_kl": -log_ratio,
        "logprob_diff_mean": gap.abs(),
        "rollout_kl": gap.exp() - gap - 1,
        "rollout_kl_direct": -gap,
    }
    if algorithm.loss != "gspo":
        reported["ratio_mean"] = log_ratio.exp()
    means = {name: _aggregated(each, mask, "token-mean", counts, algorithm) for name, each in reported.items()}
    return {"loss": whole, "policy_loss": policy, **means}


def value_loss(values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, mask: Tensor, *, clip: float) -> Tensor:
    """The critic's: half the squared error, not below that of a value held within `clip` of the old one."""
    error_BT = (values_BT - returns_BT) ** 2
    if clip:
        held_BT = torch.minimum(torch.maximum(values_BT, old_BT - clip), old_BT + clip)
        error_BT = torch.maximum(error_BT, (held_BT - returns_BT) ** 2)
    return torch.where(mask, error_BT, 0.0).sum() / 2 / max(1, int(mask.sum()))


def _policy_loss(now_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask: Tensor, algorithm: Any) -> Tensor:
    verl, low, high = algorithm.convention == "verl", algorithm.clip_low, algorithm.clip_high
    log_ratio = torch.where(mask, now_BT - old_BT, 0.0)
    if algorithm.loss == "plain":
        return -advantages_BT * now_BT
    if algorithm.loss == "cispo":
        ratio = (log_ratio.clamp(-20, 20) if verl else log_ratio).exp().detach()
        bounded = ratio.clamp(max=high) if algorithm.convention == "trl" else ratio.clamp(1 - low, 1 + high)
        return -bounded * advantages_BT * now_BT
    if algorithm.loss == "gspo":
        mean = log_ratio.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (now_BT - now_BT.detach() + mean.detach()).clamp(max=10) if verl else mean.expand_as(now_BT)
        ratio = torch.where(mask, mean, 0.0).exp()
    elif algorithm.loss == "clip":
        ratio = (log_ratio.clamp(-20, 20) if verl else log_ratio).exp()
    else:
        raise Unknown(f"loss={algorithm.loss}")
    clipped = -advantages_BT * ratio.clamp(1 - low, 1 + high)
    dual = algorithm.dual_clip
    if dual and algorithm.convention == "trl":
        return torch.maximum(-advantages_BT * ratio.clamp(max=dual), clipped)
    result = torch.maximum(-advantages_BT * ratio, clipped)
    if dual and not (verl and algorithm.loss == "gspo"):
        bound = -advantages_BT * (dual if verl else 1 + 2 * low)
        result = torch.where(advantages_BT < 0, torch.minimum(result, bound), result)
    return result


def _correction(old_BT: Tensor, answers: Answers, algorithm: Any) -> Tensor:
    """The weight of each token: how much likelier the learner's policy was to say it than the engine's."""
    mask = answers.mask_BT
    d = torch.where(mask & ~answers.rollout_BT.isnan(), old_BT - answers.rollout_BT, 0.0)
    if algorithm.correction == "sequence":
        whole = d.sum(dim=1, keepdim=True)
        if algorithm.convention == "roll":
            whole = whole / mask.sum(dim=1, keepdim=True).clamp(min=1)
        d = whole.expand_as(d)
    elif algorithm.correction != "token":
        raise Unknown(f"correction={algorithm.correction}")
    ratio = (d.clamp(-20, 20) if algorithm.convention == "verl" else d).exp().detach()
    low, high = algorithm.correction_floor, algorithm.correction_cap
    if algorithm.correction_bound == "mask":
        return torch.where((ratio < low) | (ratio > high), 0.0, ratio)
    return ratio.clamp(low, high)


def _aggregated(each_BT: Tensor, mask: Tensor, mode: str, counts: Counts, algorithm: Any) -> Tensor:
    each_BT = torch.where(mask, each_BT, 0.0)
    if mode == "token-mean":
        return each_BT.sum() / counts.tokens
    if mode == "seq-mean-token-sum":
        return each_BT.sum() / counts.rows
    if mode == "seq-mean-token-sum-norm":
        return each_BT.sum() / counts.width / (1 if algorithm.convention == "roll" else counts.rows)
    if mode == "seq-mean-token-mean":
        return (each_BT.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).sum() / counts.rows
    raise Unknown(f"aggregation={mode}")


# The optimizer.


def adamw(
    weight: Tensor, first: Tensor, second: Tensor, gradient: Tensor, *, lr: float, number: int, decay: float
) -> Tensor:
    """A weight after the optimizer step of that number, from 1; beta 0.9 and 0.999, epsilon 1e-8."""
    first = 0.9 * first + 0.1 * gradient
    second = 0.999 * second + 0.001 * gradient**2
    width = (second / (1 - 0.999**number)).sqrt() + 1e-8
    return weight * (1 - lr * decay) - lr * (first / (1 - 0.9**number)) / width


def clipped(gradients: Mapping[str, Tensor], largest: float) -> tuple[dict[str, Tensor], float]:
    """The gradients scaled to a common norm of at most `largest`, and their norm before."""
    norm = math.sqrt(sum(float(each.pow(2).sum()) for each in gradients.values()))
    factor = largest / (norm + 1e-6) if norm > largest else 1.0
    return {name: each * factor for name, each in gradients.items()}, norm
