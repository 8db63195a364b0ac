"""Words of a Hydra command line as keys and values, by Hydra's own grammar.

Only what a single run takes: a choice between values (`key=1,2`) is refused, as Hydra refuses it without --multirun.
Source: hydra/grammar/OverrideLexer.g4 and OverrideParser.g4, hydra-core 1.3; a test compares the two readers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from npuenv.preflight import limits

Refusal = Literal["no-value", "sweep", "character", "shape", "digits", "levels"]

_KEY = re.compile(r"(?P<mark>\+\+|\+|~|)(?P<key>[\w/.\-$@]*)(?P<rest>=(?P<value>.*))?", re.DOTALL | re.ASCII)
_INT = re.compile(r"[+-]?(?:0|[1-9](?:_?\d)*)", re.ASCII)
_DIGITS = r"\d(?:_?\d)*"
_POINT = rf"(?:(?:{_DIGITS})?\.{_DIGITS}|{_DIGITS}\.)"
_FLOAT = re.compile(rf"[+-]?(?:(?:{_DIGITS}|{_POINT})[eE][+-]?{_DIGITS}|{_POINT}|[Ii][Nn][Ff]|[Nn][Aa][Nn])", re.ASCII)
_CONSTANTS = {"true": True, "false": False, "null": None}
_PLAIN = re.compile(r"[A-Za-z0-9_/\-+.$%*@?|: \t]")
_ESCAPES = "\\()[]{}:=, \t"
_FUNCTION = re.compile(r"[A-Za-z_][\w-]*\(", re.ASCII)
_CASTS = ("int", "float", "str", "bool", "json_str", "extend_list")
_SWEEPS = ("choice", "range", "interval", "glob", "sort", "shuffle")


class NotHydra(Exception):
    """Hydra would refuse the word. `why` says in which way, `what` is the part that it stumbles over."""

    def __init__(self, why: Refusal, what: str = "") -> None:
        super().__init__(why, what)
        self.why: Refusal = why
        self.what = what


@dataclass(frozen=True, slots=True)
class HydraOverride:
    """One word. Example: `+a.b=[1,x]` gives mark "+", key "a.b", value [1, "x"], text "[1,x]"."""

    mark: str  # "", "+", "++" or "~"
    key: str
    value: Any  # None with "~" and without a value
    text: str
    is_computed: bool = False  # a function of Hydra gives the value: `value` is the text


def read_override(word: str) -> HydraOverride:
    """The word as Hydra reads it. Raises NotHydra where it would refuse the word."""
    found = _KEY.match(word)
    assert found is not None  # every part of the pattern may be empty
    mark, key, value = found["mark"], found["key"], found["value"]
    if found["rest"] is None:
        if found.end() < len(word):
            raise NotHydra("character", word[found.end()])
        if mark == "~" and key:
            return HydraOverride(mark, key, None, "")
        raise NotHydra("no-value", word)
    if not key:
        raise NotHydra("shape", word)
    if _FUNCTION.match(value):
        name = value.partition("(")[0]
        if name not in _CASTS:
            raise NotHydra("sweep" if name in _SWEEPS else "shape", name)
        return HydraOverride(mark, key, value, value, is_computed=True)
    return HydraOverride(mark, key, read_value(value), value)


def read_value(text: str) -> Any:
    """A value on its own: "5e-7" -> 5e-07, "[a,'b c']" -> ["a", "b c"], "" -> "". Raises NotHydra."""
    if not text.strip(" \t"):
        return ""
    value, at = _element(text, 0, "", 0)
    if at == len(text) and text[-1] in " \t" and text.strip()[0] in "[{'\"":
        raise NotHydra("shape", text)
    if at < len(text):
        raise NotHydra("sweep" if text[at] == "," else "character", text[at])
    return value


def _element(text: str, at: int, ends: str, depth: int) -> tuple[Any, int]:
    """The element that begins here and the offset behind it; `ends` may stand behind it."""
    if depth > limits.LEVELS:
        raise NotHydra("levels", str(limits.LEVELS))
    at = _after_space(text, at)
    first = text[at : at + 1]
    if first == "[":
        return _list(text, at + 1, depth + 1)
    if first == "{":
        return _dict(text, at + 1, depth + 1)
    if first in ("'", '"'):
        return _quoted(text, at)
    return _primitive(text, at, ends)


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    at = _after_space(text, at)
    if text[at : at + 1] == "]":
        return items, _after_space(text, at + 1)
    while True:
        item, at = _element(text, at, ",]", depth)
        items.append(item)
        if text[at : at + 1] == "]":
            return items, _after_space(text, at + 1)
        at = _expect(text, at, ",")


def _dict(text: str, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    pairs: dict[Any, Any] = {}
    at = _after_space(text, at)
    if text[at : at + 1] == "}":
        return pairs, _after_space(text, at + 1)
    while True:
        key, at = _primitive(text, _after_space(text, at), ":")
        at = _expect(text, at, ":")
        pairs[key], at = _element(text, at, ",}", depth)
        if text[at : at + 1] == "}":
            return pairs, _after_space(text, at + 1)
        at = _expect(text, at, ",")


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise NotHydra("shape", text[at : at + 1] or text)
    return at + 1


def _quoted(text: str, at: int) -> tuple[str, int]:
    """A quoted string. Backslashes count only in front of a quote of the same kind, or at the end."""
    quote = text[at]
    found = re.compile(rf"{quote}((?:[^\\{quote}]|\\.)*){quote}", re.DOTALL).match(text, at)
    if found is None:
        raise NotHydra("shape", quote)
    body = re.sub(rf"(\\+)(?={quote}|$)", lambda run: run[1][: len(run[1]) // 2], found[1])
    return body, _after_space(text, found.end())


def _primitive(text: str, at: int, ends: str) -> tuple[Any, int]:
    """Anything unquoted up to one of `ends`; spaces around it do not count."""
    start, parts = at, list[str]()
    solid = 0  # parts up to the last one that is no space
    while at < len(text) and text[at] not in ends:
        piece, plain = _piece(text, at)
        at += len(piece)
        parts.append(plain)
        solid = solid if piece in (" ", "\t") else len(parts)
    if not solid:
        raise NotHydra("shape", text[start : start + 1] or text)
    word = "".join(parts[:solid])
    return (_typed(word) if word == text[start : start + len(word)] else word), at


def _piece(text: str, at: int) -> tuple[str, str]:
    """The next part of an unquoted value, as written and as meant."""
    if text.startswith("${", at):
        end = _brace_end(text, at + 2)
        return text[at:end], text[at:end]
    if text[at] == "\\":
        following = text[at + 1 : at + 2]
        return (text[at : at + 2], following) if following and following in _ESCAPES else ("\\", "\\")
    if not _PLAIN.match(text[at]):
        raise NotHydra("sweep" if text[at] == "," else "character", text[at])
    return text[at], text[at]


def _brace_end(text: str, at: int) -> int:
    depth = 1
    while at < len(text) and depth:
        depth += (text[at] == "{") - (text[at] == "}")
        at += 1
    if depth:
        raise NotHydra("shape", "${")
    return at


def _typed(word: str) -> Any:
    if word.lower() in _CONSTANTS:
        return _CONSTANTS[word.lower()]
    is_int = bool(_INT.fullmatch(word))
    if is_int and len(word) > limits.DIGITS:
        raise NotHydra("digits", str(limits.DIGITS))
    if is_int:
        return int(word)
    return float(word) if _FLOAT.fullmatch(word) else word


def _after_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t"):
        at += 1
    return at


def write_value(value: Any) -> str:
    """The value so that `read_value` gives it back. Example: ["a b", None] -> "[a b,null]"; "1" -> "'1'"."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(write_value, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{write_value(item)}" for key, item in value.items()) + "}"
    if not isinstance(value, str):
        return re.sub(r"e([+-])0", r"e\1", repr(value))  # 1e-6, as the guides write it
    return value if _is_plain(value) else _in_quotes(value)


def _is_plain(text: str) -> bool:
    try:
        return bool(text) and read_value(text) == text and read_value(f"[{text}]") == [text]
    except NotHydra:
        return False


def _in_quotes(text: str) -> str:
    return "'" + re.sub(r"(\\*)('|$)", lambda run: run[1] * 2 + ("\\'" if run[2] else ""), text) + "'"
