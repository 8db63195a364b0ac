"""The engine over transformers' `generate`, against the built-in sampler and against the model's own logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.config import BadSetting, parse
from trainer.engines.engine import BuiltinEngine, Sampling
from trainer.engines.generator_client import EngineSpec
from trainer.models.decoder import Decoder, Shape
from trainer.tasks.digits import successor
from trainer.tasks.tokenizers import Characters
from trainer.types import Stop

transformers = pytest.importorskip("transformers", reason="the engine under test runs a model of transformers")

from trainer.engines.transformers import Generator, start  # noqa: E402

pytestmark = pytest.mark.full

WORDS = Characters()
SHAPE = Shape(vocabulary=19, hidden=16, layers=2, heads=4, kv_heads=2, head_size=4, intermediate=24)
PROMPTS = [(1, 2, 3), (4,), (5, 6), (7, 8, 9)]


def qwen2() -> Any:
    config = transformers.Qwen2Config(
        vocab_size=SHAPE.vocabulary,
        hidden_size=SHAPE.hidden,
        intermediate_size=SHAPE.intermediate,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        rms_norm_eps=SHAPE.norm_epsilon,
        rope_theta=SHAPE.rope_base,
        tie_word_embeddings=True,
        use_sliding_window=False,
    )
    return transformers.Qwen2ForCausalLM(config)


def decoder(seed: int = 0) -> Decoder:
    """Weights large enough for distributions that are far from flat."""
    made, generator = Decoder(SHAPE), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return made


def engine(seed: int = 0, end: int | None = WORDS.end) -> Generator:
    made = Generator(qwen2(), end=end, pad=WORDS.pad, seed=seed)
    made.load_weights(dict(decoder().named_parameters()))
    return made


def test_greedy_answers_are_the_built_in_samplers_to_prompts_of_any_length() -> None:
    sampling = Sampling(1, 6, 0.7, is_greedy=True)
    ours = BuiltinEngine(decoder(), end=WORDS.end, seed=0).generate(PROMPTS, sampling)
    theirs = engine().generate(PROMPTS, sampling)
    assert [group[0].tokens for group in theirs] == [group[0].tokens for group in ours]
    assert [group[0].stop for group in theirs] == [group[0].stop for group in ours]
    for one, other in zip(theirs, ours, strict=True):
        assert one[0].logprobs == pytest.approx(other[0].logprobs, abs=1e-4)


def test_sharing_a_prompt_in_its_group_changes_no_answer() -> None:
    sampling = Sampling(3, 5, 1.0, is_greedy=True)
    groups = engine().generate(PROMPTS, sampling)
    alone = engine().generate(PROMPTS, Sampling(1, 5, 1.0, is_greedy=True))
    for group, (single,) in zip(groups, alone, strict=True):
        assert [rollout.tokens for rollout in group] == [single.tokens] * 3


def test_logprobs_are_those_of_the_drawn_tokens_at_the_temperature() -> None:
    made, temperature = engine(), 1.7
    model = made._model
    for prompt, group in zip(PROMPTS, made.generate(PROMPTS, Sampling(4, 5, temperature)), strict=True):
        for rollout in group:
            whole = torch.tensor([[*prompt, *rollout.tokens]])
            with torch.no_grad():
                logprobs_TV = torch.log_softmax(model(whole).logits[0].float() / temperature, dim=-1)
            own = [float(logprobs_TV[len(prompt) - 1 + at, token]) for at, token in enumerate(rollout.tokens)]
            assert rollout.logprobs == pytest.approx(own, abs=1e-4)


def test_answers_end_with_the_end_token_or_at_the_longest_length() -> None:
    rollouts = [rollout for group in engine().generate(PROMPTS, Sampling(32, 6, 2.0)) for rollout in group]
    assert {rollout.stop for rollout in rollouts} == {Stop.END, Stop.LENGTH}
    for rollout in rollouts:
        assert WORDS.end not in rollout.tokens[:-1]
        assert (rollout.tokens[-1] == WORDS.end) == (rollout.stop is Stop.END)
        assert rollout.stop is Stop.END or len(rollout.tokens) == 6


def test_without_an_end_token_every_answer_has_the_longest_length() -> None:
    rollouts = engine(end=None).generate(PROMPTS[:1], Sampling(32, 4, 2.0))[0]
    assert {(len(rollout.tokens), rollout.stop) for rollout in rollouts} == {(4, Stop.LENGTH)}


def test_a_repetition_penalty_of_the_models_folder_is_not_applied() -> None:
    model = qwen2()
    model.generation_config.repetition_penalty = 50.0
    made = Generator(model, end=WORDS.end, pad=WORDS.pad, seed=0)
    made.load_weights(dict(decoder().named_parameters()))
    sampling = Sampling(1, 6, 1.0, is_greedy=True)
    assert made.generate(PROMPTS, sampling) == engine().generate(PROMPTS, sampling)


def test_a_restored_random_state_draws_the_same_again() -> None:
    made, sampling = engine(), Sampling(4, 5, 2.0)
    state = made.random_state()
    first, second = made.generate(PROMPTS, sampling), made.generate(PROMPTS, sampling)
    made.restore_random_state(state)
    assert made.generate(PROMPTS, sampling) == first != second


def test_seeds_of_prompts_draw_what_the_built_in_sampler_draws_by_them_and_beside_whatever() -> None:
    sampling = Sampling(3, 6, 0.7, seeds=(5, 6, 7, 8))
    made = engine()
    state = made.random_state().clone()
    theirs = made.generate(PROMPTS, sampling)
    ours = BuiltinEngine(decoder(), end=WORDS.end, seed=9).generate(PROMPTS, sampling)
    assert [[each.tokens for each in group] for group in theirs] == [[each.tokens for each in group] for group in ours]
    (alone,) = made.generate(PROMPTS[2:3], Sampling(3, 6, 0.7, seeds=(7,)))
    assert [each.tokens for each in alone] == [each.tokens for each in theirs[2]]
    assert torch.equal(made.random_state(), state)


def test_received_weights_are_copied_and_a_missing_one_is_named() -> None:
    made, given = engine(), decoder(seed=1)
    made.load_weights({**dict(given.named_parameters()), "lm_head.weight": given.output_weight})
    name = "model.layers.1.mlp.up_proj.weight"
    before = dict(given.named_parameters())[name].detach().clone()
    with torch.no_grad():
        dict(given.named_parameters())[name].zero_()
    assert torch.equal(made.weights()[name], before)
    with pytest.raises(ValueError, match=r"layers\.0"):
        made.load_weights({"model.norm.weight": before})


def test_an_engine_without_a_folder_is_a_bad_setting() -> None:
    with pytest.raises(BadSetting, match="path=FOLDER"):
        start(EngineSpec.of(parse([], devices=("cpu",)), successor(1), seed=0), torch.device("cpu"), seed=0)
