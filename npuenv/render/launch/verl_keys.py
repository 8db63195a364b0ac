"""The keys of verl's configuration under the names that one release gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from npuenv.core import versions
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npuenv.matrix.rows import LaunchKey

V = TypeVar("V")


def for_release(values: Mapping[str, V], release: str) -> dict[str, V]:
    """The values under the names of a release, in their order, without those that it has no name for."""
    named = ((_name(key, release), value) for key, value in values.items())
    return {key: value for key, value in named if key}


def left_out(keys: Iterable[str], release: str) -> tuple[str, ...]:
    """Keys of sentences about what is lost where a release has no name for some of the keys, each once."""
    rows = [_row(key) for key in keys if not _name(key, release)]
    return tuple(dict.fromkeys(row.note for row in rows if row is not None and row.note))


def _name(key: str, release: str) -> str:
    """The key's name in a release; "" where it has none."""
    row = _row(key)
    if row is None:
        return key
    if row.until and versions.accepts(f">={row.until}", release):
        return ""
    if not row.since or versions.accepts(f">={row.since}", release):
        return key
    return row.before + key.removeprefix(row.key) if row.before else ""


def _row(key: str) -> LaunchKey | None:
    return next((row for row in load_matrix().launch_keys if row.covers(key)), None)
