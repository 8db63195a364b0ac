"""Sentences as data: a `Message` is a key with arguments, the catalogues hold the sentences.

Errors, findings, steps and conflicts carry Messages; only `cli` and `report` turn them into text with `say`.
Catalogues lie beside this file, one for each area. They hold each sentence in both languages, `name.en` and `name.zh`,
with the same placeholders (a test compares them). What others wrote is said so that it neither paints nor moves nor
hides anything (`clean`).
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npuenv.core.documents import folder_of, load_toml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


LANGUAGES = ("en", "zh")


@dataclass(frozen=True, slots=True)
class Message:
    """A sentence to be said later: `key` is `area.name` in the catalogues, `args` fill its placeholders.

    An argument may be a string, a number, a Message (said in the same language) or a tuple of those (joined by commas,
    whole sentences without).
    A string may come from anywhere: it is said on one line and without control characters.
    """

    key: str
    args: Mapping[str, object] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)  # the sentence by language, where a table's row has it


def say(message: Message, lang: str = "en") -> str:
    """The sentence in a language. A key or placeholder that is missing is our mistake and raises KeyError."""
    area, _, name = message.key.partition(".")
    template = (message.texts or _catalogue(area)[name])[lang]
    return template.format_map({key: _plain(value, lang) for key, value in message.args.items()})


def language_from_environment(environ: Mapping[str, str] | None = None) -> str:
    """`zh` where the locale is Chinese, else `en`. The first of LC_ALL, LC_MESSAGES, LANG that is set decides."""
    environ = os.environ if environ is None else environ
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if environ.get(name):
            return "zh" if environ[name].lower().startswith("zh") else "en"
    return "en"


def _plain(value: object, lang: str) -> object:
    if isinstance(value, Message):
        return say(value, lang)
    if isinstance(value, (tuple, list)):
        return _joined([str(_plain(item, lang)) for item in value], value, lang)
    return value if isinstance(value, (int, float)) else clean(value if isinstance(value, str) else str(value))


def _joined(texts: Sequence[str], items: Sequence[object], lang: str) -> str:
    comma, space = ("、", "") if lang == "zh" else (", ", " ")
    ends = [isinstance(item, Message) and text.endswith((".", "。")) for item, text in zip(items, texts)]
    return "".join(text + (space if is_end else comma) for text, is_end in zip(texts[:-1], ends)) + "".join(texts[-1:])


@functools.cache
def _catalogue(area: str) -> Mapping[str, Mapping[str, str]]:
    return load_toml(folder_of(__file__) / f"{area}.toml", is_ours=True)


def clean(text: str) -> str:
    """One line without what no screen shows: control and direction characters as `\\x1b`, line ends as a space."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each in "\t\r\n\u3000" else escaped(each) for each in text)


def escaped(character: str) -> str:
    """How a character that no screen shows is written: `\\x1b`."""
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
