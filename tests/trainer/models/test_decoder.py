"""The built-in decoder: sharing prompts, packing and written-out gradients change nothing but the time."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.model_cases import (
    EVEN,
    PAD,
    QWEN2,
    QWEN3,
    SINGLE_TOKENS,
    UNEVEN,
    batch_of,
    decoder,
    gradients,
    naive_score,
)
from trainer.algorithms.packing import select
from trainer.config import parse
from trainer.models import build, fill, ops
from trainer.models.decoder import Decoder, Shape
from trainer.models.gradients import token_logprobs

if TYPE_CHECKING:
    from trainer.types import Batch


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("lengths", [UNEVEN, EVEN, SINGLE_TOKENS])
@pytest.mark.parametrize("shape", [QWEN2, QWEN3])
@pytest.mark.one_in(3)
def test_scores_and_gradients_are_those_of_plain_rows(
    shape: Shape, lengths: tuple[list[list[int]], list[list[int]]], temperature: float
) -> None:
    made, batch = decoder(shape), batch_of(*lengths)
    found, expected = made.token_logprobs(batch, temperature=temperature), naive_score(made, batch, temperature)
    torch.testing.assert_close(found.logprobs_BT, expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found.entropy_BT, expected[1], rtol=0, atol=1e-12)
    ours, plain = gradients(made, found.logprobs_BT, found.entropy_BT), gradients(made, *expected)
    for name, gradient in plain.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-9, atol=1e-11, msg=name)


def test_in_float32_a_shared_prompt_costs_a_millionth_and_gradients_three_ten_millionths() -> None:
    made = Decoder(replace(QWEN2, hidden=64, head_size=16, intermediate=96))
    fill(made, seed=0)
    batch = batch_of(*UNEVEN)

    def alone(row: int) -> torch.Tensor:
        logprobs_BT = made.token_logprobs(select(batch, torch.tensor([row])), temperature=1.0).logprobs_BT
        return torch.nn.functional.pad(logprobs_BT, (0, batch.tokens_BT.shape[1] - logprobs_BT.shape[1]))

    plain_BT = torch.cat([alone(row) for row in range(len(batch.tokens_BT))])
    found_BT = made.token_logprobs(batch, temperature=1.0).logprobs_BT
    assert found_BT.dtype == torch.float32
    assert float((found_BT - plain_BT).detach().abs().max()) < 1e-6
    nothing = torch.zeros_like(plain_BT)
    ours, plain = (
        torch.cat([each.flatten() for each in gradients(made, logprobs_BT, nothing).values()])
        for logprobs_BT in (found_BT, plain_BT)
    )
    assert float((ours - plain).norm() / plain.norm()) < 3e-7


def test_places_where_the_mask_is_off_are_zero_and_left_out() -> None:
    made, batch = decoder(), batch_of(*UNEVEN, words=True)
    found, expected = made.token_logprobs(batch, temperature=1.0), naive_score(made, batch, 1.0)
    assert not bool(batch.mask_BT[0, 1])
    torch.testing.assert_close(found.logprobs_BT, expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found.entropy_BT, expected[1], rtol=0, atol=1e-12)
    assert bool((found.logprobs_BT[~batch.mask_BT] == 0).all())


def test_what_stands_in_the_padding_changes_no_bit() -> None:
    made, batch = decoder(), batch_of(*UNEVEN)
    beyond = torch.arange(batch.tokens_BT.shape[1]) >= batch.lengths_B[:, None]
    beyond_PS = torch.arange(batch.prompts_PS.shape[1]) >= batch.prompt_lengths_P[:, None]
    assert bool(beyond.any()) and bool((batch.tokens_BT[beyond] == PAD).all())
    other = replace(
        batch,
        tokens_BT=batch.tokens_BT.masked_fill(beyond, 3),
        prompts_PS=batch.prompts_PS.masked_fill(beyond_PS, 5),
    )
    one, two = made.token_logprobs(batch, temperature=1.0), made.token_logprobs(other, temperature=1.0)
    assert torch.equal(one.logprobs_BT, two.logprobs_BT)


def test_rows_taken_out_of_a_batch_score_as_in_it() -> None:
    made, batch = decoder(QWEN3), batch_of(*UNEVEN)
    whole, rows = made.token_logprobs(batch, temperature=1.0), torch.tensor([1, 2, 5])
    part = made.token_logprobs(select(batch, rows), temperature=1.0).logprobs_BT
    torch.testing.assert_close(part, whole.logprobs_BT[rows, : part.shape[1]], rtol=0, atol=1e-12)


def test_without_entropy_it_is_zero_and_the_rest_the_same() -> None:
    made, batch = decoder(), batch_of(*UNEVEN)
    found, full = (
        made.token_logprobs(batch, temperature=1.0, with_entropy=False),
        made.token_logprobs(batch, temperature=1.0),
    )
    assert torch.equal(found.logprobs_BT, full.logprobs_BT)
    assert not bool(found.entropy_BT.any())
    ours = gradients(made, found.logprobs_BT, found.entropy_BT)
    plain = gradients(made, full.logprobs_BT, torch.zeros_like(full.logprobs_BT))
    for name in plain:
        torch.testing.assert_close(ours[name], plain[name], rtol=1e-9, atol=1e-12)


def _both_ways(batch: Batch, monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
    made = decoder(QWEN3)
    found = made.token_logprobs(batch, temperature=0.9)
    ours = gradients(made, found.logprobs_BT, found.entropy_BT)
    monkeypatch.setattr(module, name, 20)
    other = made.token_logprobs(batch, temperature=0.9)
    theirs = gradients(made, other.logprobs_BT, other.entropy_BT)
    torch.testing.assert_close(found.logprobs_BT, other.logprobs_BT, rtol=0, atol=1e-12)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("lengths", [UNEVEN, EVEN])
def test_long_answers_attend_the_same_without_writing_scores_out(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[list[list[int]], list[list[int]]]
) -> None:
    _both_ways(batch_of(*lengths), monkeypatch, ops, "MOST_ATTENTION_SCORES")


def test_logits_taken_in_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    _both_ways(batch_of(*UNEVEN), monkeypatch, ops, "LOGITS_AT_ONCE")


def test_in_bfloat16_the_output_layers_gradient_does_not_depend_on_the_number_of_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Measured: 0.0033 off in one part, 0.0036 in 304; summed in bfloat16 these are 0.021 off."""
    tokens, vocabulary, width = 8192, 100, 16

    def gradient(dtype: torch.dtype) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        hidden_MH = (torch.randn(tokens, width, generator=generator) + 0.5).to(dtype)
        weight_VH = (torch.randn(vocabulary, width, generator=generator) * 0.02).to(dtype).requires_grad_()
        target_C = torch.randint(vocabulary, (tokens,), generator=generator)
        logprobs_C, _ = token_logprobs(
            hidden_MH,
            weight_VH,
            source_C=torch.arange(tokens),
            target_C=target_C,
            temperature=1.0,
            with_entropy=False,
        )
        (-logprobs_C.mean()).backward()
        assert weight_VH.grad is not None and weight_VH.grad.dtype == dtype
        return weight_VH.grad.double()

    exact = gradient(torch.float64)
    monkeypatch.setattr(ops, "LOGITS_AT_ONCE", 27 * vocabulary)
    assert float((gradient(torch.bfloat16) - exact).norm() / exact.norm()) < 0.01


