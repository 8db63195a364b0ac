"""Fully sharded data parallelism: each rank holds its rows of every weight, gradient and moment, and gathers the rest.

`shard` does that to a model in place, with torch's `fully_shard` (FSDP2): a layer's weights are gathered for its own
pass and freed after it, and its gradients are summed and scattered as soon as they are computed. Differences from a
model that every rank holds completely:

- A parameter is a DTensor (`trainer.shards`), in float32 at least. With `dtype=bfloat16` it is gathered, and computed
  with, in bfloat16, as the engine gets it; the float32 copy that an unsharded model's optimizer holds is the weight
  itself.
- Gradients are sums over the ranks, not means: each rank has divided by the counts of all. They are summed after each
  micro batch: summing them only after the last one would need memory for all of them on each rank.
- Every pass, forward or backward, is a collective: all ranks run the same number.

torch's package for it is imported only when a model is sharded (it imports its compiler: 3 s).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from trainer.config import BadSetting
from trainer.shards import MEAN_OF

if TYPE_CHECKING:
    from torch import nn

    from trainer.config import Config
    from trainer.distributed import World
    from trainer.models.decoder import Model

# The location of the package before torch 2.6.
_PLACES = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")


def shard(model: Model, config: Config, device: torch.device, *, world: World) -> None:
    """Shards a model, layer by layer, over all ranks; it may be on the CPU, and is on the device afterwards.

    Raises BadSetting for a torch without `fully_shard`.
    """
    fsdp = _package()
    wide = torch.promote_types(getattr(torch, config.run.dtype), torch.float32)
    model.to(wide)
    model.gather_weights()
    options = _options(fsdp, config, device, world)
    for layer in layers(model):
        fsdp.fully_shard(layer, **options)
    fsdp.fully_shard(model, **options)
    _sum_gradients(model, world)


def layers(model: nn.Module) -> list[nn.Module]:
    """The units of gathering: the members of every list of modules that is not inside another one."""
    from torch.nn import ModuleList

    found: list[nn.Module] = []

    def walk(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, ModuleList):
                found.extend(child)
            else:
                walk(child)

    walk(model)
    return found


def _package() -> Any:
    for place in _PLACES:
        try:
            package = importlib.import_module(place)
        except ImportError:
            continue
        if hasattr(package, "fully_shard"):
            return package
    raise BadSetting(f"sharding=fsdp2 needs torch 2.5 or later: torch {torch.__version__} has no fully_shard")


def _options(fsdp: Any, config: Config, device: torch.device, world: World) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dtype: torch.dtype = getattr(torch, config.run.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    narrow = dtype if dtype != wide else None
    options = {
        "mesh": init_device_mesh(device.type, (world.size,)),
        # The model's own code decides its compute dtype; a layer's input is not cast.
        "mp_policy": fsdp.MixedPrecisionPolicy(
            param_dtype=narrow, reduce_dtype=narrow and wide, cast_forward_inputs=False
        ),
        # Of the root too, unlike torch's default: between two passes every parameter is its shard.
        "reshard_after_forward": True,
    }
    return {**options, "offload_policy": fsdp.CPUOffloadPolicy()} if config.run.offload else options


def _sum_gradients(model: nn.Module, world: World) -> None:
    """Turns gradients into sums, where torch computes means.

    With a factor of 1 alone torch multiplies within the reduction, which gloo and others cannot. Releases that have no
    option to only add (2.8 and earlier) compute the mean, which `World.all_reduce_gradients` multiplies afterwards.
    """
    units: list[Any] = [each for each in model.modules() if hasattr(each, "set_requires_gradient_sync")]
    for unit in units:
        if hasattr(unit, "set_gradient_divide_factor") and hasattr(unit, "set_force_sum_reduction_for_comms"):
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
        else:
            for parameter in unit.parameters():
                setattr(parameter, MEAN_OF, world.size)
