"""What every host can be asked: this machine, a recorded one, later one behind ssh.

Nothing here interprets what a command printed; that is the work of `npuenv.facts`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    argv: tuple[str, ...]
    code: int | None  # None: there is no such program, or it ran out of time
    out: str
    err: str
    timed_out: bool = False

    @property
    def is_absent(self) -> bool:
        """True when there is no such program on the host."""
        return self.code is None and not self.timed_out


class PathState(enum.Enum):
    """What a path turned out to be."""

    FILE = "file"
    FOLDER = "folder"
    DEVICE = "device"
    OTHER = "other"
    ABSENT = "absent"
    UNREADABLE = "unreadable"  # it is there, or may be, but could not be looked at


@dataclass(frozen=True, slots=True)
class Looked:
    """What looking at a path gave. `text` is a file's content, `names` a folder's sorted entries; else empty."""

    path: str
    state: PathState
    text: str = ""
    names: tuple[str, ...] = ()
    error: str = ""  # why it is unreadable, in the system's words
    is_writable: bool = False


class Host(Protocol):
    """A machine that can be looked at. Recorded hosts raise `NotRecorded` for what was never asked of them."""

    @property
    def name(self) -> str: ...

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        """Runs a program without a shell. `env` adds to the host's environment."""
        ...

    def look(self, path: str) -> Looked:
        """The state of a path with its content (files: at most 1 MiB, decoded with replacement)."""
        ...

    def environ(self) -> Mapping[str, str]:
        """The environment variables of the session."""
        ...


class NotRecorded(Exception):
    """A recorded host was asked something that its capture does not hold; it never answers "no" instead."""
