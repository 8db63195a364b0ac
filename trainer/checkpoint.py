"""A state on disk: one file of tensors, and a manifest that names it with its digest.

The state file is complete before the manifest points to it, so an interrupted save leaves the previous checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainer.metrics.checks import same_bits

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "manifest.json"
State = dict[str, Any]


class CorruptCheckpoint(Exception):
    """A checkpoint that is not what was saved; the text says in what it differs."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a save wrote; also the manifest."""

    file: str
    sha256: str
    bytes: int
    tensors: int


def save(state: State, folder: Path) -> Saved:
    """Writes the state and removes the one that stood there before. Raises OSError where that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "state.unfinished"
    try:
        torch.save(state, unfinished)
    except RuntimeError as error:  # what torch's writer makes of a full disk
        raise OSError(f"cannot write {unfinished}: {error}") from error
    digest, size = _digest(unfinished), unfinished.stat().st_size
    saved = Saved(f"state-{digest[:16]}.pt", digest, size, sum(isinstance(v, Tensor) for v in flatten(state).values()))
    os.replace(unfinished, folder / saved.file)
    (folder / "manifest.unfinished").write_text(json.dumps(asdict(saved)) + "\n", encoding="utf-8")
    os.replace(folder / "manifest.unfinished", folder / MANIFEST)
    for old in folder.glob("state-*.pt"):
        if old.name != saved.file:
            old.unlink()
    return saved


def load(folder: Path, device: torch.device) -> State:
    """The saved state. Raises CorruptCheckpoint when the file is not the one that the manifest describes."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    path = folder / manifest["file"]
    if not path.is_file():
        raise CorruptCheckpoint(f"{path.name} is missing")
    found = _digest(path)
    if found != manifest["sha256"]:
        raise CorruptCheckpoint(f"{path.name} has the digest {found[:16]}, not {manifest['sha256'][:16]}")
    state: State = torch.load(path, map_location=device, weights_only=True)
    return state


def flatten(state: State, prefix: str = "") -> dict[str, Any]:
    """Nested names joined by `/`. Example: {"a": {"b": 1}} -> {"a/b": 1}"""
    flat: dict[str, Any] = {}
    for name, value in state.items():
        flat |= flatten(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


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


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
