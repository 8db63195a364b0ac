"""The policies. `decoder.Decoder` is the built-in one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainer.config import BadSetting
from trainer.models import lora, pretrained
from trainer.models.decoder import Decoder, Shape

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.models.pretrained import Pretrained
    from trainer.sections import Model

_START_DEVIATION = 0.02


def build(
    config: Config, vocabulary_size: int, *, seed: int, device: torch.device, is_adapted: bool = True
) -> Decoder | Pretrained:
    """The configured policy: from its folder, or randomly initialised; with LoRA's layers if a rank is set.

    Random weights are normal of deviation 0.02, biases 0, norms 1, drawn on the CPU in the order of the parameters, so
    that a seed gives the same weights on every device. `is_adapted` false: without LoRA whatever the rank, as an engine
    samples with it. Raises BadSetting for a folder that cannot be used.
    """
    settings, dtype = config.model, getattr(torch, config.run.dtype)
    model: Decoder | Pretrained
    if settings.path:
        model = from_folder(settings, vocabulary_size, dtype)
    else:
        model = from_random(settings, vocabulary_size, dtype, seed)
    model.top_p, model.top_k = config.rollout.top_p, config.rollout.top_k
    if settings.lora_rank and is_adapted:
        targets = [name.strip() for name in settings.lora_targets.split(",")]
        lora.attach(model, rank=settings.lora_rank, alpha=settings.lora_alpha, targets=targets, seed=seed)
    return model.to(device)


def from_random(settings: Model, vocabulary_size: int, dtype: torch.dtype, seed: int) -> Decoder:
    """The built-in decoder of the configured size, on the CPU."""
    shape = Shape(
        vocabulary=vocabulary_size,
        hidden=settings.hidden,
        layers=settings.layers,
        heads=settings.heads,
        kv_heads=settings.kv_heads,
        head_size=settings.hidden // settings.heads,
        intermediate=settings.intermediate,
    )
    # Not built on the meta device: that imports torch's compiler for its random start, 2.7 s (torch 2.13).
    decoder = Decoder(shape, gradient_checkpointing=settings.gradient_checkpointing).to(dtype)
    fill(decoder, seed=seed)
    return decoder


@torch.no_grad()
def fill(decoder: Decoder, *, seed: int) -> None:
    """Draws every weight anew."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            parameter.normal_(0.0, _START_DEVIATION, generator=generator)


def from_folder(settings: Model, vocabulary_size: int, dtype: torch.dtype) -> Decoder | Pretrained:
    """The folder's model, on the CPU: the built-in decoder if it supports it. Raises BadSetting."""
    folder = Path(settings.path)
    shape = pretrained.read_shape(pretrained.read_config(folder))
    if shape is None:
        return pretrained.load_pretrained(folder, dtype=dtype, gradient_checkpointing=settings.gradient_checkpointing)
    if shape.vocabulary < vocabulary_size:
        raise BadSetting(f"path={folder} knows {shape.vocabulary} tokens, the task's tokenizer {vocabulary_size}")
    decoder = Decoder(shape, gradient_checkpointing=settings.gradient_checkpointing).to(dtype)
    load(decoder, folder)
    return decoder


@torch.no_grad()
def load(decoder: Decoder, folder: Path) -> None:
    """Loads the folder's weights. Raises BadSetting if one is missing, unknown or of another shape."""
    missing = dict(decoder.named_parameters())
    for name, tensor in pretrained.read_weights(folder):
        if name == "lm_head.weight" and decoder.lm_head is None:
            continue  # a copy of the embedding, which some writers keep
        own = missing.pop(name, None)
        if own is None or own.shape != tensor.shape:
            raise BadSetting(f"path={folder} holds {name} of shape {list(tensor.shape)}, which has no place")
        own.copy_(tensor)
    if missing:
        raise BadSetting(f"path={folder} lacks {next(iter(missing))} and {len(missing) - 1} more")


def save(decoder: Decoder, folder: Path) -> None:
    """A folder in transformers' layout, LoRA's changes merged in. Raises OSError."""
    weights = lora.merged(decoder)
    pretrained.write_folder(folder, weights, pretrained.config_of(decoder.shape, next(iter(weights.values())).dtype))
