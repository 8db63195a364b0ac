"""Shapes of models: their counts against the published ones, by name and from a configuration file."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.errors import BadInput, CannotTell
from npuenv.matrix import load_matrix
from npuenv.preflight.memory import find_model, model_from
from npuenv.preflight.memory.types import count, read_memory

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.matrix.rows import ModelShape

QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


def config(folder: Path, **values: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.mark.parametrize("shape", load_matrix().models, ids=lambda shape: shape.id)
def test_the_count_of_a_shape_agrees_with_the_published_one(shape: ModelShape) -> None:
    assert count(shape) == pytest.approx(shape.parameters, rel=0.01)


def test_norms_inside_latent_attention_are_counted() -> None:
    assert find_model("deepseek-ai/DeepSeek-V3").parameters == 671026404352


def test_no_two_rows_claim_one_name() -> None:
    names = [name.casefold() for row in load_matrix().models for name in (row.id, *row.also)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7615616512),
        ("qwen/qwen2.5-7b", 7615616512),
        ("/data/models/Qwen2.5-7B", 7615616512),
        ("/data/models/Qwen3-8B-Base/", 8190735360),
    ],
)
def test_a_model_is_found_by_its_name_or_the_end_of_a_path(name: str, parameters: int) -> None:
    found = find_model(name)
    assert found.parameters == parameters
    assert found.id == name


def test_an_unknown_model_has_no_layers() -> None:
    name, *numbers = dataclasses.astuple(find_model("somebody/Else-9B"))
    assert (name, any(numbers)) == ("somebody/Else-9B", False)


def test_a_mixture_of_experts_is_as_wide_as_the_experts_of_one_token() -> None:
    assert find_model("Qwen/Qwen3-30B-A3B").intermediate == 8 * 768


def test_latent_attention_keeps_one_row_a_token() -> None:
    assert find_model("deepseek-ai/DeepSeek-V3").latent == 512 + 64
    assert find_model("Qwen/Qwen3-8B").latent == 0


def test_a_local_configuration_gives_the_published_shape(tmp_path: Path) -> None:
    found = find_model(str(config(tmp_path, **QWEN3_8B)))
    published = find_model("Qwen/Qwen3-8B")
    assert found.parameters == published.parameters == 8190735360
    assert (found.layers, found.kv_heads, found.head_dim) == (36, 8, 128)
    assert found.id == str(tmp_path)


def test_what_a_configuration_leaves_out_has_the_usual_value(tmp_path: Path) -> None:
    values = {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    folder = config(
        tmp_path, **values, num_attention_heads=14, num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True
    )
    assert model_from(folder).parameters == 494032768
    assert model_from(folder).head_dim == 64


def test_of_a_model_that_sees_the_text_part_counts(tmp_path: Path) -> None:
    folder = config(tmp_path, model_type="qwen3_vl", vision_config={"hidden_size": 1}, text_config=QWEN3_8B)
    assert model_from(folder).parameters == 8190735360


def test_routed_experts_of_a_local_configuration_are_counted(tmp_path: Path) -> None:
    values = {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "vocab_size": 129280,
    }
    found = model_from(config(tmp_path, **values))
    assert found.parameters == find_model("deepseek-ai/DeepSeek-V3").parameters
    assert found.latent == 576


@pytest.mark.parametrize("text", ["", "[1]", '{"hidden_size": "wide", "num_attention_heads": 2}', "\x00"])
def test_a_file_that_is_no_configuration_is_bad_input(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(BadInput):
        find_model(str(tmp_path))


@pytest.mark.parametrize("value", [0, -3, True, 1.5, None])
def test_a_count_that_is_none_names_its_key(tmp_path: Path, value: object) -> None:
    with pytest.raises(BadInput) as caught:
        model_from(config(tmp_path, **{**QWEN3_8B, "num_hidden_layers": value}))
    assert caught.value.message.args["key"] == "num_hidden_layers"


def test_a_mixture_of_two_kinds_of_attention_has_no_formula(tmp_path: Path) -> None:
    with pytest.raises(CannotTell):
        model_from(config(tmp_path, **QWEN3_8B, layer_types=["linear_attention", "full_attention"]))


@pytest.mark.parametrize("text", ["64", "64.0", "64G", "64GB", "64gib", " 64 GiB "])
def test_the_memory_of_a_card_may_have_a_unit(text: str) -> None:
    assert read_memory(text) == 64.0


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "65536", "65536MB", "64T", "GB", "lots"])
def test_what_is_no_memory_of_a_card_is_answered_with_unit_and_limit(text: str) -> None:
    with pytest.raises(BadInput, match=r"launch_roll\.no-memory") as raised:
        read_memory(text)
    assert raised.value.hint is not None and raised.value.hint.args == {"most": 4096}
