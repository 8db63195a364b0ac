"""How npu-smi fails as a whole. Only its words tell: exit codes carry no meaning."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

_RET = r"ret is (?P<ret>-[0-9]{4,5})\b"


class SmiFailure(enum.Enum):
    """Ways in which npu-smi fails. One text can have several causes; those are for the checks to weigh."""

    LIBRARY = "library"  # the loader misses a driver library
    INIT = "init"  # `dcmi module initialize failed`
    IN_USE = "in-use"  # `because the device is used`: another container holds the cards
    NOT_FOUND = "not-found"  # the shell's words for a missing program
    UNEXECUTABLE = "unexecutable"  # no right to run it, or a program for another processor
    TIMEOUT = "timeout"
    UNREADABLE = "unreadable"


class SmiTrouble(NamedTuple):
    """A failure with the line that shows it."""

    kind: SmiFailure
    line: str
    ret: int | None = None  # the tool's negative code, where it prints one
    library: str | None = None

    @property
    def is_in_use(self) -> bool:
        """True where somebody else holds the device."""
        return self.kind is SmiFailure.IN_USE


_TROUBLES = (
    (SmiFailure.LIBRARY, r"error while loading shared libraries: (?P<library>lib[\w.+-]*\.so[\w.]*):"),
    (SmiFailure.IN_USE, rf"because the device is used\. {_RET}"),
    (SmiFailure.IN_USE, r"dcmi mod\w+ initializ\w+ failed.{0,200}?ret is (?P<ret>-8020)\b"),
    (SmiFailure.INIT, rf"dcmi mod\w+ initializ\w+ failed.{{0,200}}?{_RET}"),
    (SmiFailure.UNEXECUTABLE, r"npu-smi: (?:cannot execute|Permission denied|Exec format error)"),
    (SmiFailure.NOT_FOUND, r"npu-smi: (?:command )?not found|npu-smi: No such file"),
)


def find_trouble(lines: list[str]) -> SmiTrouble:
    """The first failure text among the lines."""
    for line in lines:
        for kind, pattern in _TROUBLES:
            match = re.search(pattern, line)
            if match:
                found = match.groupdict()
                ret = int(found["ret"]) if found.get("ret") else None
                return SmiTrouble(kind, line.strip(), ret, found.get("library"))
    first = next((line.strip() for line in lines if line.strip()), "")
    return SmiTrouble(SmiFailure.UNREADABLE, first)
