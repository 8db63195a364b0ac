"""Anonymous memory that a process shares with the generators that it starts: it is freed when all have ended.

The process that creates an `Arena` allocates pieces of it for what it sends; a generator that inherited its file maps
them with `look`.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

Place = tuple[int, int]  # offset and bytes


class Arena:
    """One file of memory that grows. Pieces are never freed: their owner reuses them."""

    def __init__(self) -> None:
        self.fd = _file()
        self._size = 0
        self._pieces: dict[int, tuple[Tensor, Place]] = {}  # by the address here

    def allocate(self, num_bytes: int) -> Tensor:
        """A new piece, uint8 of this length. Raises OSError if there is no memory for it."""
        offset, length = self._size, -(-max(num_bytes, 1) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        # Allocates the memory now, unlike a sparse file: a shortage would otherwise be a fault later.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.fd, offset, length)
        else:
            os.ftruncate(self.fd, offset + length)
        self._size += length
        piece = look(self.fd, (offset, num_bytes))
        self._pieces[piece.data_ptr()] = (piece, (offset, num_bytes))
        return piece

    def place(self, piece: Tensor) -> Place | None:
        """The location of a piece; None for memory that is not shared."""
        _, place = self._pieces.get(piece.data_ptr(), (None, None))
        return place if place is not None and place[1] == len(piece) else None

    def close(self) -> None:
        """Forgets the file; pieces that are in use stay."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()


def look(fd: int, place: Place) -> Tensor:
    """The memory at a place of an arena's file; its tensor keeps it."""
    offset, num_bytes = place
    whole = torch.frombuffer(mmap.mmap(fd, max(num_bytes, 1), offset=offset), dtype=torch.uint8)
    return whole[:num_bytes]


def _file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("trainer-weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
