"""Our functions give what verl, TRL and ROLL give: values and gradients, stored by make_vectors.py in vectors/.

Every vector runs twice: as it is, and with NaN wherever the mask is off.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.algorithms.algorithm_cases import advantages, token_logprobs
from trainer.algorithms.advantages import EstimatorInputs
from trainer.algorithms.conventions import CONVENTIONS, Convention, Rejection
from trainer.algorithms.estimators import adapted_kl_coef, whitened_and_clipped
from trainer.algorithms.losses import LossSettings, aggregate, count, divergence, policy_loss
from trainer.algorithms.policy_losses import correction, entropy_mask, off_policy_mask, rejection_mask
from trainer.models.critic import value_loss
from trainer.registry import LOSSES, find

Vector = dict[str, Any]
FLOATS = (
    *("logprobs_BT", "old_BT", "reference_BT", "advantages_BT", "weights_BT"),
    *("values_BT", "returns_BT", "sum_pi_squared_BT", "entropy_BT"),
)


def read(framework: str) -> list[Vector]:
    stored = json.loads((Path(__file__).parent / "vectors" / f"{framework}.json").read_text())
    return [each | {"inputs": stored["inputs"][each["inputs"]]} for each in stored["vectors"]]


VECTORS = {framework: read(framework) for framework in CONVENTIONS}


def batch_of(vector: Vector, *, with_nan: bool) -> dict[str, torch.Tensor]:
    batch = {name: torch.tensor(value) for name, value in vector["inputs"].items()}
    if with_nan and "mask_BT" in batch:
        for name in FLOATS:
            if name in batch:
                batch[name] = torch.where(batch["mask_BT"], batch[name], torch.nan)
        if "token_rewards_BT" in batch:  # a finite reward outside the mask counts, and one stands there
            outside_BT = ~batch["mask_BT"] & (batch["token_rewards_BT"] == 0)
            batch["token_rewards_BT"] = batch["token_rewards_BT"].masked_fill(outside_BT, torch.nan)
    return batch


def scalar(
    losses_BT: torch.Tensor, batch: dict[str, torch.Tensor], ours: Vector, convention: Convention
) -> torch.Tensor:
    totals = count(batch["mask_BT"], convention, scale=ours.get("scale"))
    return aggregate(losses_BT, batch["mask_BT"], ours["mode"], totals)


def run_advantages(batch: dict[str, torch.Tensor], ours: Vector, convention: Convention) -> dict[str, Any]:
    finish = {name: ours.pop(name) for name in ("is_whitened", "limit") if name in ours}
    scores = EstimatorInputs(**{each.name: batch[each.name] for each in fields(EstimatorInputs) if each.name in batch})
    result = advantages(ours.pop("name"), scores, convention, **ours)
    if finish:
        result = whitened_and_clipped(result, scores.mask_BT, convention, **finish)
    return {"advantages_BT": result.advantages_BT, "returns_BT": result.returns_BT}


def run_loss(batch: dict[str, torch.Tensor], ours: Vector, convention: Convention) -> dict[str, Any]:
    given = batch["logprobs_BT"].requires_grad_()
    options = {name: value for name, value in ours.items() if name in LossSettings.__dataclass_fields__}
    losses_BT = policy_loss(
        find(LOSSES, ours["name"]),
        given,
        batch["old_BT"],
        batch["advantages_BT"],
        batch["mask_BT"],
        settings=LossSettings(**options),
        convention=convention,
        weights_BT=batch["weights_BT"] if ours["weighted"] else None,
    ).losses_BT
    if "off_policy" in ours:
        learns_BT = off_policy_mask(
            given, batch["reference_BT"], batch["advantages_BT"], batch["mask_BT"], limit=ours["off_policy"]
        )
        losses_BT = torch.where(learns_BT, losses_BT, 0.0)
    if "entropy_share" in ours:
        learns_BT = entropy_mask(batch["entropy_BT"], batch["mask_BT"], share=ours["entropy_share"])
        losses_BT = torch.where(learns_BT, losses_BT, 0.0)
    loss = scalar(losses_BT, batch, ours, convention)
    return {"loss": loss.detach(), "d_logprobs": torch.autograd.grad(loss, given)[0]}


def run_kl(batch: dict[str, torch.Tensor], ours: Vector, convention: Convention) -> dict[str, Any]:
    given = batch["logprobs_BT"].requires_grad_()
    old_BT = batch["old_BT"] if ours.get("with_old") else None
    estimate_BT = divergence(
        ours["name"], given, batch["reference_BT"], convention, mask_BT=batch["mask_BT"], old_BT=old_BT
    )
    loss = ours["coef"] * scalar(estimate_BT, batch, ours, convention)
    return {"loss": loss.detach(), "d_logprobs": torch.autograd.grad(loss, given)[0]}


def run_value(batch: dict[str, torch.Tensor], ours: Vector, convention: Convention) -> dict[str, Any]:
    given = batch["values_BT"].requires_grad_()
    result = value_loss(given, batch["returns_BT"], batch["old_BT"], batch["mask_BT"], clip=ours["clip"])
    loss = scalar(result.losses_BT, batch, ours, convention)
    clipped = result.is_clipped_BT.sum() / batch["mask_BT"].sum()
    return {"loss": loss.detach(), "clipped": clipped, "d_values": torch.autograd.grad(loss, given)[0]}


def run_correction(batch: dict[str, torch.Tensor], ours: Vector, convention: Convention) -> dict[str, Any]:
    result = correction(batch["logprobs_BT"], batch["old_BT"], batch["mask_BT"], convention, **ours)
    return {"weights_BT": result.weights_BT}


def run_rejection(batch: dict[str, torch.Tensor], ours: Vector, convention: Convention) -> dict[str, Any]:
    rejections = Rejection.of(ours["forms"], ours["thresholds"])
    mask_BT = rejection_mask(batch["logprobs_BT"], batch["old_BT"], batch["mask_BT"], convention, rejections)
    return {"mask_BT": mask_BT.float()}


def run_logprobs(batch: dict[str, torch.Tensor], ours: Vector, convention: Convention) -> dict[str, Any]:
    given = batch["logits_BTV"].requires_grad_()
    logprobs_BT, entropy_BT = token_logprobs(given, batch["tokens_BT"], temperature=ours["temperature"])
    d_logprobs = torch.autograd.grad((logprobs_BT * batch["slope_BT"]).sum(), given, retain_graph=True)[0]
    d_entropy = torch.autograd.grad((entropy_BT * batch["slope_BT"]).sum(), given)[0]
    return {"logprobs_BT": logprobs_BT, "entropy_BT": entropy_BT, "d_logprobs": d_logprobs, "d_entropy": d_entropy}


def run_controller(batch: dict[str, torch.Tensor], ours: Vector, convention: Convention) -> dict[str, Any]:
    coef, coefs = ours["coef"], []
    for found, rows in zip(batch["kl"].double().tolist(), batch["rows"].tolist()):
        coef = adapted_kl_coef(coef, found, rows, target=ours["target"], horizon=ours["horizon"])
        coefs.append(coef)
    return {"coefs": torch.tensor(coefs)}


RUNS = {
    "advantages": run_advantages,
    "loss": run_loss,
    "kl": run_kl,
    "value": run_value,
    "correction": run_correction,
    "rejection": run_rejection,
    "logprobs": run_logprobs,
    "controller": run_controller,
}


@pytest.mark.parametrize("with_nan", [False, True], ids=["as-stored", "nan-outside"])
@pytest.mark.parametrize(
    ("framework", "what"),
    sorted({(framework, each["what"]) for framework, vectors in VECTORS.items() for each in vectors}),
)
def test_values_and_gradients_are_those_of_the_framework(framework: str, what: str, with_nan: bool) -> None:
    for vector in [each for each in VECTORS[framework] if each["what"] == what]:
        results = RUNS[what](batch_of(vector, with_nan=with_nan), dict(vector["ours"]), CONVENTIONS[framework])
        for name, expected in vector["outputs"].items():
            ours, theirs = results[name].detach(), torch.tensor(expected)
            error = ((ours - theirs).abs() - 1e-6 * theirs.abs()).max()
            assert error <= 1e-6, f"{vector['function']} {vector['ours']} {name}:\n{ours}\n{theirs}"
