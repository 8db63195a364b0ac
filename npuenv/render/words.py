"""Values that go into rendered files: each is checked, so that nothing in a file has to escape it."""

from __future__ import annotations

import re

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

_SIGNS = r"""['"`\\\x00-\x1f\x7f\x85\u2028\u2029]"""
UNSAFE = re.compile(rf"{_SIGNS}|\$")
UNSAFE_OR_BLANK = re.compile(rf"\A\s*\Z|{UNSAFE.pattern}")
# `${...}` is an interpolation of the frameworks' own and stays.
UNSAFE_IN_YAML = re.compile(rf"{_SIGNS}|\$\(")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def plain(value: str, what: str, unsafe: re.Pattern[str] = UNSAFE) -> str:
    """The value itself, when it can stand in a shell word, a YAML scalar or an instruction as it is.

    `what` names it for the user. Raises BadInput for quotes, backslashes, backticks, `$`, line ends and other control
    characters.
    """
    found = unsafe.search(value)
    if found:
        raise BadInput(
            Message("render.unsafe-value", {"what": what, "value": repr(value), "character": repr(found.group())}),
            Message("render.unsafe-value-hint"),
        )
    return value


def one_word(value: str, what: str) -> str:
    """The value itself, when it is plain, holds no blank and cannot be taken for an option. Raises BadInput."""
    if not plain(value, what) or " " in value or value.startswith("-"):
        raise BadInput(
            Message("render.unsafe-word", {"what": what, "value": repr(value)}), Message("render.unsafe-word-hint")
        )
    return value


def identifier(value: str, what: str) -> str:
    """The value itself, when it is a name that a shell variable can have. Raises BadInput."""
    if not _NAME.fullmatch(value):
        raise BadInput(
            Message("render.unsafe-name", {"what": what, "value": repr(value)}), Message("render.unsafe-value-hint")
        )
    return value
