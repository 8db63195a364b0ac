"""Whether the rows of a lock say something that can be: keys, versions, hashes, labels, names. Start from `check_rows`.

The seals say that a file is as it was written; this says that what was written is a lock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npuenv.lock.seal import Block

DOES_NOT_RESOLVE = "does-not-resolve"
REASONS = ("index-out-of-reach", "not-on-index", DOES_NOT_RESOLVE)
WHOLE_SET = "*"  # in `missing`: not one package, the set
_HEAD = {
    "schema": int, "stack": str, "platform": str, "made_with": str, "inputs": str, "newest": str, "status": str,
    "digest": str,
}  # fmt: skip
_KEYS: Mapping[str, Mapping[str, type]] = {
    "missing": {"name": str, "version": str, "reason": str, "index": str, "detail": str},
    "proof": {"requirement": str, "source": str},
    "source": {"name": str, "repo": str, "ref": str, "is_moving": bool, "how": str},
    "package": {"name": str, "version": str, "sha256": list, "index": str, "why": list},
}
_OPTIONAL = {"inputs", "newest", "index", "detail", "why"}
_PATTERNS = {
    "sha256": r"[0-9a-f]{64}",
    "index": r"[a-z0-9]+([._-][a-z0-9]+)*",
    "inputs": r"[0-9a-f]{64}",
    "newest": r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\dZ)?",
    "platform": r"[a-z0-9_]+-cp3\d+-glibc\d+\.\d+",
    "status": "complete|partial|impossible",
    "reason": "|".join(REASONS),
}


@dataclass(frozen=True, slots=True)
class Wrong:
    """What cannot be, and the first line of the table in which it stands."""

    line: int
    says: Message


def check_rows(table: Mapping[str, Any], blocks: Sequence[Block]) -> Wrong | None:
    """The first thing in a lock that cannot be, or None. `blocks` are those of the same text."""
    head = {key: value for key, value in table.items() if key not in _KEYS}
    for says in _of_row(head, _HEAD):
        return Wrong(1, says)
    seen: dict[str, int] = {}
    for block in blocks[1:]:
        if block.kind not in _KEYS:
            return Wrong(block.line, Message("lock.bad-value", {"key": block.kind, "value": block.kind}))
        row = table[block.kind][seen.get(block.kind, 0)]
        seen[block.kind] = seen.get(block.kind, 0) + 1
        for says in _of_row(row, _KEYS[block.kind]):
            return Wrong(block.line, says)
    return _across(table, blocks)


def _of_row(row: Mapping[str, Any], keys: Mapping[str, type]) -> Iterator[Message]:
    """What is wrong with one table by itself."""
    for key in keys.keys() - row.keys() - _OPTIONAL:
        yield Message("lock.no-key", {"key": key})
    for key, value in row.items():
        if key == "seal":
            continue
        items = value if isinstance(value, list) else [value]
        is_typed = isinstance(value, keys.get(key, ())) and (keys[key] is not list or _are_words(items))
        fits = is_typed and (key not in _PATTERNS or all(re.fullmatch(_PATTERNS[key], item) for item in items))
        if not fits or (key == "version" and not _is_version(value, row)):
            yield Message("lock.bad-value", {"key": key, "value": str(value)})


def _are_words(value: Sequence[object]) -> bool:
    return all(isinstance(item, str) for item in value)


def _is_version(version: str, row: Mapping[str, Any]) -> bool:
    """PEP 440; the row that stands for the whole set has none."""
    from packaging.version import InvalidVersion, Version

    if row.get("name") == WHOLE_SET:
        return version == ""
    try:
        Version(version)
    except InvalidVersion:
        return False
    return True


def _across(table: Mapping[str, Any], blocks: Sequence[Block]) -> Wrong | None:
    """What is wrong between tables: a name twice or out of order, a hash missing without a reason, a wrong status."""
    missing: Sequence[Mapping[str, Any]] = table.get("missing", ())
    explained = {row["name"] for row in missing}
    rows: Sequence[Mapping[str, Any]] = table.get("package", ())
    lines = [block.line for block in blocks if block.kind == "package"]
    before = ""
    for line, row in zip(lines, rows, strict=True):
        name = row["name"]
        if name <= before:
            return Wrong(line, Message("lock.twice" if name == before else "lock.unsorted", {"name": name}))
        if not row["sha256"] and name not in explained:
            return Wrong(line, Message("lock.no-hash", {"name": name}))
        before = name
    is_impossible = any(row["reason"] == DOES_NOT_RESOLVE for row in missing)
    if table["status"] != ("impossible" if is_impossible else "partial" if missing else "complete"):
        return Wrong(1, Message("lock.bad-value", {"key": "status", "value": table["status"]}))
    return None
