"""What must hold of every loss, aggregation and estimator: cuts, padding and order of the rows change nothing."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.algorithms.algorithm_cases import advantages, token_logprobs
from trainer import sections
from trainer.algorithms.advantages import EstimatorInputs
from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.losses import (
    DIVERGENCES,
    MODES,
    LossSettings,
    Totals,
    aggregate,
    count,
    divergence,
    policy_loss,
)
from trainer.algorithms.policy_losses import correction
from trainer.metrics.step import explained_variance
from trainer.models.critic import value_loss
from trainer.registry import ESTIMATORS, LOSSES, find

ROWS, WIDTH, HIDDEN, VOCABULARY = 10, 8, 5, 13
Batch = dict[str, Tensor]


def rows(seed: int = 0) -> Batch:
    """Rows of unequal length, one of them empty, one with a hole."""
    generator = torch.Generator().manual_seed(seed)
    lengths_B = torch.randint(1, WIDTH + 1, (ROWS,), generator=generator)
    lengths_B[0], lengths_B[3] = WIDTH, 0
    mask_BT = torch.arange(WIDTH) < lengths_B.unsqueeze(1)
    mask_BT[0, 3] = False
    old_BT = -2.5 + 0.3 * torch.randn(ROWS, WIDTH, generator=generator)
    return {
        "inputs_BTH": torch.randn(ROWS, WIDTH, HIDDEN, generator=generator),
        "tokens_BT": torch.randint(0, VOCABULARY, (ROWS, WIDTH), generator=generator),
        "old_BT": old_BT,
        "reference_BT": old_BT + 0.2 * torch.randn(ROWS, WIDTH, generator=generator),
        "advantages_BT": torch.randn(ROWS, WIDTH, generator=generator),
        "weights_BT": torch.rand(ROWS, WIDTH, generator=generator) * 2,
        "lengths_B": lengths_B,
        "mask_BT": mask_BT,
    }


def take(batch: Batch, numbers: Tensor, *, trim: bool) -> Batch:
    width = max(1, int(batch["lengths_B"][numbers].max())) if trim else WIDTH
    return {name: value[numbers] if value.dim() == 1 else value[numbers, :width] for name, value in batch.items()}


def padded(batch: Batch, columns: int, value: float) -> Batch:
    """The same rows with more columns on the right, which hold a value (floats) or nothing."""

    def wider(tensor: Tensor) -> Tensor:
        if tensor.dim() == 1:
            return tensor
        filling = value if tensor.is_floating_point() else 0
        return torch.cat([tensor, tensor.new_full((len(tensor), columns, *tensor.shape[2:]), filling)], dim=1)

    # The model's own last product multiplies its inputs by the gradient of the logits: those cannot be NaN.
    return {name: wider(tensor) for name, tensor in batch.items()} | {
        "inputs_BTH": wider(batch["inputs_BTH"]).nan_to_num()
    }


def share(weight_HV: Tensor, batch: Batch, totals: Totals, *, loss: str, mode: str, convention: str) -> Tensor:
    """One part's share of a loss with every term: policy, divergence, entropy."""
    theirs, mask_BT = CONVENTIONS[convention], batch["mask_BT"]
    logprobs_BT, entropy_BT = token_logprobs(batch["inputs_BTH"] @ weight_HV, batch["tokens_BT"], temperature=0.9)
    losses_BT = policy_loss(
        find(LOSSES, loss),
        logprobs_BT,
        batch["old_BT"],
        batch["advantages_BT"],
        mask_BT,
        settings=LossSettings(0.2, 0.28, 3.0),
        convention=theirs,
        weights_BT=batch["weights_BT"],
    ).losses_BT
    kl_BT = divergence("k3", logprobs_BT, batch["reference_BT"], theirs, mask_BT=mask_BT, old_BT=batch["old_BT"])
    return aggregate(losses_BT + 0.1 * kl_BT - 0.01 * entropy_BT, mask_BT, mode, totals)


def gradient(parts: list[Batch], totals: Totals, **settings: str) -> Tensor:
    weight_HV = torch.randn(HIDDEN, VOCABULARY, generator=torch.Generator().manual_seed(9)).requires_grad_()
    for part in parts:
        share(weight_HV, part, totals, **settings).backward()
    assert weight_HV.grad is not None
    return weight_HV.grad


# Those by covariance choose among the tokens of a forward pass.
COMBINATIONS = list(itertools.product([name for name in LOSSES if not name.endswith("_cov")], MODES, CONVENTIONS))


