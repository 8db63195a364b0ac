"""Commands as a person types them into a POSIX shell. Nothing here runs anything."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from npuenv.core.messages import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

# Words of the user's own shell: a program that runs them changes nothing for the user.
_OWN_SHELL = ("source", ".", "export", "unset", "ulimit")
# Only these are let through as variables in a value; every other dollar sign is text.
_LISTS = re.compile(r"\$\{?(LD_LIBRARY_PATH|LD_PRELOAD|PATH|PYTHONPATH)(?![A-Za-z0-9_])\}?")


def is_for_own_shell(argv: Sequence[str]) -> bool:
    """Whether a command has an effect only when the user's own shell runs it."""
    return bool(argv) and argv[0] in _OWN_SHELL


def can_be_written_down(argv: Sequence[str]) -> bool:
    """Whether a command for the user's shell means the same in a file: what it sources is named from the root on."""
    return is_for_own_shell(argv) and (argv[0] not in ("source", ".") or argv[-1].startswith("/"))


def shell_line(argv: Sequence[str]) -> str:
    """A command as one would type it, quoted where it must be; one line, whatever is in it.

    Example: ("export", "LD_LIBRARY_PATH=/a b:$LD_LIBRARY_PATH") -> export LD_LIBRARY_PATH='/a b:'"$LD_LIBRARY_PATH"
    """
    if argv and argv[0] == "export" and len(argv) == 2 and "=" in argv[1]:
        name, _, value = argv[1].partition("=")
        return f"export {name}={_value(value)}"
    return " ".join(_quoted(word) for word in argv)


def _value(value: str) -> str:
    """The value of a variable, in which the list variables keep their meaning."""
    parts = []
    end = 0
    for found in _LISTS.finditer(value):
        parts += [value[end : found.start()], f'"${found[1]}"']
        end = found.end()
    parts.append(value[end:])
    words = [part if number % 2 else _quoted(part) for number, part in enumerate(parts) if part]
    return "".join(words) or "''"


def _quoted(word: str) -> str:
    """The word in quotes where it needs them. A line end would begin another command in the reader's eyes."""
    return shlex.quote("".join(each if each.isprintable() else escaped(each) for each in word))
