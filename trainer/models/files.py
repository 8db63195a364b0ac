"""Model folders in transformers' layout: `config.json`, and weights in the safetensors format, read and written here.

The format: eight bytes of length, a JSON header that gives each tensor's dtype, shape and place, then the bytes.
Source: huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from typing import TYPE_CHECKING, Any

import torch

from trainer.config import BadSetting
from trainer.models.decoder import Shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # the format's own limit
_WEIGHTS = "model.safetensors"


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`. Raises BadSetting if there is no readable one."""
    path = folder / "config.json"
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise BadSetting(f"path={folder} is no model folder: {path} cannot be read ({error})") from error


def read_shape(config: Mapping[str, Any]) -> Shape | None:
    """The decoder's sizes from transformers' configuration; None for a model that the built-in decoder cannot be.

    That is every type but qwen2 and qwen3, and these with scaled positions, sliding windows or another activation.
    """
    kind = config.get("model_type")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    is_plain = rope.get("rope_type", rope.get("type", "default")) == "default"
    has_windows = bool(config.get("use_sliding_window"))
    if kind not in ("qwen2", "qwen3") or not is_plain or has_windows or config.get("hidden_act", "silu") != "silu":
        return None
    if kind == "qwen3" and config.get("attention_bias"):
        return None
    heads = config["num_attention_heads"]
    return Shape(
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        rope_base=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        is_qwen3=kind == "qwen3",
    )


def config_of(shape: Shape, dtype: torch.dtype) -> dict[str, Any]:
    """What transformers 4 and 5 both read the same decoder from."""
    kind = "qwen3" if shape.is_qwen3 else "qwen2"
    return {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "intermediate_size": shape.intermediate,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": 32768,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_base},
        "tie_word_embeddings": shape.is_tied,
        "use_sliding_window": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of the folder's safetensors files with its name, one at a time, on the CPU.

    Raises BadSetting if a file is missing or broken.
    """
    index = folder / f"{_WEIGHTS}.index.json"
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.is_file() else {"": _WEIGHTS}
        names = sorted(set(map(str, found.values())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadSetting(f"{index} is no index of weights: {error}") from error
    for name in names:
        yield from read_tensors(folder / name)


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one safetensors file in the order of the file. Raises BadSetting if it is missing or broken."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(size - 8, _LONGEST_HEADER):
                raise BadSetting(f"{path} is no safetensors file: its header cannot be {length} bytes long")
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
                begin, end = entry["data_offsets"]
                if not 0 <= begin <= end <= size - 8 - length:
                    raise BadSetting(f"{path} is cut off: {name} should end at {end} of its data")
                file.seek(8 + length + begin)
                yield name, _tensor(file.read(end - begin), entry, f"{path}: {name}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, BadSetting):
            raise
        raise BadSetting(f"{path} cannot be read as safetensors: {error}") from error


def _tensor(data: bytes, entry: Mapping[str, Any], name: str) -> Tensor:
    dtype, shape = _DTYPES.get(entry["dtype"]), entry["shape"]
    if dtype is None:
        raise BadSetting(f"{name} has the dtype {entry['dtype']}. Accepted: {', '.join(_DTYPES)}")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise BadSetting(f"{name} has {len(data)} bytes, which do not make {shape} of {entry['dtype']}")
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a safetensors file, which appears under its name only once it is complete. Raises OSError."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data start at a multiple of eight
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            whole = tensor.detach().cpu().contiguous()
            file.write(ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size()))
    os.replace(unfinished, path)


def write(folder: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """A model folder that transformers, vllm and `read_weights` read. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / _WEIGHTS, weights)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
