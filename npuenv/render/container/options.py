"""What a user may say about a container: `Wish`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user said about the container. None: not said."""

    cards: str | None = None  # "0-7", "0,2,4-5"
    nodes: int = 1
    image: str | None = None
    name: str | None = None
    data: Path | None = None
    models: Path | None = None
    shm_gib: int | None = None
    user: str | None = None
    command: str | None = None  # one line, split as a shell would
    has_add_ons: bool = False
