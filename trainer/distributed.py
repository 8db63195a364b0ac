"""The ranks of a run: processes that each generate a share of the rollouts and update the same weights together.

`World.single()` is a run of one process, whose collectives are the identity, so that other modules need not check the
number of ranks. `join` makes the world of a process that was started with `RANK`, `WORLD_SIZE` and `LOCAL_RANK` in its
environment (by `trainer.launch`, torchrun or Ray).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from trainer import device as devices
from trainer import launch
from trainer.sharding import MEAN_OF, is_sharded, local

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

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
