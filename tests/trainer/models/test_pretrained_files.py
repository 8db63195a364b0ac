"""Model folders: what is written is read back bit for bit, and what is broken is refused with its reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.model_cases import QWEN2, QWEN3, decoder
from trainer.config import BadSetting, parse
from trainer.models import build, load, pretrained, save

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.models.decoder import Shape

TENSORS = {
    "a": torch.tensor([[1.5, -2.0], [0.25, torch.inf]], dtype=torch.bfloat16),
    "b.c": torch.tensor([1, -7, 2**40]),
    "none": torch.zeros(0, 3),
    "one": torch.tensor(2.5, dtype=torch.float64),
}


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    pretrained.write_weights(tmp_path / "x.safetensors", TENSORS)
    found = dict(pretrained.read_tensors(tmp_path / "x.safetensors"))
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_the_file_is_laid_out_as_the_format_says(tmp_path: Path) -> None:
    pretrained.write_weights(tmp_path / "x.safetensors", {"w": torch.tensor([1.0, 2.0])})
    data = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert json.loads(data[8 : 8 + length])["w"] == {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert data[8 + length :] == bytes.fromhex("0000803f00000040")


@pytest.mark.full
def test_the_safetensors_package_reads_what_is_written(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.torch", reason="compares with safetensors, which is not installed")
    pretrained.write_weights(tmp_path / "x.safetensors", TENSORS)
    found = package.load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    package.save_file(TENSORS, tmp_path / "y.safetensors")
    found = dict(pretrained.read_tensors(tmp_path / "y.safetensors"))
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("cut", [0, 5, 40, -1])
def test_a_cut_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.safetensors"
    pretrained.write_weights(path, TENSORS)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadSetting, match=r"x\.safetensors"):
        list(pretrained.read_tensors(path))


def test_a_size_that_does_not_fit_its_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    pretrained.write_weights(path, {"w": torch.zeros(2, 2)})
    path.write_bytes(path.read_bytes().replace(b"[2, 2]", b"[2, 3]"))
    with pytest.raises(BadSetting, match="16 bytes"):
        list(pretrained.read_tensors(path))


@pytest.mark.parametrize("shape", [QWEN2, QWEN3])
def test_a_decoder_comes_back_from_its_folder(tmp_path: Path, shape: Shape) -> None:
    made = decoder(shape, torch.float32)
    save(made, tmp_path)
    assert pretrained.read_shape(pretrained.read_config(tmp_path)) == shape
    other = build(parse([f"path={tmp_path}"], devices=("cpu",)), 19, seed=1, device=torch.device("cpu"))
    for name, weight in made.named_parameters():
        assert torch.equal(dict(other.named_parameters())[name], weight), name


def test_a_folder_in_several_files_is_read_whole(tmp_path: Path) -> None:
    made = decoder(QWEN2, torch.float32)
    save(made, tmp_path)
    weights = dict(pretrained.read_weights(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"one.safetensors": names[:5], "two.safetensors": names[5:]}
    for file, part in parts.items():
        pretrained.write_weights(tmp_path / file, {name: weights[name] for name in part})
    places = {name: file for file, part in parts.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    other = decoder(QWEN2, torch.float32, seed=7)
    load(other, tmp_path)
    assert all(torch.equal(dict(other.named_parameters())[name], weight) for name, weight in made.named_parameters())


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 100_000, "[1]", "{}", '{"weight_map": 3}', ""])
def test_a_configuration_or_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    for name in ("config.json", "model.safetensors.index.json"):
        (tmp_path / name).write_text(text)
    if not text.startswith("{"):
        with pytest.raises(BadSetting, match="model folder"):
            pretrained.read_config(tmp_path)
    with pytest.raises(BadSetting, match="index"):
        list(pretrained.read_weights(tmp_path))


def test_missing_and_unknown_weights_are_named(tmp_path: Path) -> None:
    made = decoder(QWEN2, torch.float32)
    weights = {name: weight.detach() for name, weight in made.named_parameters()}
    last = weights.pop("model.norm.weight")
    config = pretrained.config_of(QWEN2, torch.float32)
    pretrained.write_folder(tmp_path, weights, config)
    with pytest.raises(BadSetting, match=r"lacks model\.norm\.weight"):
        load(made, tmp_path)
    pretrained.write_folder(tmp_path, {**weights, "model.norm.weight": last, "model.extra": last}, config)
    with pytest.raises(BadSetting, match=r"model\.extra"):
        load(made, tmp_path)


def test_a_folder_without_a_configuration_and_a_small_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="model folder"):
        build(parse([f"path={tmp_path}"], devices=("cpu",)), 19, seed=0, device=torch.device("cpu"))
    save(decoder(QWEN2), tmp_path)
    with pytest.raises(BadSetting, match=r"\b19 tokens\b.*\b20\b"):
        build(parse([f"path={tmp_path}"], devices=("cpu",)), 20, seed=0, device=torch.device("cpu"))


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "llama"},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}},
        {"use_sliding_window": True},
        {"hidden_act": "gelu"},
    ],
)
def test_what_the_built_in_decoder_cannot_be_is_left_to_others(change: dict[str, object]) -> None:
    config = pretrained.config_of(QWEN2, torch.float32)
    assert pretrained.read_shape(config) == QWEN2
    assert pretrained.read_shape({**config, **change}) is None


def test_an_older_configuration_with_its_angle_base_on_top_is_read() -> None:
    config = pretrained.config_of(QWEN3, torch.float32)
    del config["rope_parameters"]
    found = pretrained.read_shape(config)
    assert found is not None and found.rope_base == 500.0
