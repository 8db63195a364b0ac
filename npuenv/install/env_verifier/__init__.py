"""The program that is copied into an environment and tells whether it is whole: its parts, and `text`, all in one.

The parts run on any Python from 3.9 on. `program` says what can be asked.
"""

from __future__ import annotations

from npuenv.facts.target import joined

# Each after those that it imports; the first is a part of the doctor's programs as well, the second of npuenv.
_SHARED = ("npuenv.facts.target.dist_info", "npuenv.core.seal")
_PARTS = ("inspection", "program")


def text() -> str:
    """The source of the whole program, also from inside a zip archive."""
    return joined([*_SHARED, *(f"{__name__}.{part}" for part in _PARTS)])
