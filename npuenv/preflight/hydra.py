"""Words of a Hydra command line as keys and values, by Hydra's own grammar, and OmegaConf's interpolations filled in.

Of words only what a single run takes: a choice between values (`key=1,2`) is refused, as Hydra refuses it without
--multirun.
Source: hydra/grammar/OverrideLexer.g4 and OverrideParser.g4, hydra-core 1.3; a test compares the two readers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from npuenv.core.shellwords import LONGEST
from npuenv.preflight.launch import MOST_DIGITS, MOST_LEVELS
from npuenv.preflight.yaml_text import scalar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.preflight.launch import LaunchSetting

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
    if depth > MOST_LEVELS:
        raise NotHydra("levels", str(MOST_LEVELS))
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
    if is_int and len(word) > MOST_DIGITS:
        raise NotHydra("digits", str(MOST_DIGITS))
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
    if _is_plain(value):
        return value
    return "'" + re.sub(r"(\\*)('|$)", lambda run: run[1] * 2 + ("\\'" if run[2] else ""), value) + "'"


def _is_plain(text: str) -> bool:
    try:
        return bool(text) and read_value(text) == text and read_value(f"[{text}]") == [text]
    except NotHydra:
        return False


_ONE = re.compile(r"(?<!\\)\$\{([^${}]*)\}")
_TARGET = re.compile(r"(\.*)([A-Za-z_$][\w$/-]*(?:\.[\w$/-]+|\[[^\]]*\])*)")
_OPEN = object()  # not known here
_MOST = 20  # interpolations that lead to each other
_MOST_VALUES = 100_000  # to be filled in for one launch; verl's own configuration has 600, with 50 interpolations


def fill(
    settings: Mapping[str, LaunchSetting], defaults: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, LaunchSetting]:
    """The settings with `${a.b}`, `${.c}`, `${oc.env:X,default}` replaced; what cannot be is open, its value the text.

    `environ` holds variables that are known where the launch runs.
    """
    reader = _Interpolator(settings, defaults, environ)
    filled = {}
    for key, setting in settings.items():
        value = setting.value if setting.is_open else reader.filled(setting.value, key, _MOST)
        is_open = setting.is_open or value is _OPEN
        filled[key] = replace(setting, value=setting.text if is_open else value, is_open=is_open)
    return filled


class _Interpolator:
    """Looks up what an interpolation names: written settings first, then the release's own."""

    def __init__(
        self, settings: Mapping[str, LaunchSetting], defaults: Mapping[str, Any], environ: Mapping[str, str]
    ) -> None:
        self.settings, self.defaults, self.environ = settings, defaults, environ
        self.left = _MOST_VALUES
        self.parents = {key.rpartition(".")[0] for key in (*settings, *defaults)}

    def filled(self, value: Any, key: str, depth: int) -> Any:
        """A value without interpolations, or _OPEN."""
        self.left -= 1
        if self.left < 0:
            return _OPEN
        if isinstance(value, list):
            items = [self.filled(item, key, depth) for item in value]
            return _OPEN if any(item is _OPEN for item in items) else items
        if isinstance(value, dict):
            pairs = {name: self.filled(item, f"{key}.{name}", depth) for name, item in value.items()}
            return _OPEN if any(item is _OPEN for item in pairs.values()) else pairs
        if not isinstance(value, str) or "${" not in value:
            return value
        if depth == 0:
            return _OPEN
        whole = _ONE.fullmatch(value)
        if whole is not None:
            return self._resolved(whole[1], key, depth - 1)
        return self._in_text(value, key, depth - 1)

    def _in_text(self, text: str, key: str, depth: int) -> Any:
        for found in _ONE.finditer(text):
            value = self._resolved(found[1], key, depth)
            if value is _OPEN or isinstance(value, (list, dict)):
                return _OPEN
            shown = "null" if value is None else str(value)
            if len(text) + len(shown) > LONGEST:
                return _OPEN
            return self.filled(text[: found.start()] + shown + text[found.end() :], key, depth)
        return text if "${" not in text.replace("\\${", "") else _OPEN

    def _resolved(self, inside: str, key: str, depth: int) -> Any:
        name, sign, words = inside.strip().partition(":")
        if sign:
            return self._called(name.strip(), words, key, depth)
        found = _TARGET.fullmatch(name)
        if found is None:
            return _OPEN
        target = found[2].replace("[", ".").replace("]", "")
        return self._at(".".join(filter(None, (_above(key, len(found[1])), target))), depth)

    def _called(self, name: str, words: str, key: str, depth: int) -> Any:
        first, sign, other = (part.strip() for part in words.partition(","))
        default = scalar(other.strip("'\"")) if sign else _OPEN
        if name == "oc.env":
            return scalar(self.environ[first]) if first in self.environ else default
        if name == "oc.select":
            value = self._at(first, depth)
            return default if value is _OPEN else value
        return _OPEN

    def _at(self, key: str, depth: int) -> Any:
        """The value under a key: a leaf, a whole mapping, or an item of a list."""
        if key in self.settings:
            setting = self.settings[key]
            return _OPEN if setting.is_open else self.filled(setting.value, key, depth)
        if key in self.defaults and key not in self.parents:
            return self.filled(self.defaults[key], key, depth)
        if key in self.parents or any(each.startswith(f"{key}.") for each in self.parents):
            return self._mapping(key, depth)
        above, _, last = key.rpartition(".")
        if last.isdigit() and above in self.settings and isinstance(self.settings[above].value, list):
            items = self.settings[above].value
            return self.filled(items[int(last)], above, depth) if int(last) < len(items) else _OPEN
        return _OPEN

    def _mapping(self, key: str, depth: int) -> Any:
        tree: dict[str, Any] = {}
        below = f"{key}."
        self.left -= len(self.defaults) + len(self.settings)
        for each in dict.fromkeys((*self.defaults, *self.settings)):
            if self.left < 0:
                return _OPEN
            if each.startswith(below):
                value = self._at(each, depth)
                if value is _OPEN:
                    return _OPEN
                *parts, last = each[len(below) :].split(".")
                inner = tree
                for part in parts:
                    inner = inner.setdefault(part, {})
                inner[last] = value
        return tree


def _above(key: str, dots: int) -> str:
    """What a relative interpolation starts from: one dot means beside the key itself, none the top."""
    return ".".join(key.split(".")[:-dots]) if dots else ""