@pytest.mark.parametrize(("loss", "mode", "convention"), COMBINATIONS)
@pytest.mark.one_in(4)
def test_the_gradient_does_not_depend_on_cut_order_or_padding(loss: str, mode: str, convention: str) -> None:
    batch, names = rows(), {"loss": loss, "mode": mode, "convention": convention}
    totals = count(batch["mask_BT"], CONVENTIONS[convention])
    whole = gradient([batch], totals, **names)
    assert whole.abs().max() > 1e-3
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(4))
    for sizes in ([1] * ROWS, [3, 7], [4, 4, 2]):
        parts = [take(batch, numbers, trim=True) for numbers in torch.split(order, sizes)]
        assert torch.allclose(gradient(parts, totals, **names), whole, rtol=1e-5, atol=1e-6)
    for value in (0.0, float("nan")):
        assert torch.allclose(gradient([padded(batch, 5, value)], totals, **names), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_counting_per_part_would_change_the_gradient(mode: str) -> None:
    batch, convention = rows(), CONVENTIONS["verl"]
    names = {"loss": "clip", "mode": mode, "convention": "verl"}
    whole = gradient([batch], count(batch["mask_BT"], convention), **names)
    parts = [take(batch, numbers, trim=True) for numbers in torch.arange(ROWS).split([3, 7])]
    wrong = sum(gradient([part], count(part["mask_BT"], convention), **names) for part in parts) / 2
    assert (wrong - whole).abs().max() > 1e-3


@pytest.mark.parametrize(("loss", "mode", "convention"), COMBINATIONS)
@pytest.mark.one_in(4)
def test_nan_where_the_mask_is_off_reaches_neither_loss_nor_gradient(loss: str, mode: str, convention: str) -> None:
    batch, names = rows(), {"loss": loss, "mode": mode, "convention": convention}
    totals = count(batch["mask_BT"], CONVENTIONS[convention])
    poisoned = {
        name: tensor.masked_fill(~(batch["mask_BT"] if tensor.dim() == 2 else batch["mask_BT"].unsqueeze(2)), torch.nan)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in batch.items()
    }
    poisoned["inputs_BTH"] = batch["inputs_BTH"]
    assert torch.equal(gradient([poisoned], totals, **names), gradient([batch], totals, **names))


def scores(seed: int = 0) -> EstimatorInputs:
    batch = rows(seed)
    generator = torch.Generator().manual_seed(seed + 50)
    token_rewards_BT = torch.zeros(ROWS, WIDTH)
    last_B = (batch["lengths_B"] - 1) % WIDTH
    token_rewards_BT[torch.arange(ROWS), last_B] = torch.rand(ROWS, generator=generator)
    group_B = torch.tensor([0, 0, 0, 1, 1, 1, 2, 3, 3, 3])
    return EstimatorInputs(
        token_rewards_BT,
        batch["mask_BT"],
        group_B,
        values_BT=torch.randn(ROWS, WIDTH, generator=generator),
        logprobs_BT=-torch.rand(ROWS, WIDTH, generator=generator),
        sum_pi_squared_BT=torch.rand(ROWS, WIDTH, generator=generator),
        baselines_B=torch.rand(4, generator=generator)[group_B],
        parts_BK=torch.rand(ROWS, 2, generator=generator),
    )


EVERY_ESTIMATOR = list(itertools.product(ESTIMATORS, CONVENTIONS))
SETTINGS: dict[str, Any] = {"gamma": 0.9, "lam": 0.8}


@pytest.mark.parametrize(("name", "convention"), EVERY_ESTIMATOR)
def test_the_order_of_the_rows_and_the_numbers_of_the_groups_do_not_matter(name: str, convention: str) -> None:
    given, theirs = scores(), CONVENTIONS[convention]
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    shuffled = EstimatorInputs(**{each.name: getattr(given, each.name)[order] for each in fields(EstimatorInputs)})
    shuffled = replace(shuffled, group_B=7 - shuffled.group_B * 2)
    expected = advantages(name, given, theirs, **SETTINGS)
    result = advantages(name, shuffled, theirs, **SETTINGS)
    assert torch.allclose(result.advantages_BT, expected.advantages_BT[order], rtol=1e-5, atol=1e-6)
    if expected.returns_BT is not None:
        assert result.returns_BT is not None
        assert torch.allclose(result.returns_BT, expected.returns_BT[order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "convention"), EVERY_ESTIMATOR)
def test_padding_changes_no_advantage_even_if_it_is_nan(name: str, convention: str) -> None:
    given, theirs = scores(), CONVENTIONS[convention]
    filling_BT = torch.full((ROWS, 3), torch.nan)
    tensors = {each.name: getattr(given, each.name) for each in fields(EstimatorInputs)}
    wide = {name: torch.cat([each, filling_BT], dim=1) for name, each in tensors.items() if name.endswith("_BT")}
    wide["mask_BT"] = torch.cat([given.mask_BT, torch.zeros(ROWS, 3, dtype=torch.bool)], dim=1)
    wider = replace(given, **wide)
    expected = advantages(name, given, theirs, **SETTINGS).advantages_BT
    result = advantages(name, wider, theirs, **SETTINGS).advantages_BT
    assert torch.allclose(result[:, :WIDTH], expected, rtol=1e-5, atol=1e-6)
    assert not result[:, WIDTH:].any()
    assert not expected[~given.mask_BT].any()


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "reinforce_plus_plus_baseline", "grpo_passk"])
def test_the_same_number_on_all_rewards_of_a_group_changes_nothing(name: str, convention: str) -> None:
    given = scores()
    several_B = given.group_B != 2  # a group of one may keep its bare reward
    kept = EstimatorInputs(
        given.token_rewards_BT[several_B],
        given.mask_BT[several_B],
        given.group_B[several_B],
    )
    shift_BT = torch.where(kept.token_rewards_BT != 0, 2.0 + kept.group_B.unsqueeze(1), 0.0)
    moved = replace(kept, token_rewards_BT=kept.token_rewards_BT + shift_BT)
    expected = advantages(name, kept, CONVENTIONS[convention]).advantages_BT
    result = advantages(name, moved, CONVENTIONS[convention]).advantages_BT
    assert torch.allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", [name for name in DIVERGENCES if name != "abs"])
