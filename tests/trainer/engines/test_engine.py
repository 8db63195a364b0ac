"""The sampler: its log-probabilities are those of a full forward pass, its draws follow them."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.model_cases import END, QWEN2, QWEN3, decoder, naive_logits
from trainer.engines import engine
from trainer.engines.engine import BuiltinEngine, Sampling
from trainer.types import Stop

if TYPE_CHECKING:
    from trainer.models.decoder import Shape

PROMPTS = [(1, 12), (4, 7, 12), (9, 12), (3, 10, 4, 12), (5,)]


def sampler(seed: int = 0, *, shape: Shape = QWEN2, end: int | None = END) -> BuiltinEngine:
    return BuiltinEngine(decoder(shape), end=end, seed=seed)


@lru_cache
def weights(shape: Shape) -> dict[str, torch.Tensor]:
    return {name: each.detach() for name, each in decoder(shape).named_parameters()}


@cache
def expected(shape: Shape, prompt: tuple[int, ...], answer: tuple[int, ...], temperature: float) -> list[float]:
    logits = naive_logits(weights(shape), shape, [*prompt, *answer])[len(prompt) - 1 : -1]
    every = torch.log_softmax(logits / temperature, dim=-1)
    return [every[at, token].item() for at, token in enumerate(answer)]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("shape", [QWEN2, QWEN3])
def test_recorded_log_probabilities_are_those_of_a_full_forward_pass(shape: Shape, temperature: float) -> None:
    groups = sampler(shape=shape).generate(PROMPTS, Sampling(4, 5, temperature))
    assert len(groups) == len(PROMPTS)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        assert len(group) == 4
        for rollout in group:
            assert rollout.logprobs == pytest.approx(expected(shape, prompt, rollout.tokens, temperature), abs=1e-10)


@pytest.mark.parametrize(("top_p", "top_k"), [(0.7, 0), (1.0, 3), (0.8, 4)])
def test_draws_among_the_likeliest_tokens_have_the_log_probabilities_of_that_draw(top_p: float, top_k: int) -> None:
    groups = sampler(seed=3).generate(PROMPTS, Sampling(6, 5, 0.8, top_p=top_p, top_k=top_k))
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for rollout in group:
            logits = naive_logits(weights(QWEN2), QWEN2, [*prompt, *rollout.tokens])[len(prompt) - 1 : -1] / 0.8
            for each, token, logprob in zip(logits, rollout.tokens, rollout.logprobs, strict=True):
                ordered = each.argsort(descending=True)[: top_k or None]
                before = torch.softmax(each[ordered], dim=0).cumsum(0).roll(1)
                before[0] = 0.0
                drawn = ordered[before < top_p]
                assert token in drawn
                place = (drawn == token).nonzero().item()
                assert logprob == pytest.approx(torch.log_softmax(each[drawn], dim=0)[place].item(), abs=1e-9)
    greedy = Sampling(1, 3, 1.0, is_greedy=True)
    cut = replace(greedy, top_p=top_p, top_k=top_k)
    assert sampler().generate(PROMPTS, greedy) == sampler().generate(PROMPTS, cut)


def test_rows_that_go_on_after_many_have_ended_and_moved_are_still_right() -> None:
    groups = sampler(seed=2).generate(PROMPTS, Sampling(6, 24, 1.0))
    pairs = [(prompt, rollout) for prompt, group in zip(PROMPTS, groups, strict=True) for rollout in group]
    pairs.sort(key=lambda pair: len(pair[1].tokens))
    # Rows end all along the way and are moved together several times; those that go on longest were moved most often.
    assert len({len(rollout.tokens) for _, rollout in pairs}) > 5
    assert len(pairs[0][1].tokens) < 5 and len(pairs[-1][1].tokens) > 15
    for prompt, rollout in (*pairs[10:12], *pairs[-4:]):
        assert rollout.logprobs == pytest.approx(expected(QWEN2, prompt, rollout.tokens, 1.0), abs=1e-10)


def test_three_of_four_computed_rows_at_least_are_still_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    slots: list[int] = []
    step = engine.CachedGeneration.step

    def counted(self: engine.CachedGeneration, tokens_R: torch.Tensor) -> torch.Tensor:
        slots.append(len(tokens_R))
        return step(self, tokens_R)

    monkeypatch.setattr(engine.CachedGeneration, "step", counted)
    groups = sampler(seed=2).generate(PROMPTS, Sampling(6, 40, 1.0))
    lengths = [len(rollout.tokens) for group in groups for rollout in group]
    needed = [sum(length > number for length in lengths) for number in range(1, len(slots) + 1)]
    assert needed[0] > needed[-1] > 0
    assert all(some >= 0.75 * computed for some, computed in zip(needed, slots, strict=True))


def test_answers_end_with_the_end_token_or_at_the_allowed_length() -> None:
    rollouts = [rollout for group in sampler().generate(PROMPTS, Sampling(50, 4, 1.0)) for rollout in group]
    assert {rollout.stop for rollout in rollouts} == {Stop.END, Stop.LENGTH}
    for rollout in rollouts:
        assert END not in rollout.tokens[:-1]
        assert (rollout.tokens[-1] == END) == (rollout.stop is Stop.END)
        assert rollout.stop is Stop.END or len(rollout.tokens) == 4
        assert len(rollout.logprobs) == len(rollout.tokens)


def test_without_an_end_token_every_answer_has_the_allowed_length() -> None:
    rollouts = [rollout for group in sampler(end=None).generate(PROMPTS, Sampling(20, 9, 1.0)) for rollout in group]
    assert {len(rollout.tokens) for rollout in rollouts} == {9}
    assert {rollout.stop for rollout in rollouts} == {Stop.LENGTH}
    assert any(END in rollout.tokens for rollout in rollouts)


def test_greedy_answers_take_the_likeliest_token_and_need_no_chance() -> None:
    made = decoder()
    one, other = (sampler(seed).generate(PROMPTS, Sampling(1, 3, 1.0, is_greedy=True)) for seed in (0, 1))
    assert one == other
    weights = dict(made.named_parameters())
    for prompt, group in zip(PROMPTS, one, strict=True):
        row = list(prompt)
        for token in group[0].tokens:
            assert token == int(naive_logits(weights, QWEN2, row)[-1].argmax())
            row.append(token)


def test_draws_follow_the_probabilities() -> None:
    (rollouts,) = sampler().generate([PROMPTS[0]], Sampling(20_000, 1, 1.0))
    logits = naive_logits(dict(decoder().named_parameters()), QWEN2, PROMPTS[0])[-1].detach()
    probabilities = torch.softmax(logits, dim=-1)
    counts = torch.bincount(torch.tensor([rollout.tokens[0] for rollout in rollouts]), minlength=19)
    # 19 shares of 20,000 draws, five deviations each: fails by chance less than once in 50,000 seeds, and this is one
    limit = 5 * (probabilities * (1 - probabilities) / 20_000).sqrt()
    assert bool(((counts / 20_000 - probabilities).abs() < limit + 1e-9).all())


def test_the_random_state_brings_the_same_answers_back() -> None:
    made = sampler()
    made.generate(PROMPTS, Sampling(3, 3, 1.0))
    state = made.random_state()
    first = made.generate(PROMPTS, Sampling(3, 3, 1.0))
    assert made.generate(PROMPTS, Sampling(3, 3, 1.0)) != first
    made.restore_random_state(state)
    assert made.generate(PROMPTS, Sampling(3, 3, 1.0)) == first


def test_received_weights_are_copied_not_shared_and_used_next() -> None:
    made, other = sampler(), decoder(seed=9)
    before = made.generate(PROMPTS, Sampling(1, 4, 1.0, is_greedy=True))
    made.load_weights(dict(other.named_parameters()))
    fresh = BuiltinEngine(copy.deepcopy(other), end=END, seed=0)
    after = made.generate(PROMPTS, Sampling(1, 4, 1.0, is_greedy=True))
    assert after == fresh.generate(PROMPTS, Sampling(1, 4, 1.0, is_greedy=True)) != before
    name = "model.layers.1.mlp.up_proj.weight"
    own, given = made.weights()[name], dict(other.named_parameters())[name]
    assert torch.equal(own, given)
    with torch.no_grad():
        given.add_(1.0)
    assert not torch.equal(own, given)


@pytest.mark.parametrize("few", [1024, 1])
def test_a_token_of_no_chance_is_never_drawn_in_either_way_of_drawing(
    monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(engine, "_FEW_TOKENS", few)
    chances = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64).expand(40_000, 5)
    made = sampler(seed=3)
    shares = torch.bincount(made._pick(chances), minlength=5) / 40_000
    assert shares[[0, 2, 4]].tolist() == [0.0, 0.0, 0.0]
    assert shares[1].item() == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 40_000) ** 0.5)
