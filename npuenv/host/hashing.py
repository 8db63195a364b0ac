"""The sha256 of a local file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """The sha256 of a file's content, in hexadecimal digits. Raises: OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()
