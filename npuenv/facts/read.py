"""Shared by the parsers: files as facts, and `key=value` texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.host.base import Host, Ran


def file_text(host: Host, path: str) -> Fact[str]:
    """The text of a file; absent where nothing is there, unknown where it cannot be read or is no file."""
    looked = host.look(path)
    if looked.state is PathState.FILE:
        return known(looked.text, Evidence(path, first_line(looked.text)))
    if looked.state is PathState.ABSENT:
        return absent(Evidence(path, "absent"))
    return unknown(Evidence(path, looked.error or looked.state.value))


def pairs(text: str, separator: str = "=") -> dict[str, str]:
    """`Key=value` lines as a mapping; other lines are left out. The first of two equal keys counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, mark, value = line.partition(separator)
        if mark and key.strip() and not key.lstrip().startswith("#"):
            found.setdefault(key.strip(), value.strip())
    return found


def line_with(text: str, key: str) -> str:
    """The first line that starts with `key`, for evidence; "" when there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip().startswith(key)), "")


def why_failed(ran: Ran) -> str:
    """One line that says how a command failed."""
    if ran.timed_out:
        return "timed out"
    lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit {ran.code}"


def first_line(text: str) -> str:
    """The first line that is not blank; "" when there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
