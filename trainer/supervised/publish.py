"""A trained model as a folder in transformers' layout, with its tokenizer, and its adapter in PEFT's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import models
from trainer.models import files, lora
from trainer.models.decoder import Decoder

if TYPE_CHECKING:
    from trainer.models.pretrained import Pretrained

# What belongs to a tokenizer, or to how a model is used, and is none of its weights.
_BESIDE = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "generation_config.json",
)


def publish(model: Decoder | Pretrained, out: Path, *, source: str, has_adapter: bool) -> list[Path]:
    """Writes `out/model`, and `out/adapter` where the model has one; gives back both. Raises OSError.

    `source` is the folder that the model came from, empty for a random start. In `model` adapters are merged into
    the weights. Each folder appears under its name once it is whole, in place of an older one.
    """
    made = out / "model.unfinished"
    shutil.rmtree(made, ignore_errors=True)
    if isinstance(model, Decoder):
        models.save(model, made)
    else:
        inner: Any = model.inner
        made.mkdir(parents=True)
        files.write_weights(made / "model.safetensors", lora.merged(inner))
        inner.config.save_pretrained(made)
    _copy_beside(source, made)
    written = [_in_place(made, out / "model")]
    if has_adapter:
        made = out / "adapter.unfinished"
        shutil.rmtree(made, ignore_errors=True)
        lora.save(model if isinstance(model, Decoder) else model.inner, made, base=source)
        written.append(_in_place(made, out / "adapter"))
    return written


def _copy_beside(source: str, made: Path) -> None:
    if not source:
        return
    for pattern in _BESIDE:
        for file in Path(source).glob(pattern):
            if file.is_file():
                shutil.copyfile(file, made / file.name)


def _in_place(made: Path, place: Path) -> Path:
    old = place.with_name(f"{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        os.replace(place, old)
    os.replace(made, place)
    shutil.rmtree(old, ignore_errors=True)
    return place
