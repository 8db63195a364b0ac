"""What a checkpoint's manifest says: which file holds the state, of which step and settings. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "manifest.json"


class CorruptCheckpoint(Exception):
    """A checkpoint that is not what was saved; the text says in what it differs."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a save wrote; also the manifest."""

    file: str
    sha256: str
    bytes: int
    tensors: int
    step: int | None = None  # of the state, if it names one
    settings: dict[str, Any] = field(default_factory=dict)  # of the run, if the state holds them
    files: dict[str, str] = field(default_factory=dict)  # of a sharded state, whose `file` is a folder: their digests


def read(folder: Path) -> Saved | None:
    """What the last whole save wrote; None where nothing was saved. Raises CorruptCheckpoint for one of another form.

    Unknown entries are passed over: a later version may write more.
    """
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Saved(**{each.name: found[each.name] for each in fields(Saved) if each.name in found})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError) as error:
        raise CorruptCheckpoint(f"{path} is no manifest of a checkpoint: {error}") from error
