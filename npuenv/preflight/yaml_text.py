"""A YAML text as entries with their exact places, and one value of it exchanged so that no other byte moves.

Reads what OmegaConf's loader reads (YAML 1.1 with floats like `1e-6`; no tags of its own).
"""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.preflight.launch import MOST_DIGITS, MOST_LETTERS, MOST_LEVELS, MOST_VALUES, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.preflight.launch import Change

_BOOL = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_NULL = ("", "~", "null", "Null", "NULL")
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*)", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.\d[\d_]*(?:[eE][-+]?\d+)?"
    r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
    re.ASCII,
)
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text by offsets; `end` is behind it."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class YamlEntry:
    """A key with its value. `children` are those of a mapping that is not empty."""

    path: tuple[str, ...]
    value: Any  # of a list or a scalar; of a mapping: {} where it is empty, else None
    text: str
    line: int  # of the key, the first being 1
    key: Span
    span: Span  # of the value; an alias where there is one
    quote: str = ""  # ' or " around the value
    is_merged: bool = False  # it comes through `<<:` or an alias: the text stands somewhere else
    is_flow: bool = False  # a mapping in braces
    children: tuple[YamlEntry, ...] = ()

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    def leaves(self) -> Iterator[YamlEntry]:
        """Itself, or the leaves below it."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


@functools.lru_cache(maxsize=32)  # a correction looks at the same text again and again
def read_yaml(text: str, path: str) -> tuple[YamlEntry, ...]:
    """The entries of the one mapping in a text, duplicates and all anchors resolved.

    Raises: BadInput with file, line and reason where it is no YAML, more than one document, or not a mapping;
    TooLarge for what no configuration is as large as.
    """
    if len(text) > MOST_LETTERS:
        raise TooLarge(path, MOST_LETTERS, "letters")
    from ruamel.yaml import composer
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    # Before ruamel.yaml 0.19 there is no bound on the depth but Python's.
    too_deep = (RecursionError, getattr(composer, "MaxDepthExceededError", RecursionError))
    try:
        return _entries(_nodes(text), text, path)
    except too_deep as error:
        raise TooLarge(path, MOST_LEVELS, "levels") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _broken(path, mark.line + 1 if mark else 1, str(error.problem or error.context)) from error
    except YAMLError as error:
        raise _broken(path, 1, str(error).partition("\n")[0]) from error


@functools.lru_cache(maxsize=32)  # by the text alone: a correction reads it without its path
def _nodes(text: str) -> list[Any]:
    """The documents of a text as ruamel's nodes; nobody changes them."""
    from ruamel.yaml import YAML

    reader: Any = YAML(typ="safe", pure=True)
    reader.max_depth = MOST_LEVELS + 2  # before the rest is scanned; what lies between is told exactly afterwards
    reader.composer.warn_double_anchors = False  # the second one counts from there on, as YAML says
    return list(reader.compose_all(text))


def _entries(nodes: list[Any], text: str, path: str) -> tuple[YamlEntry, ...]:
    if len(nodes) != 1 or nodes[0] is None:
        key = "many-documents" if len(nodes) > 1 else "empty"
        raise BadInput(Message(f"preflight.{key}", {"path": path, "count": len(nodes)}))
    if nodes[0].id != "mapping":
        raise BadInput(Message("preflight.not-a-mapping", {"path": path}), Message("preflight.what-is-read"))
    _require_small(nodes[0], path, {})
    return _Composed(text, path).entries(nodes[0], ())


def _require_small(node: Any, path: str, known: dict[int, tuple[int, int]], depth: int = 0) -> tuple[int, int]:
    """The values and the levels below a node, aliases expanded. Raises TooLarge.

    Each node is looked at once, however many aliases lead to it. One that holds itself is too deep.
    """
    if depth > MOST_LEVELS:
        raise TooLarge(path, MOST_LEVELS, "levels")
    if node.id == "scalar":
        if len(node.value) > MOST_DIGITS and not node.style and is_number(node.value):
            raise TooLarge(path, MOST_DIGITS, "digits")
        return 1, 0
    if id(node) not in known:
        below = node.value if node.id == "sequence" else [each for pair in node.value for each in pair]
        found = [_require_small(each, path, known, depth + 1) for each in below]
        size, levels = 1 + sum(size for size, _ in found), 1 + max((levels for _, levels in found), default=0)
        if size > MOST_VALUES:
            raise TooLarge(path, MOST_VALUES, "values")
        if levels > MOST_LEVELS:
            raise TooLarge(path, MOST_LEVELS, "levels")
        known[id(node)] = size, levels
    return known[id(node)]


