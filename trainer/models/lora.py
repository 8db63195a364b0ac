"""LoRA: linear layers with a frozen weight plus the product of two low-rank matrices.

`attach` adds adapters to any model, `merged` returns the weights with the adapters merged in, `save` writes
PEFT's folder format. Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models"; peft,
tuners/lora/layer.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trainer.config import BadSetting
from trainer.models import gradients, pretrained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_PREFIX = "base_model.model."  # peft's, before every name


class Factor(nn.Module):
    """One of the two thin matrices."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


class Adapted(nn.Module):
    """x -> W x + b + alpha / rank * B A x; W and b do not learn. A starts random, B at 0: at first nothing changes."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.rank, self.alpha = rank, alpha
        limit = linear.in_features**-0.5
        start = (torch.rand(rank, linear.in_features, generator=generator) * 2 - 1) * limit
        self.lora_A = Factor(start.to(linear.weight))
        self.lora_B = Factor(linear.weight.new_zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        thin = gradients.linear(gradients.linear(x, self.lora_A.weight), self.lora_B.weight)
        return gradients.linear(x, self.weight, self.bias).add(thin, alpha=self.alpha / self.rank)

    def merged(self, gather: Callable[[Tensor], Tensor] = torch.Tensor.detach) -> Tensor:
        """The one weight that does the same; computed in float32 at least."""
        weight, factors = gather(self.weight), [gather(each.weight) for each in (self.lora_B, self.lora_A)]
        wide = torch.promote_types(weight.dtype, torch.float32)
        change = factors[0].to(wide) @ factors[1].to(wide)
        return weight.to(wide).add(change, alpha=self.alpha / self.rank).to(weight.dtype)


def attach(model: nn.Module, *, rank: int, alpha: float, targets: Sequence[str], seed: int) -> list[str]:
    """Adapts every linear layer whose name ends in one of the targets, freezes all else; gives back their names.

    Raises BadSetting when a target names none.
    """
    generator = torch.Generator().manual_seed(seed)
    model.requires_grad_(False)
    linears = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in targets
    ]
    missing = set(targets) - {name.rpartition(".")[2] for name, _ in linears}
    if missing:
        raise BadSetting(f"lora_targets={','.join(sorted(missing))} names no linear layer of this model")
    for name, module in linears:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, Adapted(module, rank, alpha, generator))
    return [name for name, _ in linears]


def adapted(model: nn.Module) -> Iterator[tuple[str, Adapted]]:
    """The adapted layers with their names."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, Adapted))


@torch.no_grad()
def merged(model: nn.Module) -> dict[str, Tensor]:
    """The weights under the names, and with the values, of the model without adapters; what an engine is to receive."""
    return dict(each_merged(model))


def each_merged(
    model: nn.Module, gather: Callable[[Tensor], Tensor] = torch.Tensor.detach
) -> Iterator[tuple[str, Tensor]]:
    """`merged` one after the other; `gather` returns the complete weight of a sharded one."""
    layers = {id(layer.weight): layer for _, layer in adapted(model)}
    for name, weight in model.named_parameters():
        if ".lora_" not in name:
            with torch.no_grad():
                layer = layers.get(id(weight))
                value = gather(weight) if layer is None else layer.merged(gather)
            yield name, value


def factors(model: nn.Module, gather: Callable[[Tensor], Tensor] = torch.Tensor.detach) -> dict[str, Tensor]:
    """The adapter's matrices under peft's names; `gather` returns the complete one of a sharded one."""
    return {
        f"{_PREFIX}{name}.{part}.weight": gather(getattr(layer, part).weight)
        for name, layer in adapted(model)
        for part in ("lora_A", "lora_B")
    }


def save(model: nn.Module, folder: Path, tensors: Mapping[str, Tensor], *, base: str) -> None:
    """The adapter alone, as peft reads it: the model's `factors`. `base` names the model that it adapts.

    Raises OSError.
    """
    layers = dict(adapted(model))
    first = next(iter(layers.values()))
    folder.mkdir(parents=True, exist_ok=True)
    pretrained.write_weights(folder / "adapter_model.safetensors", tensors)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": first.rank,
        "lora_alpha": first.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
