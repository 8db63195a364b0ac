"""The receiving side of weights: a version is taken over when all of its buckets are there and whole, never half."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.weights.buckets import Bucket, checksum, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

# Of weights that nobody sent: those that an engine was started with.
AT_START = -1


class NotWhole(RuntimeError):
    """Weights that did not arrive as they were sent, or that the engine does not hold as they arrived."""


class Loading:
    """Collects buckets. `version` is that of the weights in use; None while they are not of one version.

    Buckets of one version may come in any order, and between them others of no other version: the first bucket of a
    later version drops what there was of an earlier one.
    """

    def __init__(self, take: Callable[[Mapping[str, Tensor]], None], held: Callable[[], Mapping[str, Tensor]]) -> None:
        self._take, self._held = take, held  # the engine's `load_weights` and `weights`
        self._coming: dict[int, Bucket] = {}
        self.version: int | None = AT_START

    def add(self, bucket: Bucket) -> None:
        """Takes a bucket, and with the last one that was missing the whole version. Raises NotWhole."""
        if checksum(bucket.flat) != bucket.checksum:
            raise NotWhole(f"bucket {bucket.index} of version {bucket.version} of the weights was changed on its way")
        if any(other.version != bucket.version for other in self._coming.values()):
            self._coming = {}
        self._coming[bucket.index] = bucket
        last = next((each.index for each in self._coming.values() if each.is_last), None)
        if last is None or len(self._coming) <= last:
            return
        weights = unpack(self._coming[index] for index in sorted(self._coming))
        self.version = None  # an engine that fails within `take` may hold some of both
        self._take(weights)
        if (name := first_unlike(weights, self._held())) is not None:
            raise NotWhole(f"the engine does not hold {name} as it was sent with version {bucket.version}")
        self._coming, self.version = {}, bucket.version


def first_unlike(sent: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> str | None:
    """The first name under which both have a tensor and whose bits differ; None when there is none.

    An engine in another dtype holds what rounding leaves; parts that are spread over cards it may not show.
    """
    for name, tensor in held.items():
        if name in sent and not _same(sent[name].to(tensor.device, tensor.dtype), tensor.detach()):
            return name
    return None


def _same(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape:
        return False
    both = [each.contiguous().reshape(-1).view(torch.uint8) for each in (left, right)]
    # Twice as fast as comparing, where memory can be read in words of 64 bits.
    if left.device.type == "cpu" and all(len(each) % 8 == 0 and each.storage_offset() % 8 == 0 for each in both):
        return checksum(both[0]) == checksum(both[1])
    return torch.equal(*both)  # of bytes: a NaN equals itself
