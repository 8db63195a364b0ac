"""The lines of what a tool printed, without colours, carriage returns and blanks at their ends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def lines_of(text: str) -> list[str]:
    """The lines that are not empty, in order."""
    plain = _ESCAPES.sub("", text) if "\x1b" in text else text
    return [line for line in map(str.strip, plain.splitlines()) if line]


def matches(lines: Iterable[str], pattern: str) -> list[re.Match[str]]:
    """The lines that are wholly of the pattern, letters of either case."""
    compiled = re.compile(pattern, re.IGNORECASE)
    return [match for match in map(compiled.fullmatch, lines) if match]


def only(values: Iterable[T]) -> T | None:
    """The one value that all of them are; None for none, and for several that differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def is_address(text: str) -> bool:
    """Whether it is an IPv4 or IPv6 address."""
    import ipaddress  # some milliseconds that only machines with something to read pay

    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def is_mask(text: str) -> bool:
    """Whether it is a netmask, such as 255.255.240.0."""
    import ipaddress

    try:
        return ipaddress.ip_network(f"0.0.0.0/{text}").prefixlen >= 0 and "." in text
    except ValueError:
        return False
