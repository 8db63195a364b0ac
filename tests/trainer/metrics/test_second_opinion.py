"""The plain formulas agree with the trainer's own, on the same numbers in float64, whatever is chosen."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.trainer_cases import CPU, END, TINY, changed, group
from trainer import models
from trainer.algorithms.advantages import Advantages, EstimatorInputs, Settings
from trainer.algorithms.conventions import CONVENTIONS
from trainer.algorithms.losses import DIVERGENCES, MODES, LossSettings, aggregate, count, divergence, policy_loss
from trainer.algorithms.optimizer import AdamW, clip_grad_norm, learning_rate
from trainer.algorithms.packing import make_batch
from trainer.algorithms.policy_losses import correction
from trainer.algorithms.update_metrics import token_metrics
from trainer.config import Config
from trainer.metrics import plain_decoder
from trainer.metrics import second_opinion as plain
from trainer.metrics.step import of_advantages, of_lengths, of_rewards
from trainer.models import lora
from trainer.models.decoder import Decoder, Shape
from trainer.noise import deviation
from trainer.registry import ESTIMATORS, LOSSES, find
from trainer.sections import RolloutSettings
from trainer.types import Group, Prompt, Rollout, Stop

if TYPE_CHECKING:
    from torch import Tensor

RANDOM = torch.Generator().manual_seed(0)
LENGTHS = (4, 1, 3, 2, 4, 4, 1, 2)
MASK = torch.arange(4) < torch.tensor(LENGTHS)[:, None]
GROUPS = (0, 0, 0, 1, 1, 1, 1, 2)  # of three, four and one answer


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=RANDOM, dtype=torch.float64)


# The estimators that the second opinion has formulas for.
ESTIMATED = ("grpo", "rloo", "reinforce", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "opo", "gae")


def answers(rollout_BT: Tensor | None = None, mask: Tensor = MASK) -> plain_decoder.Answers:
    tokens = torch.randint(0, 17, (8, 4), generator=RANDOM)
    sequences = [(1, 2, 3, *row[:length]) for row, length in zip(tokens.tolist(), LENGTHS, strict=True)]
    rollout_BT = numbers(8, 4) if rollout_BT is None else rollout_BT
    return plain_decoder.Answers(sequences, [3] * 8, tokens, mask, GROUPS, numbers(8), rollout_BT)


def algorithm(**values: Any) -> Any:
    return changed(Config(), **values).algorithm


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", ESTIMATED)
@pytest.mark.parametrize("scale_by_std", [True, False])
def test_advantages(name: str, convention: str, scale_by_std: bool) -> None:
    chosen = algorithm(estimator=name, convention=convention, gamma=0.9, lam=0.8, scale_by_std=scale_by_std)
    mask = MASK.clone()
    mask[0, 1] = False  # an observation within the answer
    given, penalty, values = answers(mask=mask), numbers(8, 4).where(mask, 0.0), numbers(8, 4)
    rewards = plain.token_rewards(given, penalty)
    scores = EstimatorInputs(torch.tensor(rewards, dtype=torch.float64), mask, torch.tensor(GROUPS), values_BT=values)
    settings = Settings(scale_by_std, 0.9, 0.8)
    expected = find(ESTIMATORS, name)(scores, CONVENTIONS[convention], settings=settings).advantages_BT
    found = torch.tensor(plain.advantages(rewards, given, chosen, values_BT=values), dtype=torch.float64)
    if plain.is_whitened(chosen):
        found = torch.where(mask, plain.whitened(found, found[mask]), 0.0)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", ["clip", "gspo", "cispo", "plain"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weighted", ["none", "token", "sequence"])
@pytest.mark.one_in(3)
def test_the_loss_and_its_gradient(name: str, convention: str, mode: str, weighted: str) -> None:
    chosen = algorithm(
        loss=name, convention=convention, aggregation=mode, clip_high=0.5, dual_clip=1.6, entropy_coef=0.1, kl="k3",
        kl_coef=0.3, correction=weighted, correction_bound="mask", correction_cap=1.5, correction_floor=0.4,
    )  # fmt: skip
    style, given = CONVENTIONS[convention], answers()
    now, old, reference, credit, entropy = (numbers(8, 4) * 0.5 for _ in range(5))
    totals = count(MASK, style, scale=6.0)
    leaves = [now.clone().requires_grad_() for _ in range(2)]

    settings, weights = LossSettings(chosen.clip_low, chosen.clip_high, chosen.dual_clip), None
    if weighted != "none":
        weights = correction(
            old, given.rollout_BT, MASK, style, level=weighted, cap=1.5, floor=0.4, bound="mask"
        ).weights_BT
    token = policy_loss(
        find(LOSSES, name), leaves[0], old, credit, MASK, settings=settings, convention=style, weights_BT=weights
    )
    fixed = style.gspo_aggregation if name == "gspo" else None
    policy = aggregate(token.losses_BT, MASK, fixed or mode, totals)
    kl = divergence("k3", leaves[0], reference, style, mask_BT=MASK, old_BT=old)
    of_entropy = aggregate(entropy, MASK, mode if style.aggregates_entropy else "token-mean", totals)
    expected = policy - 0.1 * of_entropy + 0.3 * aggregate(kl, MASK, mode, totals)

    counts = plain.Counts.of([MASK], chosen, longest=6.0)
    parts = plain.loss(leaves[1], entropy, old, reference, credit, given, chosen, counts=counts, kl_coef=0.3)
    found, of_policy = parts["loss"], parts["policy_loss"]
    torch.testing.assert_close(parts["entropy"], aggregate(entropy, MASK, "token-mean", totals))
    torch.testing.assert_close(parts["kl"], aggregate(kl, MASK, "token-mean", totals))
    torch.testing.assert_close((found, of_policy), (expected, policy), rtol=1e-9, atol=1e-9)
    batch: Any = SimpleNamespace(mask_BT=MASK, rollout_logprobs_BT=given.rollout_BT)
    reported = token_metrics(batch, old, token, None, totals, chosen)
    for each in parts.keys() & reported.keys():
        torch.testing.assert_close(parts[each], reported[each], rtol=1e-9, atol=1e-9)
    assert {"ppo_kl", "rollout_kl", "rollout_kl_direct", "logprob_diff_mean"} <= parts.keys() & reported.keys()
    found.backward()
    expected.backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_divergences_and_their_gradients(name: str, convention: str) -> None:
    leaves = [(numbers(8, 4) * 4).requires_grad_()]
    leaves.append(leaves[0].detach().clone().requires_grad_())
    reference = numbers(8, 4) * 4
    expected = divergence(name, leaves[0], reference, CONVENTIONS[convention], mask_BT=MASK)
    found = plain.divergence(name, leaves[1], reference, MASK, convention)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    (found.sum() + expected.sum()).backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("is_qwen3", [False, True])
@pytest.mark.parametrize("is_tied", [False, True])
def test_a_decoder_and_its_gradient(is_qwen3: bool, is_tied: bool) -> None:
    shape = Shape(
        vocabulary=19, hidden=16, layers=2, heads=4, kv_heads=2, head_size=4, intermediate=24, is_qwen3=is_qwen3,
        is_tied=is_tied,
    )  # fmt: skip
    decoder = Decoder(shape).to(torch.float64)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(numbers(*parameter.shape) * 0.3)
    prompts, said = ((0, 11, 5), (9, 2, 4, 11, 8)), (((1, 2, 18), (3, 18)), ((4, 5, 6, 18), (7,)))
    groups = [
        Group(Prompt("", tokens, ""), tuple(Rollout(each, (0.0,) * len(each), Stop.END) for each in rows))
        for tokens, rows in zip(prompts, said, strict=True)
    ]
    batch = make_batch(groups, torch.zeros(2, 2, dtype=torch.float64), pad=17)
    scored = decoder.token_logprobs(batch, temperature=0.7)
    (scored.logprobs_BT.sum() + scored.entropy_BT.sum()).backward()

    weights = {name: each.detach().clone().requires_grad_() for name, each in decoder.named_parameters()}
    sequences = [(*group.prompt.tokens, *each.tokens) for group in groups for each in group.rollouts]
    given = plain_decoder.Answers(
        sequences, [3, 3, 5, 5], batch.tokens_BT, batch.mask_BT, [0, 0, 1, 1], batch.rewards_B, torch.zeros(4, 4)
    )
    found, entropy = plain_decoder.logprobs(weights, shape, given, RolloutSettings(temperature=0.7))
    (found.sum() + entropy.sum()).backward()
    torch.testing.assert_close((found, entropy), (scored.logprobs_BT, scored.entropy_BT), rtol=1e-9, atol=1e-9)
    for name, each in decoder.named_parameters():
        torch.testing.assert_close(weights[name].grad, each.grad, rtol=1e-8, atol=1e-9)


def test_adapters_are_added_to_what_they_adapt() -> None:
    config = changed(TINY, lora_rank=3, dtype="float64")
    adapted = models.build(config, 19, seed=0, device=CPU)
    with torch.no_grad():
        for parameter in adapted.parameters():
            parameter.copy_(numbers(*parameter.shape))
    found = plain_decoder.merged(dict(adapted.named_parameters()), alpha=config.model.lora_alpha, rank=3)
    expected = lora.merged(adapted)
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        torch.testing.assert_close(found[name].detach(), each)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_three_steps_of_the_optimizer(decay: float) -> None:
    weight = numbers(5).requires_grad_()
    adamw = AdamW.start({"a": weight}, weight_decay=decay)
    for number in range(1, 4):
        weight.grad = numbers(5) * 3
        bounded, norm = plain.clipped({"a": weight.grad.clone()}, 1.0)
        assert clip_grad_norm([weight.grad], 1.0) == pytest.approx(norm)
        torch.testing.assert_close(weight.grad, bounded["a"])
        before = weight.detach().clone()
        expected = plain.adamw(
            before, adamw.first["a"], adamw.second["a"], weight.grad, lr=0.01, number=number, decay=decay
        )
        adamw.step({"a": weight}, lr=0.01, number=number)
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", ["linear", "constant", "cosine"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_learning_rates(shape: str, warmup: int) -> None:
    optim = changed(Config(), lr_schedule=shape, warmup_steps=warmup, lr=0.5, mini_batches=2).optim
    for done in range(21):
        expected = 0.5 * learning_rate(shape, done, 20, warmup=warmup)
        assert plain.learning_rate(optim, done=done, steps=10) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shape", ["geometric", "linear"])
@pytest.mark.parametrize("stages", [1, 2, 3, 10])
def test_deviations_of_the_noise(shape: str, stages: int) -> None:
    noise = changed(Config(), noise_stages=stages, noise_shape=shape).noise
    for step in range(24):
        assert plain.noise_deviation(noise, step=step, steps=23) == pytest.approx(deviation(noise, step, 23))


@pytest.mark.parametrize(
    "setting", [{"estimator": "new"}, {"loss": "new"}, {"kl": "new"}, {"aggregation": "new"}, {"correction": "new"}]
)
def test_what_it_has_no_formula_for_is_said(setting: dict[str, Any]) -> None:
    chosen, given, zeros = algorithm(**setting), answers(), torch.zeros(8, 4, dtype=torch.float64)
    with pytest.raises(plain.Unknown, match="new"):
        plain.advantages(plain.token_rewards(given, None), given, chosen)
        counts = plain.Counts.of([MASK], chosen, longest=6.0)
        plain.loss(zeros, zeros, zeros, zeros, zeros, given, chosen, counts=counts, kl_coef=0.1)


def test_the_fewest_tokens_with_the_share_are_drawn() -> None:
    logits = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64).log()
    assert plain_decoder.drawn(logits, top_p=0.6, top_k=0).tolist() == [[False, True, True]]
    assert plain_decoder.drawn(logits, top_p=1.0, top_k=1).tolist() == [[False, True, False]]
    with pytest.raises(plain_decoder.TooClose):
        plain_decoder.drawn(logits, top_p=0.5, top_k=0)


def test_mini_batches_have_whole_groups_in_the_order_of_the_seed() -> None:
    optim = SimpleNamespace(ppo_epochs=2, mini_batches=2)
    found = plain.mini_batches([2, 1, 2], optim, usual=4, generator=torch.Generator().manual_seed(0))
    again = plain.mini_batches([2, 1, 2], optim, usual=4, generator=torch.Generator().manual_seed(0))
    assert found == again and len(found) == 4
    assert sorted(found[0] + found[1]) == sorted(found[2] + found[3]) == [0, 1, 2, 3, 4]
    assert all((0 in each) == (1 in each) and (3 in each) == (4 in each) for each in found)


def test_a_record_is_counted_again() -> None:
    groups = [group("12+1", (3, END), (4, 5, 6)), group("7", (1,), (2, END))]
    groups[0] = replace(groups[0], rollouts=(groups[0].rollouts[0], replace(groups[0].rollouts[1], stop=Stop.LENGTH)))
    rewards, mask = numbers(2, 2), torch.ones(4, 3, dtype=torch.bool)
    credit: Any = Advantages(numbers(4, 3), None)
    batch, logprobs = SimpleNamespace(mask_BT=mask), SimpleNamespace(values_BT=None)
    expected = {
        **of_lengths(groups, TINY),
        **of_rewards(rewards, rewards.reshape(-1)),
        **of_advantages(batch, logprobs, credit),  # type: ignore[arg-type]
    }
    found = plain.counted(groups, rewards.reshape(-1).tolist(), credit.advantages_BT[mask].tolist())
    assert len(found) == 13 and found["response_length/clip_ratio"] == 0.25
    assert found == pytest.approx({name: expected[name] for name in found})
    assert "critic/score/mean" not in plain.counted(groups, [math.nan], [])


def test_a_long_answer_has_less_than_the_task_gives() -> None:
    task: Any = SimpleNamespace(reward=lambda prompt, rollout: 1.0, max_new_tokens=10)
    algorithm = SimpleNamespace(overlong_buffer=4, overlong_factor=1.0)
    prompt, logprobs = Prompt("", (), ""), (0.0,) * 7
    answer = Rollout((1,) * 7, logprobs, Stop.END)
    assert plain.reward(task, prompt, answer, algorithm) == 0.75
    assert plain.reward(task, prompt, answer, SimpleNamespace(overlong_buffer=0)) == 1.0
