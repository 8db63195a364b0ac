"""Weights as a few flat buffers, sent and loaded as one version or not at all.

`Packer.pack` fills buckets from pairs of name and tensor, one after the other, so that a learner's shards may be
gathered one tensor at a time while earlier buckets are sent; `unpack` returns the tensors without copying. The
transport of a bucket is not part of this module. `same_bits` compares two tensors, and `fingerprint` weights in two
processes without sending them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from trainer.distributed import local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

# Every tensor starts at a multiple of this, so that it can be looked at in its own dtype where it lies.
_ALIGNED = 64
# Numbers that are added up before the sum is weighed by its place.
_ROW = 1 << 12


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in a bucket."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # torch's name of it: `float32`
    offset: int  # bytes from the bucket's start


@dataclass(frozen=True, slots=True)
class Bucket:
    """One piece of one version of the weights."""

    version: int
    index: int  # from 0
    is_last: bool  # no bucket of this version has a higher index
    entries: tuple[Entry, ...]
    flat: Tensor  # uint8, contiguous, on the CPU; a multiple of 64 bytes long
    checksum: int  # of `flat`


def checksum(flat: Tensor) -> int:
    """A number that memory with one bit changed, or with pieces of 32 KiB in another order, does not share.

    `flat`: uint8, a multiple of 8 bytes. Not against intent, only against accident; as fast as memory is read.
    """
    words_N = flat.view(torch.int64)
    whole = len(words_N) // _ROW * _ROW
    sums_R = torch.cat((words_N[:whole].view(-1, _ROW).sum(dim=1), words_N[whole:].sum().view(1)))
    # An odd weight loses no bit of a sum; all sums are those of 64 bits that overflow.
    return int((sums_R * (2 * torch.arange(len(sums_R), device=flat.device) + 1)).sum())


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _is_in_words(flat: Tensor) -> bool:
    """Whether bytes can be read as 64-bit words."""
    return len(flat) % 8 == 0 and flat.storage_offset() % 8 == 0


def same_bits(left: Tensor, right: Tensor) -> bool:
    """True when shape, dtype and every bit agree: a NaN equals itself and 0.0 is not -0.0.

    Of sharded tensors only this rank's rows are looked at.
    """
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    left, right = local(left), local(right)
    if left.device != right.device:  # an engine may keep its weights on the host
        left, right = left.cpu(), right.cpu()
    both = [_bytes(left), _bytes(right)]
    if all(map(_is_in_words, both)):  # seventeen times as fast
        both = [each.view(torch.int64) for each in both]
    return torch.equal(*both)


def fingerprint(weights: Iterable[tuple[str, Tensor]]) -> int:
    """A number that weights with another bit, name, shape or dtype do not share, in whatever order they come.

    At least 0 and below 2**63. On any device, one tensor at a time. Not against intent, only against accident.
    """
    total = 0
    for name, weight in weights:
        flat = _bytes(weight)
        if not _is_in_words(flat):
            flat = torch.cat((flat, flat.new_zeros(-len(flat) % 8)))
        what = zlib.crc32(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        # Beside the product, so that tensors of zeros count too.
        total += what + (2 * what + 1) * checksum(flat)
    return total & (2**63 - 1)


@dataclass(slots=True)
class Packer:
    """Makes buckets, in memory that it uses again for the next version once a bucket's size is the same."""

    bucket_bytes: int  # a larger tensor gets its own bucket
    _memory: list[Tensor] = field(default_factory=list)

    def pack(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Iterator[Bucket]:
        """The buckets of one version, each as soon as it is full; those of the version before are overwritten.

        Tensors may lie on any device. Of no tensors: one empty bucket.
        """
        waiting: list[tuple[str, Tensor]] = []
        size = index = 0
        for name, weight in weights:
            num_bytes = _aligned(weight.numel() * weight.element_size())
            if waiting and size + num_bytes > self.bucket_bytes:
                yield self._filled(waiting, size, version, index, is_last=False)
                waiting, size, index = [], 0, index + 1
            waiting.append((name, weight.detach()))
            size += num_bytes
        yield self._filled(waiting, size, version, index, is_last=True)

    def _filled(
        self, weights: Sequence[tuple[str, Tensor]], size: int, version: int, index: int, *, is_last: bool
    ) -> Bucket:
        flat, offset, entries = self._place(index, size), 0, []
        for name, weight in weights:
            end = offset + weight.numel() * weight.element_size()
            entries.append(Entry(name, tuple(weight.shape), str(weight.dtype).removeprefix("torch."), offset))
            flat[offset:end].view(weight.dtype).view(weight.shape).copy_(weight)
            flat[end : _aligned(end)] = 0
            offset = _aligned(end)
        return Bucket(version, index, is_last, tuple(entries), flat, checksum(flat))

    def _place(self, index: int, size: int) -> Tensor:
        if index == len(self._memory) or len(self._memory[index]) != size:
            self._memory[index : index + 1] = [torch.empty(size, dtype=torch.uint8)]
        return self._memory[index]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def unpack(buckets: Iterable[Bucket]) -> dict[str, Tensor]:
    """The tensors of some buckets, as they lie there: they change with them."""
    return {entry.name: _read(bucket.flat, entry) for bucket in buckets for entry in bucket.entries}


def _read(flat: Tensor, entry: Entry) -> Tensor:
    dtype = getattr(torch, entry.dtype)
    num_bytes = dtype.itemsize
    for length in entry.shape:
        num_bytes *= length
    return flat[entry.offset : entry.offset + num_bytes].view(dtype).view(entry.shape)


# Of weights that nobody sent: those that an engine was started with.
AT_START = -1


class NotWhole(RuntimeError):
    """Weights that did not arrive as they were sent, or that the engine does not hold as they arrived."""


class Loading:
    """Collects buckets. `version` is that of the weights in use; None while they are not of one version.

    Buckets may arrive in any order, but versions must not interleave: the first bucket of a later version drops what
    there was of an earlier one.
    """

    def __init__(self, take: Callable[[Mapping[str, Tensor]], None], held: Callable[[], Mapping[str, Tensor]]) -> None:
        self._take, self._held = take, held  # the engine's `load_weights` and `weights`
        self._coming: dict[int, Bucket] = {}
        self.version: int | None = AT_START

    def add(self, bucket: Bucket) -> None:
        """Adds a bucket, and completes the version with the last missing one. Raises NotWhole."""
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
        if name in sent and not same_bits(sent[name].to(tensor.device, tensor.dtype), tensor):
            return name
    return None
