"""The manifest of a checkpoint: the file of the state, its step and its settings.

A file gets its name only once its bytes are written. Imports no torch.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "manifest.json"


class CorruptCheckpoint(Exception):
    """A checkpoint that differs from what was saved; the text says how."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The result of a save; also the manifest."""

    file: str
    sha256: str
    bytes: int
    tensors: int
    step: int | None = None  # of the state, if it names one
    settings: dict[str, Any] = field(default_factory=dict)  # of the run, if the state holds them
    files: dict[str, str] = field(default_factory=dict)  # of a sharded state, whose `file` is a folder: their digests


def read(folder: Path) -> Saved | None:
    """The last complete manifest; None if nothing was saved. Raises CorruptCheckpoint for one of another format.

    Unknown entries are ignored: a later version may write more.
    """
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Saved(**{each.name: found[each.name] for each in fields(Saved) if each.name in found})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path} is no manifest of a checkpoint: {error}") from error


State = dict[str, Any]
# A disk with less room than this is full: file systems keep some blocks back.
FULL = 1 << 20
# Under which a sharded state has its tensors when it is loaded.
STORED = "stored"
# The name of an incomplete state; a save takes seconds, so older ones are remains.
UNFINISHED_FILE, UNFINISHED_SHARDS = "state.unfinished", "shards-*.unfinished"


def name_in_manifest(saved: Saved, folder: Path) -> None:
    """Makes a state that is on the disk the good one, and removes every other, finished or not. Raises OSError."""
    written = folder / "manifest.unfinished"
    try:
        written.write_text(json.dumps(asdict(saved)) + "\n", encoding="utf-8")
    except OSError:
        written.unlink(missing_ok=True)
        raise
    put(written, folder / MANIFEST)
    for old in (*folder.glob("state-*"), folder / UNFINISHED_FILE, *folder.glob(UNFINISHED_SHARDS)):
        if old.name == saved.file or not old.exists():
            continue
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


def put(unfinished: Path, place: Path) -> None:
    """Gives a file its name once its bytes are on the disk; then the name survives a crash, too."""
    sync_file(unfinished)
    os.replace(unfinished, place)
    sync_folder(place.parent)


def sync_file(path: Path) -> None:
    """Until its bytes are on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Until the names in it are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems whose folders cannot be synchronised
            raise
    finally:
        os.close(folder)


def flatten(state: State, prefix: str = "") -> dict[str, Any]:
    """Nested names joined by `/`. Example: {"a": {"b": 1}} -> {"a/b": 1}"""
    flat: dict[str, Any] = {}
    for name, value in state.items():
        flat |= flatten(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
