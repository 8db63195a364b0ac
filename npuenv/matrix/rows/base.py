"""What every row has, and the words that several tables use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Strength = Literal[
    "identity", "recommended-pair", "compatible-set", "wheel-exists", "metadata-range", "image-practice", "request"
]
VerifiedBy = Literal["published", "recommended", "compatible", "satisfiable", "measured-here"]


@dataclass(frozen=True, slots=True)
class Row:
    """What every row has."""

    id: str
    source: str
    seen: str  # date on which the source was read, YYYY-MM-DD
