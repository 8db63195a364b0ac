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
        "compute_advantage",
        "compute_clip_fraction",
        "log_probs_from_logits",
        "entropy_from_logits",
    )
    source.known |= {"Dict": dict, "DataProto": Rows}
    source.borrow("roll/pipeline/agentic/utils.py", "agentic_reward_norm")
    return source


class Rows:
    """What `agentic_reward_norm` asks of ROLL's DataProto."""

    def __init__(self, rewards_B: torch.Tensor, group_B: torch.Tensor) -> None:
        self.batch = Columns(scores=rewards_B)
        self.group_B = group_B

    def group_by(self, keys: str) -> dict[str, Rows]:
        parts = {}
        for number in self.group_B.unique().tolist():
            parts[str(number)] = part = Rows(self.batch["scores"][self.group_B == number], self.group_B[:0])
            part.batch["sample_order_placeholder"] = (self.group_B == number).nonzero().squeeze(1)
        return parts

    @staticmethod
    def concat(parts: list[Rows]) -> Rows:
        whole = Rows(parts[0].batch["scores"][:0], parts[0].group_B[:0])
        whole.batch = Columns({name: torch.cat([part.batch[name] for part in parts]) for name in parts[0].batch})
        return whole

    def reorder(self, indices: torch.Tensor) -> None:
        self.batch = Columns({name: each[indices] for name, each in self.batch.items()})

    def pop(self, name: str) -> None:
        self.batch.pop(name)


class Columns(dict[str, torch.Tensor]):
    device = "cpu"

    @property
    def batch_size(self) -> torch.Size:
        return self["scores"].shape


def advantages(source: Source) -> Iterator[Vector]:
    tools = "roll/utils/functionals.py"
    for seed, gamma in itertools.product((0, 1), (1.0, 0.9)):
        batch = step(seed=seed)
        mask = batch["mask_BT"].float()
        rewards_B, group_B = batch["token_rewards_BT"].sum(dim=1), batch["group_B"]
        for scale in ("group", None, "batch"):
            norm = SimpleNamespace(grouping="traj_group_id", norm_mean_type="group", norm_std_type=scale)
            scores_B = source.agentic_reward_norm(Rows(rewards_B, group_B), norm)
            placed_BT = torch.where(batch["token_rewards_BT"] != 0, scores_B.unsqueeze(1), 0.0) * mask
            advantages_BT, _ = source.compute_reinforce_return(placed_BT, gamma, 1.0)
            yield vector(
                "advantages",
                f"roll/pipeline/agentic/utils.py:agentic_reward_norm, {tools}:compute_reinforce_return",
                {
                    "name": "grpo",
                    "scale_by_std": scale is not None,
                    "scale_by_batch": scale == "batch",
                    "gamma": gamma,
                },
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
        for is_whitened, limit in ((True, 0.0), (False, 0.2), (True, 0.7)):
            data = SimpleNamespace(batch={"token_level_rewards": rewards_BT.clone()}, meta_info={})
            options = {"whiten_advantages": is_whitened, "advantage_clip": limit or None, "response_mask": mask}
            advantages_BT = source.compute_advantage(data, gamma, 1.0, "reinforce", **options).batch["advantages"]
            yield vector(
                "advantages",
                f"{tools}:compute_advantage",
                {"name": "reinforce", "gamma": gamma, "is_whitened": is_whitened, "limit": limit},
                batch,
                advantages_BT=advantages_BT,
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
        "if self.pipeline_config.train_infer_correction.is_weight",
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
            train_infer_correction=SimpleNamespace(is_weight=SimpleNamespace(enabled=True)),
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
            weights_BT = batch["weights_BT"]
            after = row(self=SimpleNamespace(pipeline_config=config), train_infer_is_weight=weights_BT, **names)
            loss = source.agg_loss(after["loss"], mask, mode)
            yield vector(
                "loss",
                "roll/pipeline/rlvr/actor_worker.py:ActorWorker.loss_func",
                {"name": name, **ours, "weighted": True},
                batch,
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
