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
        "compute_rollout_correction_weights",
        "compute_is_metrics",
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


MAKERS = (advantages, losses, others)
