"""Vectors from ROLL's functionals, actor workers, critic worker and agentic utilities."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from tests.trainer.algorithms.framework_source import (
    MODES,
    Source,
    Vector,
    gradient,
    leaf,
    logprob_vectors,
    step,
    update,
    vector,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def source(folder: Path) -> Source:
    source = Source(folder)
    source.borrow(
        "roll/utils/functionals.py",
        "compute_approx_kl",
        "agg_loss",
        "masked_mean",
        "masked_sum",
        "masked_var",
        "masked_whiten",
        "compute_reinforce_return",
        "compute_gae_advantage_return",
        "log_probs_from_logits",
        "entropy_from_logits",
    )
    source.borrow("roll/pipeline/agentic/utils.py", "get_score_normalize_fn")
    return source


def advantages(source: Source) -> Iterator[Vector]:
    tools = "roll/utils/functionals.py"
    for seed, gamma in itertools.product((0, 1), (1.0, 0.9)):
        batch = step(seed=seed)
        mask = batch["mask_BT"].float()
        rewards_B, group_B = batch["token_rewards_BT"].sum(dim=1), batch["group_B"]
        for scale in (True, False):
            change = source.get_score_normalize_fn(SimpleNamespace(grouping="", method="mean_std" if scale else "mean"))
            scores_B = torch.cat([change(rewards_B[group_B == number]) for number in group_B.unique()])
            placed_BT = torch.where(batch["token_rewards_BT"] != 0, scores_B.unsqueeze(1), 0.0) * mask
            advantages_BT, _ = source.compute_reinforce_return(placed_BT, gamma, 1.0)
            yield vector(
                "advantages",
                f"roll/pipeline/agentic/utils.py:get_score_normalize_fn, {tools}:compute_reinforce_return",
                {"name": "grpo", "scale_by_std": scale, "gamma": gamma},
                batch,
                advantages_BT=advantages_BT * mask,
            )
        rewards_BT, values_BT = batch["token_rewards_BT"] * mask, batch["values_BT"] * mask
        returns_BT, _ = source.compute_reinforce_return(rewards_BT, gamma, 1.0)
        yield vector(
            "advantages",
            f"{tools}:compute_reinforce_return",
            {"name": "reinforce", "gamma": gamma},
            batch,
            advantages_BT=returns_BT * mask,
            returns_BT=returns_BT * mask,
        )
        yield vector(
            "advantages",
            f"{tools}:compute_reinforce_return, masked_whiten",
            {"name": "reinforce_plus_plus", "gamma": gamma},
            batch,
            advantages_BT=source.masked_whiten(returns_BT, mask) * mask,
        )
        advantages_BT, returns_BT = source.compute_gae_advantage_return(rewards_BT, values_BT, gamma, 0.9)
        yield vector(
            "advantages",
            f"{tools}:compute_gae_advantage_return",
            {"name": "gae", "gamma": gamma, "lam": 0.9},
            batch,
            advantages_BT=advantages_BT * mask,
            returns_BT=returns_BT * mask,
        )


def losses(source: Source) -> Iterator[Vector]:
    base = "roll/pipeline/base_worker.py"
    run = source.passage(
        base, "ActorWorker.loss_func", "ratio = (log_probs - old_log_probs).exp()", "kl_loss = agg_loss"
    )
    row = source.passage(
        "roll/pipeline/rlvr/actor_worker.py",
        "ActorWorker.loss_func",
        "if self.pipeline_config.importance_sampling ==",
        "if self.pipeline_config.use_rollout_importance",
    )
    for mode, extreme, dual in itertools.product(MODES, (False, True), (False, True)):
        batch = update(extreme=extreme, zero_outside=True)
        mask, given = batch["mask_BT"].long(), leaf(batch, "logprobs_BT")
        config = SimpleNamespace(
            pg_clip_low=0.2,
            pg_clip_high=0.28,
            pg_clip=0.2,
            use_pg_clip_range=True,
            dual_clip_loss=dual,
            loss_agg_mode=mode,
            use_rollout_importance_sampling_ratio=True,
            rollout_importance_sampling_ratio_upper_bound=1.5,
        )
        totals = {"batch_num_tokens": {"response_mask": None}, "global_valid_samples": {"response_mask": None}}
        names = {
            "log_probs": given,
            "old_log_probs": batch["old_BT"],
            "advantages": batch["advantages_BT"],
            "response_mask": mask,
            "final_response_mask": mask,
        }
        after = run(
            self=SimpleNamespace(pipeline_config=config), ref_log_probs=batch["reference_BT"], **names, **totals
        )
        ours = {"low": 0.2, "high": 0.28, "dual": 3.0 if dual else None, "mode": mode, "scale": None, "weighted": False}
        loss = after["pg_loss"]
        yield vector(
            "loss",
            f"{base}:ActorWorker.loss_func",
            {"name": "clip", **ours},
            batch,
            loss=loss.detach(),
            d_logprobs=gradient(loss, given),
        )
        loss = after["kl_loss"]
        yield vector(
            "kl",
            f"{base}:ActorWorker.loss_func",
            {"name": "k3", "mode": mode, "coef": 1.0},
            batch,
            loss=loss.detach(),
            d_logprobs=gradient(loss, given),
        )
        for name, level in (("clip", "token"), ("gspo", "seq")):
            config.importance_sampling = level
            # 1.5 bounds the weight: what is stored is the weight as the passage uses it
            kept = batch | {"weights_BT": batch["weights_BT"].clamp(0, 1.5)}
            ratio_BT = batch["weights_BT"]
            after = row(self=SimpleNamespace(pipeline_config=config), train_infer_ratio=ratio_BT, **names)
            loss = source.agg_loss(after["loss"], mask, mode)
            yield vector(
                "loss",
                "roll/pipeline/rlvr/actor_worker.py:ActorWorker.loss_func",
                {"name": name, **ours, "weighted": True},
                kept,
                loss=loss.detach(),
                d_logprobs=gradient(loss, given),
            )


def others(source: Source) -> Iterator[Vector]:
    tools = "roll/utils/functionals.py"
    for (theirs, name), mode in itertools.product((("kl", "k1"), ("abs", "abs"), ("mse", "k2"), ("k3", "k3")), MODES):
        batch = update(extreme=True, zero_outside=True)
        mask, given = batch["mask_BT"].float(), leaf(batch, "logprobs_BT")
        loss = source.agg_loss(source.compute_approx_kl(given, batch["reference_BT"], mask, theirs), mask, mode)
        yield vector(
            "kl",
            f"{tools}:compute_approx_kl, agg_loss",
            {"name": name, "mode": mode, "coef": 1.0},
            batch,
            loss=loss.detach(),
            d_logprobs=gradient(loss, given),
        )
    critic = source.passage(
        "roll/pipeline/base_worker.py",
        "CriticWorker.loss_func",
        "if self.pipeline_config.value_clip is not None",
        "vf_loss =",
    )
    for clip in (None, 0.2, 1.0):
        batch = step()
        given, returns_BT = leaf(batch, "values_BT"), batch["values_BT"].flip(0)
        old_BT = batch["values_BT"].roll(1, 0) * 0.3 + batch["values_BT"] * 0.7
        worker = SimpleNamespace(pipeline_config=SimpleNamespace(value_clip=clip))
        loss = critic(
            self=worker, values=given, old_values=old_BT, returns=returns_BT, response_mask=batch["mask_BT"].float()
        )["vf_loss"]
        inputs = {"values_BT": batch["values_BT"], "returns_BT": returns_BT, "old_BT": old_BT}
        yield vector(
            "value",
            "roll/pipeline/base_worker.py:CriticWorker.loss_func",
            {"clip": clip or 0.0, "mode": "seq-mean-token-mean"},
            inputs | {"mask_BT": batch["mask_BT"]},
            loss=loss.detach(),
            d_values=gradient(loss, given),
        )
    yield from logprob_vectors(
        f"{tools}:log_probs_from_logits, entropy_from_logits", source.log_probs_from_logits, source.entropy_from_logits
    )


MAKERS = (advantages, losses, others)
