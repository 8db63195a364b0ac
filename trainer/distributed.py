"""The ranks of a run: processes that each generate a share of the rollouts and update the same weights together.

`World.single()` is a run of one process, whose collectives are the identity, so that other modules need not check the
number of ranks. `join` makes the world of a process that was started with `RANK`, `WORLD_SIZE` and `LOCAL_RANK` in its
environment (by `trainer.launch`, torchrun or Ray).

Fully sharded, each rank holds its rows of every weight, gradient and moment, and gathers the rest. `shard` does that to
a model in place, with torch's `fully_shard` (FSDP2): a layer's weights are gathered for its own pass and freed after
it, and its gradients are summed and scattered as soon as they are computed. Differences from a model that every rank
holds completely:

- A parameter is a DTensor, sharded along the first axis, in float32 at least. With `dtype=bfloat16` it is gathered, and
  computed with, in bfloat16, as the engine gets it; the float32 copy that an unsharded model's optimizer holds is the
  weight itself.
- Gradients are sums over the ranks, not means: each rank has divided by the counts of all. They are summed after each
  micro batch: summing them only after the last one would need memory for all of them on each rank.
- Every pass, forward or backward, is a collective: all ranks run the same number.

The other functions read and write such tensors, and return any other tensor unchanged. torch's package is imported only
when a model is sharded (it imports its compiler: 3 s).
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from trainer import device as devices
from trainer import launch
from trainer.sections import BadSetting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor, nn

    from trainer.sections import Run


# Extra time that a rank waits for the others beyond a step's limit, so that the process that watches the ranks acts
# first.
_PATIENCE_S = 600.0
_WIDE = 4  # bytes of a float32


@dataclass(frozen=True, slots=True)
class World:
    """This process among its ranks. Every method is a collective: all ranks call it, in the same order."""

    rank: int
    size: int

    @classmethod
    def single(cls) -> World:
        return cls(0, 1)

    @property
    def is_first(self) -> bool:
        """Whether this rank writes records and checkpoints."""
        return self.rank == 0

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, in place; of float64 in float32 if the device does not support it."""
        if self.size > 1:
            _reduce(tensor)
        return tensor

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        """The maximum over the ranks, in place; likewise."""
        if self.size > 1:
            _reduce(tensor, op=torch.distributed.ReduceOp.MAX)
        return tensor

    def all_reduce_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sums the gradients over the ranks: each has divided its own by the counts of all, so no mean is taken.

        One message for all tensors of a dtype. A parameter without a gradient on one rank must have none on any.
        Those of sharded parameters are summed on the way back already; where torch took their mean, it is undone.
        """
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is None:
                continue
            if is_sharded(parameter):
                if hasattr(parameter, MEAN_OF):
                    local(parameter.grad).mul_(getattr(parameter, MEAN_OF))
            else:
                by_dtype.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for gradients in by_dtype.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            if flat.element_size() < _WIDE:  # in 8 bits a sum of many ranks loses what each adds
                flat = flat.float()
            _reduce(flat)
            for gradient, part in zip(gradients, torch.split(flat, [each.numel() for each in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def gather(self, value: Any) -> list[Any]:
        """What every rank gave, in the order of the ranks; anything that can be pickled."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(gathered, value)
        return gathered

    def barrier(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            torch.distributed.barrier(device_ids=devices.of_barrier(torch.distributed.get_backend()))

    def shard(self, items: Sequence[Any]) -> list[Any]:
        """This rank's part of what all ranks hold: every `size`-th, from its own number on. No collective."""
        return list(items[self.rank :: self.size])


def _reduce(tensor: Tensor, **how: Any) -> None:
    """An all-reduce in place, in float32 if the device's collectives do not support float64."""
    if tensor.dtype != torch.float64 or devices.reduces_float64(tensor.device):
        torch.distributed.all_reduce(tensor, **how)
        return
    narrow = tensor.float()
    torch.distributed.all_reduce(narrow, **how)
    tensor.copy_(narrow)


def join(backend: str, *, limit_s: float = 1800.0) -> World:
    """Joins the other ranks. Raises RuntimeError if they do not join.

    `limit_s`: the limit of a step; compiling operators for the first time takes minutes on an NPU.
    """
    if not launch.is_rank():
        return World.single()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = os.environ.get(launch.RENDEZVOUS)
    method = f"file://{place}" if place else "env://"
    patience = timedelta(seconds=limit_s + _PATIENCE_S)
    torch.distributed.init_process_group(backend, init_method=method, rank=rank, world_size=size, timeout=patience)
    return World(rank, size)


def present() -> World:
    """The world that this process has joined; else that of one process."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return World.single()
    return World(torch.distributed.get_rank(), torch.distributed.get_world_size())


def leave(world: World) -> None:
    """Ends the collectives of this process."""
    if world.size > 1:
        torch.distributed.destroy_process_group()


# Sharded tensors.

# Set on a sharded parameter whose gradient comes as the mean over so many ranks instead of as their sum.
MEAN_OF = "_mean_of"


def is_sharded(tensor: Tensor) -> bool:
    """Whether each rank holds only its rows: a DTensor of torch, whose module the caller need not import."""
    return hasattr(tensor, "to_local")


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """This rank's rows of a sharded tensor, sharing its memory; any other tensor as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """All rows of a sharded tensor, gathered on each rank: a collective; any other tensor as it is."""
    if not is_sharded(tensor):
        return tensor
    there: Any = tensor.detach().to(home(tensor))  # shards on the CPU are gathered on the device that uses them
    return there.full_tensor()  # type: ignore[no-any-return]


def gathered(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """All rows of a sharded weight, rounded before they travel: a collective; any other weight as it is."""
    return whole(weight.detach().to(dtype)) if is_sharded(weight) else weight


def home(tensor: Tensor) -> torch.device | str:
    """The device on which the ranks exchange its rows."""
    where: Any = tensor
    return str(where.device_mesh.device_type) if is_sharded(tensor) else tensor.device


@torch.no_grad()
def like(own: Tensor, part: Tensor) -> Tensor:
    """A tensor sharded like `own`, of which `part` holds this rank's rows; `part` if `own` is not sharded.

    By reference, unless the rows are on the CPU: then it is copied to the device that uses them.
    """
    if not is_sharded(own):
        return part
    kind: Any = type(own)
    where: Any = own
    return kind.from_local(  # type: ignore[no-any-return]
        part, where.device_mesh, where.placements, run_check=False, shape=own.shape, stride=own.stride()
    )


@torch.no_grad()
def put(own: Tensor, given: Tensor) -> None:
    """Copies the values of a tensor into another: both sharded alike, or an unsharded one into either."""
    local(own).copy_(rows(own, given))


def rows(own: Tensor, given: Tensor) -> Tensor:
    """What this rank holds of `given` if it is sharded as `own` is, which it may be already."""
    if not is_sharded(own) or is_sharded(given):
        return local(given)
    where: Any = own
    chunks, rank = given.chunk(where.device_mesh.size()), where.device_mesh.get_local_rank()
    return chunks[rank] if rank < len(chunks) else given[:0]


# The location of the package before torch 2.6.
_PLACES = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")


def shard(model: Any, run: Run, device: torch.device, *, num_ranks: int) -> None:
    """Shards a model (`trainer.models.decoder.Model`), layer by layer, over all ranks.

    It may be on the CPU, and is on the device afterwards.

    Raises BadSetting for a torch without `fully_shard`.
    """
    fsdp = _package()
    wide = torch.promote_types(getattr(torch, run.dtype), torch.float32)
    model.to(wide)
    model.gather_weights()
    options = _options(fsdp, run, device, num_ranks)
    for layer in layers(model):
        fsdp.fully_shard(layer, **options)
    fsdp.fully_shard(model, **options)
    _sum_gradients(model, num_ranks)


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


def _options(fsdp: Any, run: Run, device: torch.device, num_ranks: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dtype: torch.dtype = getattr(torch, run.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    narrow = dtype if dtype != wide else None
    options = {
        "mesh": init_device_mesh(device.type, (num_ranks,)),
        # The model's own code decides its compute dtype; a layer's input is not cast.
        "mp_policy": fsdp.MixedPrecisionPolicy(
            param_dtype=narrow, reduce_dtype=narrow and wide, cast_forward_inputs=False
        ),
        # Of the root too, unlike torch's default: between two passes every parameter is its shard.
        "reshard_after_forward": True,
    }
    return {**options, "offload_policy": fsdp.CPUOffloadPolicy()} if run.offload else options


def _sum_gradients(model: nn.Module, num_ranks: int) -> None:
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
                setattr(parameter, MEAN_OF, num_ranks)