def _broken(path: str, line: int, why: str) -> BadInput:
    args = {"path": path, "line": line, "why": why}
    return BadInput(Message("preflight.bad-yaml", args), Message("preflight.bad-yaml-hint"))


@dataclass(frozen=True, slots=True)
class _Composed:
    text: str
    path: str

    def entries(self, node: Any, above: tuple[str, ...], *, is_merged: bool = False) -> tuple[YamlEntry, ...]:
        """The entries of a mapping; its own keys beat merged ones, in the place of the first."""
        found: dict[str, YamlEntry] = {}
        merged: list[Any] = []
        for key, value in node.value:
            if key.tag == _MERGE or (key.value == "<<" and not key.style):
                merged += value.value if value.id == "sequence" else [value]
                continue
            name = str(key.value)
            if name in found:
                raise _broken(self.path, key.start_mark.line + 1, f'found duplicate key "{name}"')
            found[name] = self._entry(key, value, (*above, name), is_merged)
        for each in merged:
            for entry in self.entries(each, above, is_merged=True):
                found.setdefault(entry.path[-1], entry)
        return tuple(found.values())

    def _entry(self, key: Any, node: Any, path: tuple[str, ...], is_merged: bool) -> YamlEntry:
        after = key.end_mark.index
        is_alias = node.start_mark.index < after or bool(re.match(r"\s*:\s*\*", self.text[after : after + 200]))
        span = self._alias(after) if is_alias else self._span(node, after)
        inside: tuple[YamlEntry, ...] = ()
        if node.id == "mapping":
            inside = self.entries(node, path, is_merged=is_merged or is_alias)
        return YamlEntry(
            path,
            None if inside else value_of(node),
            self.text[span.start : span.end],
            key.start_mark.line + 1,
            Span(key.start_mark.index, after),
            span,
            node.style if node.id == "scalar" and node.style in ("'", '"') else "",
            is_merged,
            bool(getattr(node, "flow_style", False)),
            inside,
        )

    def _alias(self, after: int) -> Span:
        found = re.compile(r"\s*:\s*(\*[^\s,\]}]+)").match(self.text, after)
        return Span(found.start(1), found.end(1)) if found else Span(after, after)

    def _span(self, node: Any, after: int) -> Span:
        """The value's text. An empty value is the place behind the colon; a block ends behind its last sign."""
        start, end = node.start_mark.index, node.end_mark.index
        if start == end:
            colon = self.text.index(":", after) + 1
            return Span(colon, colon)
        return Span(start, start + len(self.text[start:end].rstrip()))


def value_of(node: Any) -> Any:
    """The Python value of a node, as OmegaConf's loader makes it."""
    if node.id == "sequence":
        return [value_of(item) for item in node.value]
    if node.id == "mapping":
        return {str(key.value): value_of(item) for key, item in node.value}
    return node.value if node.style else scalar(node.value)


def is_number(text: str) -> bool:
    return bool(_INT.fullmatch(text) or _FLOAT.fullmatch(text))


def scalar(text: str) -> Any:
    """A plain scalar: "yes" -> True, "1e-6" -> 1e-06, "0o7" -> "0o7". A number too long for any use stays a text."""
    if len(text) > MOST_DIGITS:
        return text
    if text in _NULL:
        return None
    if text.lower() in _BOOL and text in (text.lower(), text.upper(), text.capitalize()):
        return _BOOL[text.lower()]
    bare = text.replace("_", "")
    if _INT.fullmatch(text):
        digits = bare.lstrip("+-")
        base = {"0x": 16, "0b": 2}.get(digits[:2], 8 if len(digits) > 1 and digits[0] == "0" else 10)
        number = int(digits[2:] if base in (2, 16) else digits, base)
        return -number if text.startswith("-") else number
    if _FLOAT.fullmatch(text):
        named = bare.lower().lstrip("+-")
        return float(bare.replace(".", "", 1) if named in (".inf", ".nan") else bare)
    return text


