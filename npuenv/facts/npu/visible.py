"""The cards that ASCEND_RT_VISIBLE_DEVICES leaves to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
_NONE = ("", "NoDevFiles")


def visible(environment: Mapping[str, str], count: int) -> int | None:
    """How many of `count` cards a session sees; None where the variable cannot be read."""
    value = environment.get(VARIABLE)
    if value is None:
        return count
    if value.strip() in _NONE:
        return 0
    words = {word.strip() for word in value.split(",")}
    if not all(word.isascii() and word.isdecimal() for word in words):
        return None
    return sum(int(word) < count for word in words)
