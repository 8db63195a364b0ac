"""Vectors from verl's core_algos, rollout_corr_helper and torch_functional."""

from __future__ import annotations

import ast
import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

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
    tools = Source(folder)
    tools.borrow(
        "verl/utils/torch_functional.py",
        "masked_sum",
        "masked_mean",
        "masked_var",
        "masked_whiten",
        "clip_by_value",
        "logprobs_from_logits_v2",
        "entropy_from_logits",
    )
    kind = type("ActorConfig", (SimpleNamespace,), {"get": lambda self, name, other=None: getattr(self, name, other)})
    other = type("AlgoConfig", (SimpleNamespace,), {})
    source = Source(folder, {"verl_F": tools, "ActorConfig": kind, "AlgoConfig": other, "DictConfig": dict})
    core = "verl/trainer/ppo/core_algos.py"
    names = [node.name for node in ast.parse((folder / core).read_text()).body if isinstance(node, ast.FunctionDef)]
    source.borrow(core, *[name for name in names if name.startswith(("compute_", "agg_loss", "kl_penalty"))])
    source.borrow(
        "verl/trainer/ppo/rollout_corr_helper.py",
        "SAFETY_BOUND",
        "_parse_rollout_is_threshold",
        "_parse_rollout_rs_thresholds",
        "SUPPORTED_ROLLOUT_RS_OPTIONS",
        "TOKEN_LEVEL_ROLLOUT_RS_OPTIONS",
        "compute_rollout_correction_weights",
        "compute_rollout_rejection_mask",
        "compute_is_metrics",
        "compute_rs_metrics",
    )
    return source


def advantages(source: Source) -> Iterator[Vector]:
    mask = {"response_mask": None, "token_level_rewards": None}
    estimators: list[tuple[str, str, dict[str, Any]]] = [
        ("grpo", "compute_grpo_outcome_advantage", {}),
        ("grpo", "compute_grpo_outcome_advantage", {"scale_by_std": False}),
        ("rloo", "compute_rloo_outcome_advantage", {}),
        ("opo", "compute_opo_outcome_advantage", {}),
        ("reinforce_plus_plus", "compute_reinforce_plus_plus_outcome_advantage", {"gamma": 0.9}),
        ("reinforce_plus_plus", "compute_reinforce_plus_plus_outcome_advantage", {"gamma": 1.0}),
        ("reinforce_plus_plus_baseline", "compute_reinforce_plus_plus_baseline_outcome_advantage", {}),
        ("gae", "compute_gae_advantage_return", {"gamma": 0.97, "lam": 0.9}),
        ("gae", "compute_gae_advantage_return", {"gamma": 1.0, "lam": 1.0}),
    ]
    for seed, (name, function, settings) in itertools.product((0, 1), estimators):
        batch = step(seed=seed)
        mask = {"token_level_rewards": batch["token_rewards_BT"].clone(), "response_mask": batch["mask_BT"].float()}
        if name == "gae":
            extra = {"values": batch["values_BT"], "gamma": settings["gamma"], "lam": settings["lam"]}
        elif name == "reinforce_plus_plus":
            extra = {"config": SimpleNamespace(gamma=settings["gamma"])}
        else:
            extra = {"index": batch["group_B"].numpy()}
            if name == "grpo":
                extra["norm_adv_by_std_in_grpo"] = settings.get("scale_by_std", True)
        advantages_BT, returns_BT = source.known[function](**mask, **extra)
        # What verl leaves outside the mask no loss of its own reads.
        results = {"advantages_BT": torch.where(batch["mask_BT"], advantages_BT, 0.0)}
        if name in ("gae", "reinforce_plus_plus"):
            results["returns_BT"] = torch.where(batch["mask_BT"], returns_BT, 0.0)
        ours = {"name": name, **settings}
        yield vector("advantages", f"verl/trainer/ppo/core_algos.py:{function}", ours, batch, **results)


