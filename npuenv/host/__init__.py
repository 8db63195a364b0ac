"""The interface of a host, this machine or a recorded one; in this package alone programs are run on it.

Nothing here interprets the output of a command; that is the task of `npuenv.facts`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command."""

    argv: tuple[str, ...]
    code: int | None  # None: there is no such program, or it timed out
    out: str
    err: str
    timed_out: bool = False

    @property
    def is_absent(self) -> bool:
        """Whether the program does not exist on the host."""
        return self.code is None and not self.timed_out


class PathState(enum.Enum):
    """The kind of a path."""

    FILE = "file"
    FOLDER = "folder"
    DEVICE = "device"
    OTHER = "other"
    ABSENT = "absent"
    UNREADABLE = "unreadable"  # it exists, or may, but could not be read


class Looked(NamedTuple):
    """The result of reading a path. `text` is a file's content, `names` a folder's sorted entries; else empty."""

    path: str
    state: PathState
    text: str = ""
    names: tuple[str, ...] = ()
    error: str = ""  # why it is unreadable, in the system's words
    is_writable: bool = False


class Host(Protocol):
    """A machine that can be inspected. Recorded hosts raise `NotRecorded` for anything that was not recorded."""

    @property
    def name(self) -> str: ...

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        """Runs a program without a shell. `env` is added to the host's environment."""
        ...

    def look(self, path: str) -> Looked:
        """The state of a path with its content (files: at most 1 MiB, decoded with replacement)."""
        ...

    def environ(self) -> Mapping[str, str]:
        """The environment variables of the session."""
        ...


class NotRecorded(Exception):
    """A recorded host lacks the answer to a query; it never answers "no" instead."""
