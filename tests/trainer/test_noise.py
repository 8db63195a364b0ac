"""Noise on the sampler's weights: how much when, on which parameters, and on nobody else's bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer import models
from trainer.config import parse
from trainer.engines.engine import BuiltinEngine
from trainer.models.decoder import Decoder
from trainer.noise import NoMatch, deviation, deviations, has_experts, noisy, start, touched
from trainer.sections import Noise

QERL = [0, 0.05, 0.0281, 0.0158, 0.00889, 0.005, 0.00281, 0.00158, 0.000889, 0.0005]


class TinyRMSNorm(nn.Module):
    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class Layer(nn.Module):
    def __init__(self, *, has_router: bool) -> None:
        super().__init__()
        self.input_layernorm = TinyRMSNorm()
        self.post_attention_layernorm = TinyRMSNorm()
        self.q_proj = nn.Linear(3, 3)
        if has_router:
            self.experts = nn.ModuleList([nn.Linear(3, 3)])


def model(*, is_moe: bool = False) -> nn.Module:
    made = nn.Module()
    made.layers = nn.ModuleList([Layer(has_router=is_moe), Layer(has_router=is_moe)])
    made.norm = TinyRMSNorm()
    return made


DENSE = [
    "layers.0.input_layernorm.weight",
    "layers.0.post_attention_layernorm.weight",
    "layers.1.input_layernorm.weight",
    "layers.1.post_attention_layernorm.weight",
    "norm.weight",
]


def qerl_sigma(step: int, total: int, trend: list[float]) -> float:
    """QeRL's own way to a stage, in floats: slow and obvious."""
    interval = int(min(step, total) // (total / (len(trend) + 1)))
    return 0.0 if interval == 0 else trend[min(interval - 1, len(trend) - 1)]


def test_ten_geometric_stages_are_the_published_ones() -> None:
    assert deviations(Noise(0.05, 0.0005, 10)) == pytest.approx(QERL, rel=2e-3)


def test_linear_stages_have_equal_differences() -> None:
    assert deviations(Noise(0.5, 0.1, 6, "linear")) == pytest.approx([0, 0.5, 0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize("total", [10, 30, 100, 240])
def test_each_step_has_the_deviation_that_qerls_code_gives_it(total: int) -> None:
    noise = Noise(0.05, 0.0005, 10)
    trend = [0.05 * (0.0005 / 0.05) ** (index / 8) for index in range(9)]
    ours = [deviation(noise, step, total) for step in range(total + 1)]
    assert ours == pytest.approx([qerl_sigma(step, total, trend) for step in range(total + 1)])
    assert (ours[0], ours[total]) == (0.0, pytest.approx(0.0005))


def test_one_stage_is_constant_and_two_are_silence_then_start() -> None:
    assert [deviation(Noise(0.05, 0.01, 1), step, 4) for step in range(5)] == [0.05] * 5
    assert [deviation(Noise(0.05, 0.01, 2), step, 4) for step in range(5)] == [0, 0, 0.05, 0.05, 0.05]


@pytest.mark.parametrize("stages", [0, 1, 2, 3, 10])
def test_a_run_of_no_steps_and_one_of_fewer_steps_than_stages_have_a_deviation(stages: int) -> None:
    noise = Noise(0.05, 0.01, stages)
    assert deviation(noise, 0, 0) == (0.05 if stages == 1 else 0.0)
    assert deviation(noise, 3, 3) == pytest.approx({0: 0.0, 1: 0.05, 2: 0.05}.get(stages, 0.01))


def test_an_end_or_start_of_zero_divides_by_nothing() -> None:
    assert deviations(Noise(0.05, 0.0, 4)) == [0.0, 0.05, 0.0, 0.0]
    assert deviations(Noise(0.0, 0.01, 4)) == [0.0, 0.0, 0.0, 0.0]


def test_a_dense_model_gets_noise_on_every_norm() -> None:
    assert list(touched(model())) == DENSE


def test_a_mixture_of_experts_gets_it_only_after_the_attention() -> None:
    made = model(is_moe=True)
    assert (has_experts(made), has_experts(model())) == (True, False)
    assert list(touched(made)) == [f"layers.{layer}.post_attention_layernorm.weight" for layer in (0, 1)]


def test_targets_choose_the_class_or_parts_of_names_and_excludes_win() -> None:
    assert list(touched(model(), targets=["linear"])) == ["layers.0.q_proj.weight", "layers.1.q_proj.weight"]
    assert list(touched(model(), targets=["Linear", "layers.1"])) == ["layers.1.q_proj.weight"]
    assert list(touched(model(), targets=["layernorm"], excludes=["input_", "layers.0"])) == [DENSE[3]]
    assert list(touched(model(), targets=["RMSNorm", "linear"], excludes=["layers"])) == ["norm.weight"]


@pytest.mark.parametrize(("targets", "excludes"), [(["nowhere"], []), ([], ["norm"]), (["rmsnorm", "q_proj"], [])])
def test_no_match_is_an_error_that_lists_what_there_is(targets: list[str], excludes: list[str]) -> None:
    with pytest.raises(NoMatch, match=r"layers\.0\.input_layernorm\.weight"):
        touched(model(), targets=targets, excludes=excludes)


def test_a_name_that_the_weights_lack_is_an_error() -> None:
    with pytest.raises(NoMatch, match="other"):
        noisy({"norm.weight": torch.ones(3)}, ["other"], 0.1, seed=0, step=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_noise_is_added_to_a_copy_and_the_given_weights_keep_their_bits(dtype: torch.dtype) -> None:
    weights = {"a": torch.full((40_000,), 2.0, dtype=dtype), "b": torch.ones(3, dtype=dtype)}
    before = {name: weight.clone() for name, weight in weights.items()}
    given = noisy(weights, ["a"], 0.05, seed=1, step=2)
    assert all(torch.equal(weights[name], before[name]) for name in weights)
    assert (given["b"] is weights["b"], given["a"].dtype) == (True, dtype)
    added = given["a"].double() - 2.0
    assert float(added.mean()) == pytest.approx(0.0, abs=2e-3)  # deviation of the mean 0.00025
    assert float(added.std()) == pytest.approx(0.05, rel=0.05)


def test_a_draw_depends_on_seed_step_and_name_only() -> None:
    weights = {name: torch.zeros(8) for name in "ab"}
    both, alone = (noisy(weights, names, 0.1, seed=1, step=2) for names in (["b", "a"], ["a"]))
    assert torch.equal(both["a"], alone["a"])
    others = [both["b"], *(noisy(weights, ["a"], 0.1, seed=s, step=t)["a"] for s, t in ((1, 3), (2, 2)))]
    assert not any(torch.equal(alone["a"], other) for other in others)


def test_a_configuration_starts_it_and_touches_what_it_names() -> None:
    config = parse(["noise_stages=2", "noise_start=0.1", "steps=4", "noise_targets=post_, layers.0"], devices=("cpu",))
    injection = start(config, model())
    assert injection is not None
    assert (injection.sigma(0), injection.sigma(2)) == (0.0, 0.1)
    weights = {name: torch.ones(3) for name in DENSE}
    assert all(noisy is weights[name] for name, noisy in injection.apply_each(weights.items(), 0))
    noisy = injection.apply_each(weights.items(), 3)
    assert [name for name, weight in noisy if not torch.equal(weight, weights[name])] == [*DENSE[:2], DENSE[3]]


def test_no_stages_means_no_injection() -> None:
    assert start(parse([], devices=("cpu",)), model()) is None


def test_after_validations_clean_weights_the_sampler_holds_the_learners_bits() -> None:
    config = parse(["noise_stages=1", "hidden=8"], devices=("cpu",))
    policy, sampled = (models.build(config, 19, seed=0, device=torch.device("cpu")) for _ in range(2))
    assert isinstance(sampled, Decoder)
    engine, injection = BuiltinEngine(sampled, end=18, seed=0), start(config, policy)
    assert injection is not None
    learnt = dict(policy.named_parameters())
    before = {name: weight.detach().clone() for name, weight in learnt.items()}
    engine.load_weights(dict(injection.apply_each(learnt.items(), 1)))
    different = [name for name, weight in engine.weights().items() if not torch.equal(weight, before[name])]
    assert different == list(injection.names)
    engine.load_weights(learnt)
    assert all(torch.equal(engine.weights()[name], weight) for name, weight in before.items())
    assert all(torch.equal(learnt[name], weight) for name, weight in before.items())