def test_a_divergence_is_that_of_the_slow_formula_in_float64(name: str, convention: str) -> None:
    batch, theirs = rows(), CONVENTIONS[convention]
    difference_BT = batch["reference_BT"].double() - batch["old_BT"].double()
    exact = {
        "k1": -difference_BT,
        "k2": difference_BT**2 / 2,
        "k3": difference_BT.exp() - difference_BT - 1,
    }["k3" if name == "low_var" else name.rstrip("+")]
    result = divergence(name, batch["old_BT"], batch["reference_BT"], theirs, mask_BT=batch["mask_BT"])
    assert torch.allclose(result.double(), torch.where(batch["mask_BT"], exact, 0.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("bound", ["truncate", "mask"])
def test_no_number_of_a_correction_is_touched_by_what_the_mask_hides(convention: str, level: str, bound: str) -> None:
    batch, theirs = rows(), CONVENTIONS[convention]
    hidden_BT = ~batch["mask_BT"]
    settings: dict[str, Any] = {"level": level, "cap": 1.01, "bound": bound}
    clean = correction(batch["reference_BT"], batch["old_BT"], batch["mask_BT"], theirs, **settings)
    dirty = correction(
        batch["reference_BT"].masked_fill(hidden_BT, torch.nan),
        batch["old_BT"].masked_fill(hidden_BT, torch.nan),
        batch["mask_BT"],
        theirs,
        **settings,
    )
    for name in clean.__slots__:
        assert torch.equal(getattr(clean, name), getattr(dirty, name)), name
    assert 0 < int((clean.ratios_BT > 1.01).sum()) < int(batch["mask_BT"].sum())


def test_no_number_of_a_critic_is_touched_by_what_the_mask_hides() -> None:
    batch = rows()
    mask_BT, hidden_BT = batch["mask_BT"], ~batch["mask_BT"]
    results = []
    for filling in (0.0, torch.nan):
        values_BT = batch["old_BT"].masked_fill(hidden_BT, filling).requires_grad_()
        returns_BT = batch["reference_BT"].masked_fill(hidden_BT, filling)
        losses = value_loss(
            values_BT, returns_BT, batch["weights_BT"].masked_fill(hidden_BT, filling), mask_BT, clip=0.5
        )
        (slope_BT,) = torch.autograd.grad(losses.losses_BT.sum(), values_BT)
        results.append(
            (losses.losses_BT, losses.is_clipped_BT, slope_BT, explained_variance(values_BT, returns_BT, mask_BT))
        )
    for clean, dirty in zip(*results):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize(
    ("setting", "offered"),
    [("estimator", ESTIMATORS), ("loss", LOSSES), ("aggregation", MODES), ("kl", DIVERGENCES),
     ("convention", CONVENTIONS)],
)  # fmt: skip
def test_every_variant_of_an_algorithm_is_reached_by_its_setting(setting: str, offered: Any) -> None:
    assert {*sections.SETTINGS[setting].metadata["accepted"]} == {*offered}


@pytest.mark.parametrize("table", [ESTIMATORS, LOSSES])
def test_every_row_of_the_registry_names_a_function(table: dict[str, str]) -> None:
    assert all(callable(find(table, name)) for name in table)
