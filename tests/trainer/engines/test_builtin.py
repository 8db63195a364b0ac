"""The sampler: its log-probabilities are those of a full forward pass, its draws follow them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from trainer_cases import TINY, decoder

from trainer.engines.base import Sampling
from trainer.engines.builtin import Sampler
from trainer.tasks.base import END, prompt
from trainer.types import Stop

WIDE = replace(TINY, dtype="float64")
PROMPTS = [prompt("1=", "2"), prompt("47=", "8"), prompt("9=", "0"), prompt("3+4=", "7")]


def sampler(seed: int = 0) -> Sampler:
    return Sampler(decoder(WIDE), end=END, seed=seed)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_log_probabilities_are_those_of_a_full_forward_pass(temperature: float) -> None:
    made = decoder(WIDE)
    groups = sampler().generate(PROMPTS, Sampling(5, 4, temperature))
    assert [group.prompt for group in groups] == PROMPTS
    for group in groups:
        assert len(group.rollouts) == 5
        for rollout in group.rollouts:
            row = torch.tensor([[*group.prompt.tokens, *rollout.tokens]])
            logprobs = torch.log_softmax(made(row)[0] / temperature, dim=-1)
            start = len(group.prompt.tokens) - 1
            expected = [logprobs[start + at, token].item() for at, token in enumerate(rollout.tokens)]
            assert rollout.logprobs == pytest.approx(expected, abs=1e-10)


def test_answers_end_with_the_end_token_or_at_the_allowed_length() -> None:
    rollouts = [r for group in sampler().generate(PROMPTS, Sampling(50, 4, 1.0)) for r in group.rollouts]
    assert {rollout.stop for rollout in rollouts} == {Stop.END, Stop.LENGTH}
    for rollout in rollouts:
        assert END not in rollout.tokens[:-1]
        assert (rollout.tokens[-1] == END) == (rollout.stop is Stop.END)
        assert rollout.stop is Stop.END or len(rollout.tokens) == 4
        assert len(rollout.logprobs) == len(rollout.tokens)


def test_greedy_answers_take_the_likeliest_token_and_need_no_chance() -> None:
    made = decoder(WIDE)
    one, other = (sampler(seed).generate(PROMPTS, Sampling(1, 3, 1.0, is_greedy=True)) for seed in (0, 1))
    assert one == other
    for group in one:
        row = list(group.prompt.tokens)
        for token in group.rollouts[0].tokens:
            assert token == int(made(torch.tensor([row]))[0, -1].argmax())
            row.append(token)


def test_draws_follow_the_probabilities() -> None:
    rollouts = sampler().generate([PROMPTS[0]], Sampling(20_000, 1, 1.0))[0].rollouts
    probabilities = torch.softmax(decoder(WIDE)(torch.tensor([PROMPTS[0].tokens]))[0, -1], dim=-1)
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


def test_received_weights_are_copied_not_shared() -> None:
    made, other = sampler(), decoder(WIDE, seed=9)
    made.receive(dict(other.named_parameters()))
    name = "model.layers.1.mlp.up_proj.weight"
    own, given = made.weights()[name], dict(other.named_parameters())[name]
    assert torch.equal(own, given)
    with torch.no_grad():
        given.add_(1.0)
    assert not torch.equal(own, given)


def test_a_group_computes_its_prompt_once_and_gives_what_single_answers_give() -> None:
    together = sampler().generate([PROMPTS[1]], Sampling(4, 3, 1.0, is_greedy=True))[0]
    alone = sampler().generate([PROMPTS[1]], Sampling(1, 3, 1.0, is_greedy=True))[0]
    for rollout in together.rollouts:
        assert rollout.tokens == alone.rollouts[0].tokens
        assert all(
            math.isclose(a, b, abs_tol=1e-12) for a, b in zip(rollout.logprobs, alone.rollouts[0].logprobs, strict=True)
        )