def more_advantages(source: Source) -> Iterator[Vector]:
    core = "verl/trainer/ppo/core_algos.py"
    plain, turns = "compute_optimal_token_baseline_advantage", "compute_multi_turn_optimal_token_baseline_advantage"
    estimators: list[tuple[str, str, dict[str, Any]]] = [
        ("grpo_passk", "compute_grpo_passk_outcome_advantage", {"scale_by_std": True}),
        ("grpo_passk", "compute_grpo_passk_outcome_advantage", {"scale_by_std": False}),
        ("gpg", "compute_gpg_outcome_advantage", {}),
        ("remax", "compute_remax_outcome_advantage", {}),
        ("gdpo", "compute_gdpo_outcome_advantage", {}),
        ("gdpo", "compute_gdpo_outcome_advantage", {"part_weights": [1.0, 0.5, 2.0]}),
        ("optimal_token_baseline", plain, {}),
        ("optimal_token_baseline", turns, {}),
    ]
    for seed, (name, function, settings) in itertools.product((0, 1), estimators):
        groups = (3, 3, 2) if name == "grpo_passk" else (3, 3, 1, 2)
        batch = step(observations=function != plain, groups=groups, seed=seed)
        if name == "gpg":
            batch["token_rewards_BT"][3:5] = 0.0
        mask_BT = batch["mask_BT"].float()
        given: dict[str, Any] = {"token_level_rewards": batch["token_rewards_BT"].clone(), "response_mask": mask_BT}
        given["index"] = batch["group_B"].numpy()
        if name == "grpo_passk":
            given["config"] = {"norm_adv_by_std_in_grpo": settings["scale_by_std"]}
        elif name == "remax":
            given["reward_baselines"] = batch["baselines_B"]
        elif name == "optimal_token_baseline":
            given |= {"old_log_probs": batch["logprobs_BT"], "sum_pi_squared": batch["sum_pi_squared_BT"]}
        elif name == "gdpo":
            keys = ["a", "b", "c"]
            given["config"] = {"gdpo_reward_keys": keys, "gdpo_reward_weights": settings.get("part_weights")}
            given["non_tensor_batch"] = {key: batch["parts_BK"][:, at].numpy() for at, key in enumerate(keys)}
            attention_BT = (torch.arange(mask_BT.shape[1] + 1) <= batch["lengths_B"].unsqueeze(1)).long()
            given["batch"] = {"prompts": torch.zeros(len(mask_BT), 1), "attention_mask": attention_BT}
        advantages_BT, returns_BT = source.known[function](**given)
        results = {"advantages_BT": torch.where(batch["mask_BT"], advantages_BT, 0.0)}
        if name in ("remax", "optimal_token_baseline"):
            results["returns_BT"] = torch.where(batch["mask_BT"], returns_BT, 0.0)
        yield vector("advantages", f"{core}:{function}", {"name": name, **settings}, batch, **results)


