"""A state on disk: one file of tensors, and a manifest that names it with its digest.

The manifest names a complete state file at every moment, however the process or the machine ends: a state is on the
disk before the manifest that names it replaces the older one, and the older state is removed only after that. The next
save removes what a killed save left behind. `sharded` writes and reads a state of which every rank holds some rows.
"""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer.distributed import present
from trainer.saving.manifest import (
    FULL,
    MANIFEST,
    STORED,
    UNFINISHED_FILE,
    CorruptCheckpoint,
    Saved,
    State,
    digest_of,
    flatten,
    name_in_manifest,
    put,
    read,
)
from trainer.weights import same_bits

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.distributed import World

__all__ = [
    "MANIFEST",
    "STORED",
    "CorruptCheckpoint",
    "Saved",
    "State",
    "difference",
    "flatten",
    "load",
    "save",
    "save_shards",
]


def save(state: State, folder: Path) -> Saved:
    """Writes the state, and then removes the former one. Raises OSError on failure."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / UNFINISHED_FILE
    try:
        torch.save(state, unfinished)
    except (RuntimeError, OSError) as error:
        raise _cannot_save(error, unfinished) from error
    digest, size = digest_of(unfinished), unfinished.stat().st_size
    saved = Saved(
        f"state-{digest[:16]}.pt",
        digest,
        size,
        sum(isinstance(v, Tensor) for v in flatten(state).values()),
        state.get("step"),
        dict(state.get("settings", {})),
    )
    put(unfinished, folder / saved.file)
    name_in_manifest(saved, folder)
    return saved


def save_shards(state: State, folder: Path, *, world: World) -> Saved:
    """Writes a state of which each rank holds some rows: see `sharded.save`. A collective. Raises OSError."""
    from trainer.saving import sharded

    return sharded.save(state, folder, world=world)


def _cannot_save(error: Exception, unfinished: Path) -> OSError:
    """The disk error with its errno; removes the partial state.

    torch's writer raises a RuntimeError without errno for every failed write.
    """
    written = unfinished.stat().st_size if unfinished.exists() else 0
    is_full = shutil.disk_usage(unfinished.parent).free < FULL
    unfinished.unlink(missing_ok=True)  # else there is no room to say so either
    if isinstance(error, OSError):
        return error
    number = errno.ENOSPC if is_full else errno.EFBIG if written >= _file_limit() else errno.EIO
    return OSError(number, f"{os.strerror(number)} ({error})", str(unfinished))


def _file_limit() -> float:
    """The largest file that this process may write, less a block."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit - 4096


def load(folder: Path, device: torch.device) -> State:
    """The saved state; of a sharded one, see `sharded.load`, the tensors are on the disk still.

    On the CPU its pages are read when they are needed, and are the same for all ranks of a machine. On a device where
    a run has its own state there may be no room for it.
    Raises CorruptCheckpoint when a file is not the one that the manifest describes.
    Nothing else is loaded in its place: an older state beside it is named, and the choice is the reader's.
    """
    saved = read(folder)
    if saved is None:
        raise CorruptCheckpoint(f"{folder / MANIFEST} is missing{_others(folder, None)}")
    if saved.files:
        from trainer.saving import sharded

        return sharded.load(folder, saved, world=present())
    path = folder / saved.file
    if not path.is_file():
        raise CorruptCheckpoint(f"{path.name} is missing{_others(folder, saved)}")
    found = digest_of(path)
    if found != saved.sha256:
        raise CorruptCheckpoint(
            f"{path.name} has the digest {found[:16]}, not {saved.sha256[:16]}{_others(folder, saved)}"
        )
    state: State = torch.load(str(path), map_location=device, weights_only=True, mmap=device.type == "cpu")
    return state


def _others(folder: Path, saved: Saved | None) -> str:
    """The other states in the folder; their names hold the start of their digest, so each can be checked."""
    names = sorted(path.name for path in folder.glob("state-*.pt") if saved is None or path.name != saved.file)
    whole = [name for name in names if name == f"state-{digest_of(folder / name)[:16]}.pt"]
    return f"; {', '.join(whole)} beside it is whole, and was not taken" if whole else "; there is no other state"


def difference(left: State, right: State) -> str | None:
    """The first entry that differs in a bit (tensors) or in value (the rest); None when all agree."""
    one, other = flatten(left), flatten(right)
    for name in [*one, *(extra for extra in other if extra not in one)]:
        if name not in one or name not in other or not _same(one[name], other[name]):
            return name
    return None


def _same(left: object, right: object) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return same_bits(left, right)
    return type(left) is type(right) and left == right
