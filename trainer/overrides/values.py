"""The right side of an override as hydra writes it: True, 5e-7, null, 'a text', [a, 'b', [c]]. Nothing is evaluated."""

from __future__ import annotations

import re
from typing import Union

from trainer.settings import BadSetting

Value = Union[None, bool, int, float, str, "list[Value]"]

_DEEPEST = 8  # lists within lists
_LONGEST_NUMBER = 300  # characters; longer ones are texts
_INTEGER = re.compile(r"[+-]?\d+(_\d+)*", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+(_\d+)*\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE)
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}


def read(text: str) -> Value:
    """The value of a text. Raises BadSetting for unclosed brackets and quotes, dictionaries and `${...}`.

    Example: "[a, 'b, c', 2]" -> ["a", "b, c", 2]
    """
    text = text.strip()
    if not text.startswith(("[", "'", '"')):
        return _plain(text)
    value, place = _value(text, 0, depth=0)
    if text[place:].strip():
        raise BadSetting(f"{text!r} goes on behind its end with {text[place:].strip()!r}")
    return value


def _value(text: str, place: int, *, depth: int) -> tuple[Value, int]:
    place = _skip(text, place)
    if text[place : place + 1] == "[":
        return _list(text, place + 1, depth=depth + 1)
    if text[place : place + 1] in ("'", '"'):
        return _quoted(text, place)
    end = place
    while end < len(text) and text[end] not in ",]":
        end += 1
    return _plain(text[place:end].strip()), end


def _list(text: str, place: int, *, depth: int) -> tuple[Value, int]:
    if depth > _DEEPEST:
        raise BadSetting(f"{text[:40]!r} holds lists more than {_DEEPEST} deep")
    found: list[Value] = []
    place = _skip(text, place)
    if text[place : place + 1] == "]":
        return found, place + 1
    while True:
        value, place = _value(text, place, depth=depth)
        if value == "":
            raise BadSetting(f"{text!r} has a place with nothing in it")
        found.append(value)
        place = _skip(text, place)
        mark, place = text[place : place + 1], place + 1
        if mark == "]":
            return found, place
        if mark != ",":
            raise BadSetting(f"{text!r} has a [ that is not closed")


def _quoted(text: str, place: int) -> tuple[str, int]:
    quote, end = text[place], place + 1
    letters: list[str] = []
    while end < len(text):
        if text[end] == quote:
            return "".join(letters), end + 1
        if text[end] == "\\" and text[end + 1 : end + 2] in (quote, "\\"):
            end += 1
        letters.append(text[end])
        end += 1
    raise BadSetting(f"{text!r} has a {quote} that is not closed")


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _plain(text: str) -> Value:
    if "${" in text:
        raise BadSetting(f"{text!r} refers to another key, which is not looked up here: write its value")
    if text.startswith("{"):
        raise BadSetting(f"{text!r} is a dictionary: give its keys one by one, KEY.SUB=VALUE")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) <= _LONGEST_NUMBER:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def spell(value: Value) -> str:
    """A value as a setting of ours takes it: lists by comma, null as nothing. Example: ["a", True] -> "a,true"."""
    if isinstance(value, list):
        return ",".join(spell(each) for each in value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