def more_losses(source: Source) -> Iterator[Vector]:
    cov = {"cov_ratio": 0.2, "clip_cov_low": -1.0, "clip_cov_high": 5.0, "kl_cov_coef": 0.3}
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("gpg", "compute_policy_loss_gpg", {}),
        ("gmpo", "compute_policy_loss_geo_mean", {}),
        ("sapo", "compute_policy_loss_sapo", {"tau_pos": 1.0, "tau_neg": 1.05}),
        ("sapo", "compute_policy_loss_sapo", {"tau_pos": 2.0, "tau_neg": 0.5}),
        ("clip_cov", "compute_policy_loss_clip_cov", cov),
        ("clip_cov", "compute_policy_loss_clip_cov", {**cov, "cov_ratio": 0.0002}),
        ("kl_cov", "compute_policy_loss_kl_cov", cov),
        ("kl_cov", "compute_policy_loss_kl_cov", {**cov, "cov_ratio": 0.0002}),
        ("dppo_tv", "compute_policy_loss_dppo_tv", {"dual": 3.0}),
        ("dppo_kl", "compute_policy_loss_dppo_kl", {"dual": 3.0}),
    ]
    fixed = {"gmpo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean"}
    for (name, function, extra), weighted in itertools.product(kinds, (False, True)):
        if name == "gmpo" and weighted:
            continue
        batch = update(extreme=name != "gmpo" and not name.endswith("_cov"), per_answer=name == "gmpo")
        if name == "gmpo":  # its mean counts rows without tokens
            has_tokens_B = batch["mask_BT"].any(dim=1)
            batch = {key: value[has_tokens_B] for key, value in batch.items()}
        low, high = (0.05, 0.03) if name.startswith("dppo") else (0.2, 0.28)
        mode = fixed.get(name, "seq-mean-token-sum" if weighted else "token-mean")
        config = source.ActorConfig(
            clip_ratio=0.2,
            clip_ratio_low=low,
            clip_ratio_high=high,
            clip_ratio_c=extra.get("dual", 3.0),
            global_batch_info={},
            tau_pos=extra.get("tau_pos"),
            tau_neg=extra.get("tau_neg"),
            policy_loss=SimpleNamespace(
                clip_cov_ratio=extra.get("cov_ratio"),
                kl_cov_ratio=extra.get("cov_ratio"),
                clip_cov_lb=extra.get("clip_cov_low"),
                clip_cov_ub=extra.get("clip_cov_high"),
                ppo_kl_coef=extra.get("kl_cov_coef"),
            ),
        )
        given = leaf(batch, "logprobs_BT")
        torch.manual_seed(0)  # clip_cov draws
        loss, _ = source.known[function](
            old_log_prob=batch["old_BT"],
            log_prob=given,
            advantages=batch["advantages_BT"],
            response_mask=batch["mask_BT"].float(),
            loss_agg_mode=mode,
            config=config,
            rollout_is_weights=batch["weights_BT"] if weighted else None,
        )
        ours = {"name": name, "low": low, "high": high, "mode": mode, "scale": None, "weighted": weighted, **extra}
        yield vector(
            "loss",
            f"verl/trainer/ppo/core_algos.py:{function}",
            ours,
            batch,
            loss=loss.detach(),
            d_logprobs=gradient(loss, given),
        )


def rejections(source: Source) -> Iterator[Vector]:
    forms = [f"{level}_{kind}" for level in ("token", "seq_sum", "seq_mean") for kind in ("k1", "k2", "k3")]
    bounds = {
        "token": ("0.8_1.3", "1.2", "0.05"),
        "seq_sum": ("0.5_1.5", "2.0", "0.3"),
        "seq_mean": ("1.1", "1.1", "0.05"),
    }
    cases = [(form, bounds[form[:-3]][int(form[-1]) - 1]) for form in forms]
    cases += [("seq_max_k2", "0.3"), ("seq_max_k3", "0.2"), ("token_k1,seq_max_k3", "0.7_1.5,0.5"), ("token_k1", "1.2")]
    for (option, threshold), extreme in itertools.product(cases, (False, True)):
        batch = update(extreme=extreme)
        mask_BT, _ = source.compute_rollout_rejection_mask(
            batch["logprobs_BT"] - batch["old_BT"], batch["mask_BT"].float(), option, threshold
        )
        yield vector(
            "rejection",
            "verl/trainer/ppo/rollout_corr_helper.py:compute_rollout_rejection_mask",
            {"forms": option, "thresholds": threshold},
            batch,
            mask_BT=mask_BT,
        )


def losses(source: Source) -> Iterator[Vector]:
    kinds: list[tuple[str, str, float | None]] = [
        ("clip", "compute_policy_loss_vanilla", 3.0),
        ("clip", "compute_policy_loss_vanilla", 1.4),
        ("gspo", "compute_policy_loss_gspo", None),
        ("cispo", "compute_policy_loss_cispo", None),
        ("plain", "compute_policy_loss_reinforce", None),
    ]
    for (name, function, dual), mode, extreme, weighted in itertools.product(
        kinds, MODES, (False, True), (False, True)
    ):
        if name == "gspo" and mode != "seq-mean-token-mean":
            continue
        batch = update(extreme=extreme)
        scale = 5.0 if weighted and mode == "seq-mean-token-sum-norm" else None
        config = source.ActorConfig(
            clip_ratio=0.2,
            clip_ratio_low=0.2,
            clip_ratio_high=0.28,
            clip_ratio_c=dual or 3.0,
            global_batch_info={"loss_scale_factor": scale},
        )
        given = leaf(batch, "logprobs_BT")
        old = "rollout_log_prob" if name == "plain" else "old_log_prob"
        loss, _ = source.known[function](
            **{old: batch["old_BT"]},
            log_prob=given,
            advantages=batch["advantages_BT"],
            response_mask=batch["mask_BT"].float(),
            loss_agg_mode=mode,
            config=config,
            rollout_is_weights=batch["weights_BT"] if weighted else None,
        )
        ours = {
            "name": name,
            "low": 0.2,
            "high": 0.28,
            "dual": dual,
            "mode": mode,
            "scale": scale,
            "weighted": weighted,
        }
        yield vector(
            "loss",
            f"verl/trainer/ppo/core_algos.py:{function}",
            ours,
            batch,
            loss=loss.detach(),
            d_logprobs=gradient(loss, given),
        )


