"""A trained model as a folder in transformers' layout, with its tokenizer, and its adapter in PEFT's.

`publish_run` is how every run ends; `export` does the same with a checkpoint.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.models import files, lora
from trainer.models.decoder import Decoder
from trainer.shards import gathered

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainer.config import Config
    from trainer.distributed import World
    from trainer.metrics.progress import Progress
    from trainer.metrics.records import Records
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


def publish(model: Decoder | Pretrained, out: Path, config: Config, *, world: World) -> list[Path]:
    """Writes `out/model`, and with LoRA `out/adapter`; returns what this rank wrote. A collective. Raises OSError.

    In `model` adapters are merged into the weights, and sharded weights are gathered, in the run's dtype: for that rank
    0 holds the complete model on the CPU. Each folder appears under its name once it is complete, and replaces an older
    one.
    """
    gather = partial(gathered, dtype=getattr(torch, config.run.dtype))
    weights: dict[str, Tensor] = {}
    for name, weight in lora.each_merged(model, gather):
        if world.is_first:
            weights[name] = weight.detach().cpu()
    bare: nn.Module = model if isinstance(model, Decoder) else model.inner
    factors = lora.factors(bare, gather)
    if not world.is_first:
        return []
    source = config.model.path
    made = _begin(out / "model")
    if isinstance(model, Decoder):
        files.write(made, weights, _described(model, config))
    else:
        files.write_weights(made / "model.safetensors", weights)
        model.inner.config.save_pretrained(made)
    _copy_beside(source, made)
    written = [_in_place(made, out / "model")]
    if factors:
        made = _begin(out / "adapter")
        lora.save(bare, made, factors, base=source)
        written.append(_in_place(made, out / "adapter"))
    return written


def publish_run(
    model: Decoder | Pretrained, out: Path, config: Config, records: Records, progress: Progress, *, world: World
) -> None:
    """`publish` at the end of a run, with a record of it. A collective."""
    with progress.part("save_checkpoint"):
        written = publish(model, out, config, world=world)
    records.write("published", folders=[str(each) for each in written])


def _described(model: Decoder, config: Config) -> dict[str, Any]:
    """Its `config.json`: the source's where it came from a folder, which holds what the decoder does not use too."""
    own = files.config_of(model.shape, getattr(torch, config.run.dtype))
    if not config.model.path:
        return own
    given = files.read_config(Path(config.model.path))
    given.pop("dtype", None)  # transformers 5 has another name for it, and reads both
    return {**given, "torch_dtype": own["torch_dtype"]}


def _begin(place: Path) -> Path:
    made = place.with_name(f"{place.name}.unfinished")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    return made


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
