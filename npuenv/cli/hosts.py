"""Hosts as a command line names them: this machine, or a saved capture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.messages import Message
    from npuenv.resolve.types import Request


DECIDED = frozenset({"arch", "hardware", "os", "driver", "cann"})  # what a host decides of a request
WANTED = frozenset({"machine", "npu", "cann"})  # the groups of facts that decide a stack


def with_host(request: Request, host: str) -> tuple[Request, tuple[Message, ...]]:
    """The request with what a host decides, and what it does not tell. `this` machine, or a capture file."""
    from npuenv.facts.collect import collect
    from npuenv.host.local import LocalHost
    from npuenv.host.recorded import load_capture
    from npuenv.matrix import load_matrix
    from npuenv.resolve.from_host import filled

    facts = collect(LocalHost() if host == "this" else load_capture(Path(host)), only=WANTED)
    return filled(request, facts, load_matrix())
