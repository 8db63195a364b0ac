"""The built-in decoder: Qwen2's names, causality, rotary positions, cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from trainer_cases import CPU, TINY, decoder

from trainer.config import Config
from trainer.model import Cache, angles, build, rotate

WIDE = replace(TINY, dtype="float64")
TOKENS = torch.tensor([[1, 5, 11, 3, 18], [7, 7, 0, 2, 11]])


def test_the_parameters_bear_the_names_of_qwen2() -> None:
    names = [name for name, _ in decoder(replace(TINY, layers=1)).named_parameters()]
    layer = "model.layers.0."
    attention = [f"{layer}self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj")]
    assert sorted(names) == sorted(
        [
            "model.embed_tokens.weight",
            "model.norm.weight",
            *(f"{name}.{kind}" for name in attention for kind in ("weight", "bias")),
            f"{layer}self_attn.o_proj.weight",
            *(f"{layer}mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
            f"{layer}input_layernorm.weight",
            f"{layer}post_attention_layernorm.weight",
        ]
    )


def test_grouped_heads_give_narrow_keys_and_values() -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in decoder().named_parameters()}
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (16, 16)
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (8, 16)
    assert shapes["model.layers.1.mlp.down_proj.weight"] == (16, 24)


def test_a_later_token_does_not_change_what_came_before() -> None:
    made = decoder(WIDE)
    plain = made(TOKENS)
    for at in range(1, 5):
        changed = TOKENS.clone()
        changed[:, at] = (changed[:, at] + 1) % 19
        found = made(changed)
        assert torch.equal(found[:, :at], plain[:, :at])
        assert not torch.allclose(found[:, at:], plain[:, at:])


def test_rows_do_not_see_each_other() -> None:
    made = decoder(WIDE)
    assert torch.allclose(made(TOKENS)[:1], made(TOKENS[:1]), atol=1e-12)


@pytest.mark.parametrize("prefix", [1, 2, 4])
def test_with_a_cache_token_by_token_is_the_same_as_all_at_once(prefix: int) -> None:
    made, cache = decoder(WIDE), Cache()
    parts = [made(TOKENS[:, :prefix], cache)]
    parts += [made(TOKENS[:, at : at + 1], cache) for at in range(prefix, 5)]
    assert cache.num_tokens == 5
    assert torch.allclose(torch.cat(parts, dim=1), made(TOKENS), atol=1e-12)


def test_turned_vectors_depend_on_the_distance_of_their_positions_only() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 1, 1, 8, dtype=torch.float64, generator=generator) for _ in range(2))

    def product(left: int, right: int) -> float:
        turns = [angles(torch.tensor([position]), 8, torch.float64) for position in (left, right)]
        return float((rotate(query, *turns[0]) * rotate(key, *turns[1])).sum())

    assert product(3, 1) == pytest.approx(product(12, 10), abs=1e-12)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-3)
    assert product(0, 0) == pytest.approx(float((query * key).sum()))


def test_positions_matter() -> None:
    made = decoder(WIDE)
    left, right = made(torch.tensor([[1, 2, 11]])), made(torch.tensor([[2, 1, 11]]))
    assert not torch.allclose(left[:, -1], right[:, -1], atol=1e-3)


def test_a_seed_means_the_same_weights_and_another_seed_others() -> None:
    one, same, other = (dict(build(TINY, 19, seed=seed, device=CPU).named_parameters()) for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_the_start_is_normal_with_norms_of_one_and_biases_of_nothing() -> None:
    parameters = dict(build(Config(hidden=128, intermediate=512), 19, seed=0, device=CPU).named_parameters())
    assert parameters["model.layers.0.mlp.up_proj.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    assert parameters["model.norm.weight"].unique().tolist() == [1.0]
    assert parameters["model.layers.0.self_attn.k_proj.bias"].unique().tolist() == [0.0]


def test_the_output_is_tied_to_the_embedding() -> None:
    made = decoder(WIDE)
    hidden = made.model(TOKENS, None)
    assert torch.allclose(made(TOKENS), hidden @ made.model.embed_tokens.weight.T, atol=1e-12)