def others(source: Source) -> Iterator[Vector]:
    core = "verl/trainer/ppo/core_algos.py"
    for name, mode, extreme in itertools.product(
        ("k1", "abs", "k2", "k3", "low_var", "k3+", "k1+"), MODES, (False, True)
    ):
        batch = update(extreme=extreme)
        given = leaf(batch, "logprobs_BT")
        kl_BT = source.kl_penalty(given, batch["reference_BT"], "low_var_kl" if name == "low_var" else name)
        loss = source.agg_loss(kl_BT, batch["mask_BT"].float(), mode)
        yield vector(
            "kl",
            f"{core}:kl_penalty",
            {"name": name, "mode": mode, "coef": 1.0},
            batch,
            loss=loss.detach(),
            d_logprobs=gradient(loss, given),
        )
    for clip, mode in itertools.product((0.2, 1.0), MODES):
        batch = step()
        given, returns_BT = leaf(batch, "values_BT"), batch["values_BT"].flip(0)
        old_BT = batch["values_BT"].roll(1, 0) * 0.3 + batch["values_BT"] * 0.7
        loss, clipped = source.compute_value_loss(given, returns_BT, old_BT, batch["mask_BT"].float(), clip, mode)
        inputs = {"values_BT": batch["values_BT"], "returns_BT": returns_BT, "old_BT": old_BT}
        yield vector(
            "value",
            f"{core}:compute_value_loss",
            {"clip": clip, "mode": mode},
            inputs | {"mask_BT": batch["mask_BT"]},
            loss=loss.detach(),
            clipped=clipped,
            d_values=gradient(loss, given),
        )
    for level, (bound, floor, cap), extreme in itertools.product(
        ("token", "sequence"), (("truncate", 0.0, 2.0), ("mask", 0.5, 1.5)), (False, True)
    ):
        batch = update(extreme=extreme)
        weights_BT, _ = source.compute_rollout_correction_weights(
            batch["logprobs_BT"] - batch["old_BT"],
            batch["mask_BT"].float(),
            level,
            f"{floor}_{cap}" if bound == "mask" else cap,
        )
        ours = {"level": level, "cap": cap, "floor": floor, "bound": bound}
        yield vector(
            "correction",
            "verl/trainer/ppo/rollout_corr_helper.py:compute_rollout_correction_weights",
            ours,
            batch,
            weights_BT=weights_BT,
        )
    tools = source.verl_F
    yield from logprob_vectors(
        "verl/utils/torch_functional.py:logprobs_from_logits_v2, entropy_from_logits",
        tools.logprobs_from_logits_v2,
        tools.entropy_from_logits,
    )
    control = Source(source.folder)
    for node in ast.parse((source.folder / core).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "AdaptiveKLController":
            exec(compile(ast.Module([node], []), core, "exec"), control.known)
    controller = control.AdaptiveKLController(0.1, 0.05, 1000)
    inputs = {"kl": [0.5, 0.051, 0.01, 0.0, 0.05], "rows": [64, 64, 128, 500, 64]}
    coefs = []
    for kl, rows in zip(inputs["kl"], inputs["rows"]):
        controller.update(kl, rows)
        coefs.append(float(controller.value))
    ours = {"coef": 0.1, "target": 0.05, "horizon": 1000}
    yield vector("controller", f"{core}:AdaptiveKLController", ours, inputs, coefs=coefs)


MAKERS = (advantages, more_advantages, losses, more_losses, rejections, others)
