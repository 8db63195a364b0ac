"""Reads and writes tensors of which each rank holds some rows; other tensors are returned unchanged.

They are torch's DTensors, sharded along the first axis. Users of these functions need not import them: a run without
sharding never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

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
