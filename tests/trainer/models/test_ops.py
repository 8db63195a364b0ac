"""Products of bfloat16 on a CPU without instructions for them: in float32, rounded once, and saved narrow."""

from __future__ import annotations

import platform
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tests.trainer.model_cases import QWEN2, QWEN3, UNEVEN, batch_of, decoder, gradients
from trainer.algorithms.packing import make_batch
from trainer.engines.engine import BuiltinEngine, Sampling
from trainer.models import lora, ops
from trainer.types import Group, Prompt

if TYPE_CHECKING:
    from trainer.models.decoder import Decoder, Shape

NARROW = torch.bfloat16


@pytest.fixture
def widens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "multiplies_bfloat16", lambda: False)


@pytest.mark.parametrize(
    ("machine", "by_onednn", "by_instruction", "expected"),
    [
        ("x86_64", True, True, True),
        ("x86_64", True, False, False),  # AVX-512 alone: emulated
        ("x86_64", False, True, False),  # an older instruction set was asked for
        ("x86_64", True, None, False),
        ("aarch64", True, None, True),
        ("aarch64", False, None, False),
        ("x86_64", None, True, False),  # a torch without oneDNN
    ],
)
def test_bfloat16_is_multiplied_where_torch_says_that_there_are_instructions(
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    by_onednn: bool | None,
    by_instruction: bool | None,
    expected: bool,
) -> None:
    answers = {"_is_mkldnn_bf16_supported": by_onednn, "_is_avx512_bf16_supported": by_instruction}
    known: dict[str, Any] = {name: lambda is_so=is_so: is_so for name, is_so in answers.items() if is_so is not None}
    torch_of = SimpleNamespace(ops=SimpleNamespace(mkldnn=SimpleNamespace(**known)), cpu=SimpleNamespace(**known))
    monkeypatch.setattr(ops, "torch", torch_of)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert ops.multiplies_bfloat16.__wrapped__() is expected


def test_this_torch_can_tell() -> None:
    assert isinstance(torch.ops.mkldnn._is_mkldnn_bf16_supported(), bool)
    assert isinstance(torch.cpu._is_avx512_bf16_supported(), bool)


@pytest.mark.usefixtures("widens")
def test_only_bfloat16_on_a_cpu_is_widened() -> None:
    kept = torch.ones(2, dtype=torch.float16), torch.ones(2), torch.ones(2, dtype=NARROW, device="meta"), None
    for each in kept:
        assert ops.factors(each, None) == (each, None)
    wide, none = ops.factors(torch.ones(2, dtype=NARROW), None)
    assert (wide.dtype, none) == (torch.float32, None)


@pytest.mark.usefixtures("widens")
def test_a_product_is_rounded_once() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(5, 300, generator=generator).to(NARROW) for _ in range(2))
    bias = torch.randn(5, generator=generator).to(NARROW)
    exact = x.double() @ weight.double().t()
    assert torch.equal(ops.product(x, weight.t()), exact.float().to(NARROW))
    assert torch.equal(ops.linear(x, weight, bias), (exact + bias.double()).float().to(NARROW))


def made(shape: Shape, dtype: torch.dtype, *, is_adapted: bool, seed: int) -> Decoder:
    """The same numbers in each dtype: those of bfloat16."""
    model = decoder(shape, torch.float64, seed=seed)
    if is_adapted:
        lora.attach(model, rank=3, alpha=6.0, targets=["q_proj", "v_proj", "down_proj"], seed=seed)
        for _, layer in lora.adapted(model):
            torch.nn.init.constant_(layer.lora_B.weight, 0.25)
    return model.to(NARROW).to(dtype)


def learnt(model: Decoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities, and all gradients in one row."""
    found = model.token_logprobs(batch_of(*UNEVEN), temperature=0.8)
    of_weights = gradients(model, found.logprobs_BT, found.entropy_BT).values()
    assert {each.dtype for each in of_weights} == {model.output_weight.dtype}
    return found.logprobs_BT.detach().double(), torch.cat([each.double().flatten() for each in of_weights])


@pytest.mark.usefixtures("widens")
@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize(("shape", "is_adapted"), [(QWEN2, True), (QWEN2, False), (QWEN3, False)])
def test_widened_products_are_as_near_to_float64_as_instructions(
    monkeypatch: pytest.MonkeyPatch, shape: Shape, is_adapted: bool, is_small: bool
) -> None:
    """Mean over 25 models of log-probabilities and of gradients: 0.0052 and 0.034 off, by instructions 0.0056 and
    0.036."""
    if not is_small:
        monkeypatch.setattr(ops, "MOST_ATTENTION_SCORES", 0)
    for seed in range(2):
        exact = learnt(made(shape, torch.float64, is_adapted=is_adapted, seed=seed))
        found = learnt(made(shape, NARROW, is_adapted=is_adapted, seed=seed))
        off = [float((own - each).norm() / each.norm()) for own, each in zip(found, exact, strict=True)]
        assert off[0] < 0.02 and off[1] < 0.1


@pytest.mark.usefixtures("widens")
def test_nothing_wide_is_saved_for_the_way_back_but_a_number_per_row() -> None:
    model, batch = decoder(QWEN3, NARROW), batch_of(*UNEVEN)
    kinds: dict[torch.dtype, int] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        kinds[tensor.dtype] = max(kinds.get(tensor.dtype, 0), tensor.shape[-1] if tensor.ndim > 1 else 0)
        return tensor

    with saved_tensors_hooks(save, lambda tensor: tensor):
        model.token_logprobs(batch, temperature=1.0)
    assert kinds[torch.float32] <= 1 < kinds[NARROW]


@pytest.mark.usefixtures("widens")
@pytest.mark.parametrize("shape", [QWEN2, QWEN3])
def test_a_sampler_that_widens_says_what_a_learner_that_widens_does(shape: Shape) -> None:
    model = decoder(shape, NARROW)
    prompts = [(1, 12), (4, 7, 12), (9, 12)]
    groups = BuiltinEngine(model, end=None, seed=0).generate(prompts, Sampling(3, 6, 1.0))
    assert all(each.dtype == NARROW for each in model.parameters())
    rows = [Group(Prompt("", prompt, ""), found) for prompt, found in zip(prompts, groups, strict=True)]
    batch = make_batch(rows, torch.zeros(3, 3), pad=0)
    with torch.no_grad():
        found_BT = model.token_logprobs(batch, temperature=1.0).logprobs_BT
    sampled_BT = torch.tensor([rollout.logprobs for group in groups for rollout in group])
    assert float((found_BT - sampled_BT).abs().max()) < 0.15
    assert float((found_BT - sampled_BT).abs().mean()) < 0.03
