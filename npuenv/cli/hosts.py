"""Hosts as a command line names them: this machine, or a saved capture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.core.messages import Message
    from npuenv.host.base import Host
    from npuenv.resolve.types import Request


DECIDED = frozenset({"arch", "hardware", "os", "driver", "cann"})  # what a host decides of a request
WANTED = frozenset({"machine", "npu", "cann"})  # the groups of facts that decide a stack


def with_host(request: Request, host: str) -> tuple[Request, tuple[Message, ...]]:
    """The request with what a host decides, and what it does not tell. `this` machine, or a capture file."""
    from npuenv.facts.collect import collect
    from npuenv.matrix import load_matrix
    from npuenv.resolve.from_host import filled

    return filled(request, collect(_named(host), only=WANTED), load_matrix())


def num_cards(host: str) -> int | None:
    """How many cards a session sees on `this` machine or that of a capture; None where that cannot be told."""
    from npuenv.facts.npu import driver
    from npuenv.facts.npu.visible import visible

    there = _named(host)
    table = driver.table_of(driver.smi(there)).value
    return visible(there.environ(), len(table.cards)) if table is not None and table.is_complete else None


def _named(host: str) -> Host:
    from npuenv.host import local
    from npuenv.host.recorded import load_capture

    return local.LocalHost() if host == "this" else load_capture(Path(host))
