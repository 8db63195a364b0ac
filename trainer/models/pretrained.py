"""Models in folders of transformers' layout: `config.json` and safetensors, read and written; any model that it knows.

`Pretrained` is any causal language model of transformers as a policy; transformers is imported when one is loaded.

The format of safetensors: eight bytes of length, a JSON header that gives each tensor's dtype, shape and place, then
the bytes. Source: huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainer.config import BadSetting
from trainer.models import gradients
from trainer.models.decoder import Model, ModelOutput, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trainer.types import Batch

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


def write_folder(folder: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """A model folder that transformers, vllm and `read_weights` read. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / _WEIGHTS, weights)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


class Pretrained(Model):
    """A policy around a model of transformers, under that model's parameter names.

    Prompts are computed once per group through the model's own cache, with gradient. With gradient checkpointing
    transformers has no cache: then every row is computed completely.
    """

    def __init__(self, inner: Any, *, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.gradient_checkpointing = gradient_checkpointing
        self._head = _plain_head(inner)
        if gradient_checkpointing:
            # Versions 4 and 5 of transformers have different names for it; where both exist the old one warns.
            enable = getattr(inner, "activation_checkpointing_enable", None) or inner.gradient_checkpointing_enable
            enable({"use_reentrant": False})
            self.inner.train()  # transformers checkpoints in training alone

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Under transformers' names."""
        yield from self.inner.named_parameters(prefix, recurse, remove_duplicate)

    def token_logprobs(
        self, batch: Batch, *, temperature: float, with_entropy: bool = True, with_sum_pi_squared: bool = False
    ) -> ModelOutput:
        """Each masked token's log-probability [B, T], and the entropy of its distribution; both 0 elsewhere."""
        mask_BT = batch.mask_BT
        logprobs_C, statistic_C = self(batch, temperature, with_entropy, with_sum_pi_squared)
        empty = logprobs_C.new_zeros(mask_BT.shape)
        logprobs_BT = empty.masked_scatter(mask_BT, logprobs_C)
        if with_sum_pi_squared:
            return ModelOutput(logprobs_BT, empty, empty.masked_scatter(mask_BT, statistic_C))
        return ModelOutput(logprobs_BT, empty.masked_scatter(mask_BT, statistic_C) if with_entropy else empty)

    def forward(
        self, batch: Batch, temperature: float, with_entropy: bool, with_sum_pi_squared: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `gradients.token_logprobs`, for each masked token."""
        before_BTH: Tensor = self._whole_rows(batch) if self.gradient_checkpointing else self._shared(batch)
        hidden_CH, target_C = before_BTH[batch.mask_BT], batch.tokens_BT[batch.mask_BT]
        return gradients.token_logprobs(
            hidden_CH,
            self._head.weight,
            source_C=torch.arange(len(target_C), device=target_C.device),
            target_C=target_C,
            temperature=temperature,
            with_entropy=with_entropy,
            with_sum_pi_squared=with_sum_pi_squared,
            top_p=self.top_p,
            top_k=self.top_k,
        )

    def _shared(self, batch: Batch) -> Tensor:
        """Hidden states [B, T, H] of the place before each answer token; the prompts through the cache."""
        length, width = batch.prompts_PS.shape[1], batch.tokens_BT.shape[1] - 1
        if self.is_gathered:
            width = max(width, 1)  # another rank may have longer answers, and waits for this one in their pass
        steps = torch.arange(max(length, width), device=batch.tokens_BT.device)
        is_prompt_PS = steps[:length] < batch.prompt_lengths_P[:, None]
        body: Any = self.inner.base_model
        prompts = body(
            input_ids=batch.prompts_PS,
            attention_mask=is_prompt_PS.long(),
            position_ids=steps[None, :length].expand_as(batch.prompts_PS),
            use_cache=True,
        )
        rows = torch.arange(len(batch.prompts_PS), device=steps.device)
        last_BH: Tensor = prompts.last_hidden_state[rows, batch.prompt_lengths_P - 1][batch.prompt_of_B]
        if not width:
            return last_BH[:, None]
        cache = prompts.past_key_values
        cache.batch_select_indices(batch.prompt_of_B)
        is_answer_BT = steps[:width] < batch.lengths_B[:, None]
        answers = body(
            input_ids=batch.tokens_BT[:, :width],
            attention_mask=torch.cat((is_prompt_PS[batch.prompt_of_B], is_answer_BT), dim=1).long(),
            position_ids=batch.prompt_lengths_P[batch.prompt_of_B, None] + steps[:width],
            past_key_values=cache,
            use_cache=True,
        )
        states_BTH = torch.cat((last_BH[:, None], answers.last_hidden_state), dim=1)
        return states_BTH[:, : batch.tokens_BT.shape[1]]

    def _whole_rows(self, batch: Batch) -> Tensor:
        """The same, each row with its prompt before it; the padding is at the end."""
        lengths_B = batch.prompt_lengths_P[batch.prompt_of_B]
        prompts_BS, width = batch.prompts_PS[batch.prompt_of_B], batch.tokens_BT.shape[1]
        places_BT = lengths_B[:, None] + torch.arange(width, device=lengths_B.device)
        room = torch.nn.functional.pad(prompts_BS, (0, width))
        tokens_BL = room.scatter(1, places_BT, batch.tokens_BT)[:, :-1]
        steps = torch.arange(tokens_BL.shape[1], device=lengths_B.device)
        body: Any = self.inner.base_model
        states: Tensor = body(
            input_ids=tokens_BL,
            attention_mask=(steps < (lengths_B + batch.lengths_B)[:, None]).long(),
            position_ids=steps[None].expand_as(tokens_BL),
            use_cache=False,
        ).last_hidden_state
        return states.gather(1, (places_BT - 1)[:, :, None].expand(-1, -1, states.shape[-1]))


def _plain_head(inner: Any) -> nn.Linear:
    """The output layer. Raises BadSetting for a model whose logits are not its product with the last hidden state."""
    head: object = inner.get_output_embeddings()
    changes = [
        getattr(inner.config, name, None) for name in ("final_logit_softcapping", "logits_scaling", "logit_scale")
    ]
    has_bias = getattr(head, "bias", None) is not None
    if not isinstance(head, nn.Linear) or has_bias or any(each not in (None, 1.0) for each in changes):
        raise BadSetting(f"{type(inner).__name__} changes its logits after the output layer, which is not supported")
    return head


def load_pretrained(folder: Path, *, dtype: torch.dtype, gradient_checkpointing: bool) -> Pretrained:
    """The folder's model, on the CPU. Raises BadSetting where transformers is missing or cannot load it."""
    return Pretrained(causal_model(folder, dtype), gradient_checkpointing=gradient_checkpointing)


def causal_model(folder: Path, dtype: torch.dtype) -> Any:
    """transformers' model of a local folder, on the CPU. Nothing is downloaded, and no code of the folder is run.

    Raises BadSetting where transformers is missing or cannot load it.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise BadSetting(f"path={folder} needs the package transformers, which cannot be imported: {error}") from error
    options = {dtype_argument(transformers.__version__): dtype, "local_files_only": True}
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(str(folder), **options)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadSetting(f"path={folder} holds no causal model that transformers can read: {reason}") from error


def dtype_argument(version: str) -> str:
    """What `from_pretrained` calls the dtype in a release of transformers.

    Before 4.56 a `dtype` reaches the model's own constructor, which does not know it; since then `torch_dtype` is
    deprecated. Example: "4.55.4" -> "torch_dtype", "5.3.0" -> "dtype"
    """
    release = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return "dtype" if release >= (4, 56) else "torch_dtype"
