"""The host ports that HCCL listens on, as its variables say. Start from `told`.

Source: hicann/hccl user guide, HCCL_IF_BASE_PORT and HCCL_HOST_SOCKET_PORT_RANGE; the range wins over the base.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE = "HCCL_IF_BASE_PORT"
RANGE = "HCCL_HOST_SOCKET_PORT_RANGE"
AUTO = "auto"  # as the range: the system gives out what is free
FIRST, COUNT = 60000, 32  # from which port on it listens when nothing is set, and on how many
BASES = range(1024, 65521)  # what it takes for a base
_MOST = 65535


def from_base(base: int) -> tuple[int, ...]:
    """The ports from a base on; the last bases leave room for fewer than usual."""
    return tuple(range(base, min(base + COUNT, _MOST + 1)))


def told(environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """The ports that the variables name, of a long range as many as HCCL takes of its own; () where the system gives
    them out; None where no variable names any, or none that HCCL would take.

    Example: {"HCCL_HOST_SOCKET_PORT_RANGE": "50000,50010-50011"} -> (50000, 50010, 50011)
    """
    wanted = environment.get(RANGE, "").strip()
    if wanted == AUTO:
        return ()
    if wanted:
        return _listed(wanted)
    text = environment.get(BASE, "")
    is_base = bool(re.fullmatch(r"[0-9]{1,5}", text)) and int(text) in BASES
    return from_base(int(text)) if is_base else None


def _listed(text: str) -> tuple[int, ...] | None:
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part.strip())
        if match is None or not 0 < int(match[1]) <= int(match[2] or match[1]) <= _MOST:
            return None
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(dict.fromkeys(found))[:COUNT]
