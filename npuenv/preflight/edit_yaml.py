"""One correction of a YAML text; comments, order and quoting of everything else stay byte for byte."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npuenv.core.errors import BadInput
from npuenv.preflight.yaml_text import read_yaml, write_scalar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.preflight.types import Change
    from npuenv.preflight.yaml_text import Entry

_ANCHOR = re.compile(r"&[^\s,\[\]{}]+\s+")
_VARIABLES = "system_envs"  # where ROLL takes variables of its processes from


def edit_yaml(text: str, change: Change) -> str | None:
    """The text with one change; None where that cannot be done without touching something else."""
    key = f"{_VARIABLES}.{change.key}" if change.is_variable else change.key
    old = f"{_VARIABLES}.{change.renames}" if change.is_variable and change.renames else change.renames
    value = str(change.value) if change.is_variable and change.value is not None else change.value
    edited = _renamed(text, old, key, value) if old else _set(text, key, value)
    if edited is None or edited == text:
        return edited
    return edited if _is_sound(text, edited, {key, old or key}) else None


def _is_sound(before: str, after: str, keys: set[str]) -> bool:
    """Whether the new text reads, and only the values under the keys are different."""
    try:
        entries = read_yaml(after, "")
    except BadInput:
        return False
    return _others(read_yaml(before, ""), keys) == _others(entries, keys)


def _others(entries: Sequence[Entry], keys: set[str]) -> dict[str, str]:
    found = {leaf.dotted: repr(leaf.value) for entry in entries for leaf in entry.leaves()}
    return {key: value for key, value in found.items() if not _touches(key, value, keys)}


def _touches(key: str, value: str, keys: set[str]) -> bool:
    """Whether a leaf is one of the keys, stands below one, or is an empty value that one was put into."""
    if key in keys or key.startswith(tuple(f"{each}." for each in keys)):
        return True
    return value in ("None", "{}") and any(each.startswith(f"{key}.") for each in keys)


def _set(text: str, key: str, value: Any) -> str | None:
    """The value under a key exchanged, put in, or taken out where it is None."""
    found = _find(read_yaml(text, ""), key)
    if value is None:
        return None if found is None or found.is_merged else _removed(text, found)
    if found is None or found.is_merged:
        return _added(text, key, value)
    return _exchanged(text, found, write_scalar(value, found.quote))


def _renamed(text: str, old: str, key: str, value: Any) -> str | None:
    entries = read_yaml(text, "")
    found, taken = _find(entries, old), _find(entries, key)
    if found is None or found.is_merged:
        return _set(text, key, value)
    if taken is not None or old.rpartition(".")[0] != key.rpartition(".")[0]:
        added = _set(text, key, value)
        return added and _set(added, old, None)
    if not found.children and value != found.value:
        text = _exchanged(text, found, write_scalar(value, found.quote))
    return text[: found.key.start] + write_scalar(key.rpartition(".")[2]) + text[found.key.end :]


def _walk(entries: Sequence[Entry]) -> Iterator[Entry]:
    for entry in entries:
        yield entry
        yield from _walk(entry.children)


def _find(entries: Sequence[Entry], key: str) -> Entry | None:
    return next((entry for entry in _walk(entries) if entry.dotted == key), None)


def _exchanged(text: str, entry: Entry, new: str) -> str:
    """A value replaced. One that begins on a later line than its key moves up to the key."""
    span = entry.span
    between = text[entry.key.end : span.start]
    if "\n" in between or span.start == span.end:
        colon = text.index(":", entry.key.end) + 1
        return f"{text[:colon]} {new}{text[span.end :]}"
    anchor = _ANCHOR.match(text, span.start, span.end)
    start = anchor.end() if anchor else span.start
    return text[:start] + new + text[span.end :]


def _removed(text: str, entry: Entry) -> str | None:
    """The text without a key; a mapping that becomes empty by it goes too."""
    entries = read_yaml(text, "")
    parent = _find(entries, ".".join(entry.path[:-1])) if len(entry.path) > 1 else None
    if parent is not None and len(parent.children) == 1 and "<<" not in parent.text:
        return _removed(text, parent)
    if parent is not None and parent.is_flow:
        return _without_pair(text, entry, parent)
    start, end = _lines(text, entry)
    if text[start : entry.key.start].strip():
        return None  # it shares its line with something else
    return text[:start] + text[end:]


def _without_pair(text: str, entry: Entry, parent: Entry) -> str:
    """The text without a pair of a mapping in braces, and without the comma on one side of it."""
    behind = re.compile(r"\s*,\s*").match(text, entry.span.end)
    if behind:
        return text[: entry.key.start] + text[behind.end() :]
    before = re.search(r"\s*,\s*$", text[parent.span.start : entry.key.start])
    start = parent.span.start + before.start() if before else entry.key.start
    return text[:start] + text[entry.span.end :]


def _lines(text: str, entry: Entry) -> tuple[int, int]:
    """The whole lines from a key to the end of its value."""
    start = text.rfind("\n", 0, entry.key.start) + 1
    end = text.find("\n", _end(entry))
    return start, len(text) if end < 0 else end + 1


def _end(entry: Entry) -> int:
    """The offset behind the last sign that belongs to an entry in the place where it stands."""
    own = [child for child in entry.children if not child.is_merged]
    return max([entry.key.end, entry.span.end, *map(_end, own)])


def _added(text: str, key: str, value: Any) -> str | None:
    """A key put in behind the last one of the deepest mapping that is there; at the end of the text where none is."""
    entries = read_yaml(text, "")
    parts = key.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        parent = _find(entries, ".".join(parts[:depth]))
        if parent is not None:
            return _added_to(text, parent, parts[depth:], value)
    end = max(map(_end, entries))
    return _line_behind(text, end, _block(parts, value, _indent(text, entries[0])))


def _added_to(text: str, parent: Entry, parts: Sequence[str], value: Any) -> str | None:
    if parent.is_merged:
        return None
    if not parent.children:
        return _exchanged(text, parent, _flow(parts, value)) if parent.value in (None, {}) else None
    own = [child for child in parent.children if not child.is_merged]
    if parent.text.startswith("*"):
        return None
    if parent.is_flow:
        return _spliced(text, own[-1].span.end, f", {_flow(parts, value)[1:-1]}") if own else None
    if not own:
        indent = _indent(text, parent) + "  "
        return _line_behind(text, text.find("\n", parent.key.end), _block(parts, value, indent))
    return _line_behind(text, max(map(_end, own)), _block(parts, value, _indent(text, own[0])))


def _indent(text: str, entry: Entry) -> str:
    """The blanks in front of a key; a key behind something else on its line counts from the line's first column."""
    start = text.rfind("\n", 0, entry.key.start) + 1
    return " " * (entry.key.start - start)


def _block(parts: Sequence[str], value: Any, indent: str) -> str:
    """Nested keys line by line. Example: ("a", "b"), 1 gives "a:" and "  b: 1"."""
    lines = [f"{indent}{'  ' * depth}{write_scalar(part)}:" for depth, part in enumerate(parts)]
    return "\n".join(lines) + f" {write_scalar(value)}"


def _flow(parts: Sequence[str], value: Any) -> str:
    inner = write_scalar(value, ",")
    for part in reversed(parts):
        inner = f"{{{write_scalar(part, ',')}: {inner}}}"
    return inner


def _line_behind(text: str, at: int, line: str) -> str:
    end = text.find("\n", at)
    if end < 0:
        return f"{text}\n{line}\n"
    return _spliced(text, end, f"\n{line}")


def _spliced(text: str, at: int, new: str) -> str:
    return text[:at] + new + text[at:]
