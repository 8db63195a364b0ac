"""What only asking all nodes at one time can tell, as values: clocks, names, and which machine a node is."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NAMES_AT_MOST = 256


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a node's clock is ahead of the asking one's. The truth lies no further than `within_s` from it."""

    seconds: float
    within_s: float
    evidence: str  # what was asked, and what came back


@dataclass(frozen=True, slots=True)
class Met:
    """One node as it answered when all were asked. Names are the real ones: nothing of it is kept in a file."""

    hostname: str
    boot: str = ""  # the kernel's number of this start; "" where it could not be read
    offset: Offset | None = None
    # A node's name -> the addresses found for it; a name that nothing answered for is not in it.
    sees: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()  # its own
    login: str = ""  # the address by which it was reached


UNMET: Mapping[str, Met] = MappingProxyType({})  # where the nodes were not asked at one time; not: none has answered


def looked_up(hostnames: Iterable[str]) -> tuple[str, ...]:
    """The names that every node is to look up, from what the nodes call themselves; of very many the first ones."""
    return tuple(dict.fromkeys(filter(None, hostnames)))[:_NAMES_AT_MOST]
