"""A request with the stack and the lock that answer it: `LockedRequest`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.errors import ExitCode
from npuenv.lock.file import COMPLETE, IMPOSSIBLE, PARTIAL

if TYPE_CHECKING:
    from npuenv.lock.file import Lock
    from npuenv.lock.uv import Resolver
    from npuenv.resolve.types import Request, Stack

_CODES = {COMPLETE: ExitCode.FINE, PARTIAL: ExitCode.UNKNOWN, IMPOSSIBLE: ExitCode.NOTHING_FITS}


@dataclass(frozen=True, slots=True)
class LockedRequest:
    """A request, what answers it, and what locks and installs on this machine."""

    stack: Stack
    lock: Lock
    resolver: Resolver
    request: Request

    @property
    def exit_code(self) -> ExitCode:
        """That of `npuenv lock`: UNKNOWN for a partial lock, NOTHING_FITS for an impossible one."""
        return _CODES[self.lock.status]
