"""Vectors from TRL's GRPOTrainer and RLOOTrainer."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from tests.trainer.algorithms.framework_source import (
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
    source.known["is_triton_available"] = lambda: False
    source.borrow("trl/trainer/utils.py", "nanstd")
    source.methods("trl/trainer/grpo_trainer.py", "GRPOTrainer", "get_high_entropy_mask", "get_off_policy_mask")
    return source


def advantages(source: Source) -> Iterator[Vector]:
    grpo = source.passage(
        "trl/trainer/grpo_trainer.py",
        "GRPOTrainer._generate_and_score_completions",
        "if self.multi_objective_aggregation",
        "advantages = torch.nan_to_num",
    )
    rloo = source.passage(
        "trl/trainer/rloo_trainer.py",
        "RLOOTrainer._generate_and_score_completions",
        "grouped_rewards = rewards.view",
        "advantages = torch.nan_to_num",
    )
    for size, with_nan, (name, scale) in itertools.product(
        (4, 1), (False, True), (("grpo", True), ("grpo", False), ("rloo", True), ("grpo", "batch"))
    ):
        if scale == "batch" and size == 1:
            continue
        batch = step(groups=(size,) * (12 // size if size > 1 else 5), seed=3)
        if with_nan:
            last_B = batch["token_rewards_BT"].abs().argmax(dim=1)
            batch["token_rewards_BT"][
                [5, 8, 9, 10] if size > 1 else [2], last_B[[5, 8, 9, 10] if size > 1 else [2]]
            ] = torch.nan
        rewards_B = batch["token_rewards_BT"].sum(dim=1)
        trainer = SimpleNamespace(
            multi_objective_aggregation="sum_then_normalize",
            scale_rewards=scale if scale == "batch" else "group" if scale else "none",
            reward_weights=torch.ones(1),
            normalize_advantages=False,
        )
        given = {"self": trainer, "num_generations": size, "device": "cpu"}
        if name == "grpo":
            after = grpo(**given, rewards_per_func=rewards_B.unsqueeze(1), unscorable_mask=rewards_B.isnan())
        else:
            after = rloo(**given, rewards=rewards_B)
        advantages_BT = torch.where(batch["mask_BT"], after["advantages"].unsqueeze(1), 0.0)
        owner = "GRPOTrainer" if name == "grpo" else "RLOOTrainer"
        yield vector(
            "advantages",
            f"trl/trainer/{name}_trainer.py:{owner}._generate_and_score_completions",
            {"name": name, "scale_by_std": bool(scale), "scale_by_batch": scale == "batch"},
            batch,
            advantages_BT=advantages_BT,
        )


# TRL's name for an aggregation, and ours
TRL_LOSSES = {
    "grpo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "seq-mean-token-sum",
}


def losses(source: Source) -> Iterator[Vector]:
    where = "trl/trainer/grpo_trainer.py:GRPOTrainer._compute_loss"
    run = source.passage(
        "trl/trainer/grpo_trainer.py",
        "GRPOTrainer._compute_loss",
        "log_ratio = per_token_logps",
        "if self.loss_type in ['grpo', 'sapo']",
    )

    def loss_of(
        batch: dict[str, Any],
        given: torch.Tensor,
        *,
        beta: float = 0.0,
        correct: bool = True,
        weighted: bool = False,
        **settings: Any,
    ) -> torch.Tensor:
        share = settings.pop("entropy_share", 1.0)
        entropy_mask = source.get_high_entropy_mask(
            SimpleNamespace(
                accelerator=SimpleNamespace(pad_across_processes=lambda each, **_: each, gather=lambda each: each)
            ),
            batch["entropy_BT"],
            batch["mask_BT"].float(),
            1 - share,
        )
        limit = settings.pop("off_policy", None)
        off_policy_mask = None
        if limit is not None:
            off_policy_mask = source.get_off_policy_mask(
                batch["advantages_BT"], given, batch["reference_BT"], batch["mask_BT"].float(), limit
            )
        trainer = SimpleNamespace(
            epsilon_low=0.2,
            beta=beta,
            off_policy_mask_threshold=limit,
            use_vllm=weighted,
            vllm_importance_sampling_correction=True,
            current_gradient_accumulation_steps=1,
            max_completion_length=20,
            accelerator=SimpleNamespace(num_processes=1),
            model=SimpleNamespace(training=True),
            args=SimpleNamespace(
                delta=settings.pop("delta", None),
                use_bias_correction_kl=correct,
                steps_per_generation=1,
                sapo_temperature_pos=1.0,
                sapo_temperature_neg=1.05,
            ),
            **settings,
        )
        mask = batch["mask_BT"].float()
        inputs = {
            "ref_per_token_logps": batch["reference_BT"],
            "num_items_in_batch": mask.sum(),
            "importance_sampling_ratio": batch["weights_BT"],
        }
        found: torch.Tensor = run(
            self=trainer,
            per_token_logps=given,
            old_per_token_logps=batch["old_BT"],
            mask=mask,
            inputs=inputs,
            advantages=batch["advantages_BT"],
            entropy_mask=None if share == 1 else entropy_mask,
            off_policy_mask=off_policy_mask,
        )["loss"]
        return found

    kinds = [("clip", kind, "token", delta) for kind in TRL_LOSSES for delta in (None, 1.5)]
    kinds += [("gspo", "grpo", "sequence", None), ("gspo", "grpo", "sequence", 1.5), ("cispo", "cispo", "token", None)]
    for (name, kind, level, delta), extreme, weighted in itertools.product(kinds, (False, True), (False, True)):
        batch = update(extreme=extreme, per_answer=True)
        high = 2.0 if name == "cispo" else 0.28
        given = leaf(batch, "logprobs_BT")
        loss = loss_of(
            batch,
            given,
            weighted=weighted,
            loss_type=kind,
            importance_sampling_level=level,
            delta=delta,
            epsilon_high=high,
        )
        ours = {
            "name": name,
            "low": 0.2,
            "high": high,
            "dual": delta,
            "mode": TRL_LOSSES.get(kind, "token-mean"),
            "scale": 20.0 if kind == "dr_grpo" else None,
            "weighted": weighted,
        }
        yield vector("loss", where, ours, batch, loss=loss.detach(), d_logprobs=gradient(loss, given))
    extras: list[tuple[str, str, dict[str, Any]]] = [
        ("sapo", "sapo", {}),
        ("clip", "dapo", {"off_policy": 0.1}),
        ("clip", "grpo", {"off_policy": -0.1}),
        ("clip", "dapo", {"entropy_share": 0.2}),
        ("clip", "grpo", {"entropy_share": 0.5}),
    ]
    for name, kind, extra in extras:
        batch = update(per_answer=True)
        given = leaf(batch, "logprobs_BT")
        loss = loss_of(batch, given, loss_type=kind, importance_sampling_level="token", epsilon_high=0.28, **extra)
        mode = TRL_LOSSES.get(kind, "seq-mean-token-mean")
        ours = {"name": name, "low": 0.2, "high": 0.28, "mode": mode, "scale": None, "weighted": False, **extra}
        yield vector("loss", where, ours, batch, loss=loss.detach(), d_logprobs=gradient(loss, given))
    for kind, correct, extreme in itertools.product(("grpo", "dapo"), (True, False), (False, True)):
        batch = update(per_answer=True)
        if extreme:
            batch["reference_BT"][0, :2] += torch.tensor([5.0, -12.0])
        given = leaf(batch, "logprobs_BT")
        without = batch | {"advantages_BT": torch.zeros_like(batch["advantages_BT"])}
        loss = loss_of(
            without,
            given,
            beta=0.04,
            correct=correct,
            loss_type=kind,
            importance_sampling_level="token",
            epsilon_high=0.28,
        )
        ours = {"name": "k3", "mode": TRL_LOSSES[kind], "coef": 0.04, "with_old": correct}
        yield vector("kl", where, ours, without, loss=loss.detach(), d_logprobs=gradient(loss, given))


def others(source: Source) -> Iterator[Vector]:
    run = source.passage(
        "trl/trainer/grpo_trainer.py",
        "GRPOTrainer._generate_and_score_completions",
        "mask = completion_mask if tool_mask is None",
        "if self.vllm_importance_sampling_mode in",
    )
    for level, (bound, floor), with_nan in itertools.product(
        ("token", "sequence"), (("truncate", 0.0), ("mask", 0.0), ("mask", 0.5)), (False, True)
    ):
        batch = update()
        if with_nan:
            batch["old_BT"][0, 0] = torch.nan
        trainer = SimpleNamespace(
            vllm_importance_sampling_mode=f"{level}_{bound}",
            vllm_importance_sampling_clip_max=1.5,
            vllm_importance_sampling_clip_min=floor or None,
        )
        after = run(
            self=trainer,
            completion_mask=batch["mask_BT"].float(),
            tool_mask=None,
            old_per_token_logps=batch["logprobs_BT"],
            sampling_per_token_logps=batch["old_BT"],
        )
        weights_BT = torch.where(batch["mask_BT"], after["vllm_importance_sampling_ratio"], 0.0)
        ours = {"level": level, "cap": 1.5, "floor": floor, "bound": bound}
        yield vector(
            "correction",
            "trl/trainer/grpo_trainer.py:GRPOTrainer._generate_and_score_completions",
            ours,
            batch,
            weights_BT=weights_BT,
        )
    source.borrow("trl/trainer/utils.py", "selective_log_softmax", "entropy_from_logits")
    yield from logprob_vectors(
        "trl/trainer/utils.py:selective_log_softmax, entropy_from_logits",
        source.selective_log_softmax,
        source.entropy_from_logits,
    )


MAKERS = (advantages, losses, others)