def write_scalar(value: Any, quote: str = "") -> str:
    """The value as YAML on one line, in the quotes that stood there where it is a string.

    Example: "1" -> '"1"', ["a", None] -> '[a, null]', 1e-6 -> '1.0e-06'.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if value != value else ("-.inf" if value < 0 else ".inf")
    if isinstance(value, (int, float)):
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text  # YAML 1.1 wants the dot
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(write_scalar(item, ',') for item in value)}]"
    if isinstance(value, dict):
        pairs = (f"{write_scalar(key, ',')}: {write_scalar(item, ',')}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    return _string(str(value), quote)


def _string(text: str, quote: str) -> str:
    if quote == "'" and text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    is_plain = bool(re.fullmatch(r"[\w./$][\w./$+\-@=%()* ]*" if quote == "," else r"[\w./$][^#\n]*", text))
    is_plain = is_plain and text == text.strip() and text.isprintable() and not re.search(r":(\s|$)", text)
    return text if quote != '"' and is_plain and scalar(text) == text else json.dumps(text, ensure_ascii=False)


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


def _others(entries: Sequence[YamlEntry], keys: set[str]) -> dict[str, str]:
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


def _walk(entries: Sequence[YamlEntry]) -> Iterator[YamlEntry]:
    for entry in entries:
        yield entry
        yield from _walk(entry.children)


def _find(entries: Sequence[YamlEntry], key: str) -> YamlEntry | None:
    return next((entry for entry in _walk(entries) if entry.dotted == key), None)


def _exchanged(text: str, entry: YamlEntry, new: str) -> str:
    """A value replaced. One that begins on a later line than its key moves up to the key."""
    span = entry.span
    between = text[entry.key.end : span.start]
    if "\n" in between or span.start == span.end:
        colon = text.index(":", entry.key.end) + 1
        return f"{text[:colon]} {new}{text[span.end :]}"
    anchor = _ANCHOR.match(text, span.start, span.end)
    start = anchor.end() if anchor else span.start
    return text[:start] + new + text[span.end :]


def _removed(text: str, entry: YamlEntry) -> str | None:
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


def _without_pair(text: str, entry: YamlEntry, parent: YamlEntry) -> str:
    """The text without a pair of a mapping in braces, and without the comma on one side of it."""
    behind = re.compile(r"\s*,\s*").match(text, entry.span.end)
    if behind:
        return text[: entry.key.start] + text[behind.end() :]
    before = re.search(r"\s*,\s*$", text[parent.span.start : entry.key.start])
    start = parent.span.start + before.start() if before else entry.key.start
    return text[:start] + text[entry.span.end :]


def _lines(text: str, entry: YamlEntry) -> tuple[int, int]:
    """The whole lines from a key to the end of its value."""
    start = text.rfind("\n", 0, entry.key.start) + 1
    end = text.find("\n", _end(entry))
    return start, len(text) if end < 0 else end + 1


def _end(entry: YamlEntry) -> int:
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


def _added_to(text: str, parent: YamlEntry, parts: Sequence[str], value: Any) -> str | None:
    if parent.is_merged:
        return None
    if not parent.children:
        return _exchanged(text, parent, _flow(parts, value)) if parent.value in (None, {}) else None
    own = [child for child in parent.children if not child.is_merged]
    if parent.text.startswith("*"):
        return None
    if parent.is_flow:
        if not own:
            return None
        end = own[-1].span.end
        return f"{text[:end]}, {_flow(parts, value)[1:-1]}{text[end:]}"
    if not own:
        indent = _indent(text, parent) + "  "
        return _line_behind(text, text.find("\n", parent.key.end), _block(parts, value, indent))
    return _line_behind(text, max(map(_end, own)), _block(parts, value, _indent(text, own[0])))


def _indent(text: str, entry: YamlEntry) -> str:
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
    return f"{text[:end]}\n{line}{text[end:]}"