def test_gradient_checkpointing_changes_no_gradient() -> None:
    made, batch = decoder(), batch_of(*UNEVEN)
    plain = made.token_logprobs(batch, temperature=1.0)
    expected = gradients(made, plain.logprobs_BT, plain.entropy_BT)
    made.gradient_checkpointing = True
    found = made.token_logprobs(batch, temperature=1.0)
    ours = gradients(made, found.logprobs_BT, found.entropy_BT)
    for name in expected:
        assert torch.equal(ours[name], expected[name]), name


def test_gradient_checkpointing_keeps_less() -> None:
    made, batch = decoder(), batch_of(*UNEVEN)

    def kept() -> int:
        sizes: list[int] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(0 if isinstance(tensor, torch.nn.Parameter) else tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            made.token_logprobs(batch, temperature=1.0)
        return sum(sizes)

    plain = kept()
    made.gradient_checkpointing = True
    assert kept() < 0.4 * plain


def test_a_copy_is_apart_from_what_it_was_copied_from() -> None:
    made, batch = decoder(), batch_of(*EVEN)
    made.token_logprobs(batch, temperature=1.0)
    other = copy.deepcopy(made)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    found = made.token_logprobs(batch, temperature=1.0).logprobs_BT
    torch.testing.assert_close(found, naive_score(made, batch, 1.0)[0], rtol=0, atol=1e-12)
    found = other.token_logprobs(batch, temperature=1.0).logprobs_BT
    torch.testing.assert_close(found, naive_score(other, batch, 1.0)[0], rtol=0, atol=1e-12)


def test_in_bfloat16_scores_stay_near_those_of_float64() -> None:
    made, batch = decoder(QWEN2, torch.bfloat16), batch_of(*UNEVEN)
    found = made.token_logprobs(batch, temperature=1.0)
    assert found.logprobs_BT.dtype == torch.float32
    expected, _ = naive_score(copy.deepcopy(made).double(), batch, 1.0)
    assert float((found.logprobs_BT - expected).detach().abs().max()) < 0.15


def test_a_seed_means_the_same_weights_and_another_one_others() -> None:
    def built(seed: int) -> torch.Tensor:
        config = parse(["layers=2", "hidden=16", "intermediate=24"], devices=("cpu",))
        made = build(config, 19, seed=seed, device=torch.device("cpu"))
        return torch.cat([each.detach().flatten() for each in made.parameters()])

    assert torch.equal(built(3), built(3))
    assert not torch.equal(built(3), built(4))
    assert float(built(3)[: 19 * 16].std()) == pytest.approx(0.02, rel=0.2)
