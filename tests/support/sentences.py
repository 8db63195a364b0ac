"""Asserts what a text says without quoting it: by the key and arguments of the message, whatever its words are now.

The words themselves stand in the golden files of `tests/golden`, once per command and language.
"""

from __future__ import annotations

import functools
import re
import string
from pathlib import Path
from typing import TYPE_CHECKING, cast

from npuenv.core import messages
from npuenv.core.documents import load_toml
from npuenv.core.messages import Message, say
from npuenv.matrix.error_patterns import load_error_patterns

if TYPE_CHECKING:
    from re import Pattern

    from npuenv.core.finding import Finding

_MARK = "\u241f"  # stands in no sentence
_LEAST_LETTERS = 6  # of a template that stands without arguments: fewer would be found anywhere


class part(str):
    """An argument of which only this much is known: the sentence has it somewhere inside the value."""

    __slots__ = ()


def outcomes(message: Message) -> list[Message]:
    """The sentences of a finding that tells several outcomes, the gravest first; else its only one."""
    if message.key != "checks.both":
        return [message]
    return [each for name in ("first", "other") for each in outcomes(cast("Message", message.args[name]))]


def sentence(key: str, /, lang: str = "en", **args: object) -> str:
    """The sentence of `key`, with every argument given."""
    return say(Message(key, args), lang)


def says(text: str, key: str, /, lang: str = "en", **args: object) -> bool:
    """Whether `text` has the sentence of `key` in it, with these arguments; those not given may be anything.

    White space counts as one blank, so that a sentence may be wrapped. Raises KeyError for an argument that the
    sentence has no place for, ValueError where what is left fixed would be found in any text.
    """
    sought = pattern(key, lang, **args)
    # Without one of its fixed parts it is not there, which the whole expression finds out in quadratic time.
    parts = (literal for literal, *_ in string.Formatter().parse(say_template(key, lang)))
    return all(re.search(_folded(each), text) for each in parts) and sought.search(text) is not None


def pattern(key: str, /, lang: str = "en", **args: object) -> Pattern[str]:
    """What `says` looks for, as an expression: for `pytest.raises(match=...)`."""
    pieces, fixed, names = [], "", set()
    for literal, name, spec, _ in string.Formatter().parse(say_template(key, lang)):
        pieces.append(_folded(literal))
        fixed += literal
        if name is not None:
            names.add(name)
            pieces.append(_value(args[name], spec or "", lang) if name in args else "(?:.+?)")
            fixed += str(args.get(name, ""))
    if unknown := set(args) - names:
        raise KeyError(f"{key} has no place for {', '.join(sorted(unknown))}; it has {', '.join(sorted(names))}")
    if sum(each.isalnum() for each in fixed) < _LEAST_LETTERS:
        raise ValueError(f"{key} with so few arguments would be found in any text")
    return re.compile("".join(pieces), re.DOTALL)


def in_both_languages(finding: Finding) -> bool:
    """Whether a finding and its fix can be said in each of them."""
    messages_of = [finding.says, *([finding.fix.says] if finding.fix else [])]
    return all(say(message, lang) for message in messages_of for lang in messages.LANGUAGES)


@functools.cache
def catalogue() -> dict[str, dict[str, str]]:
    """All sentences of npuenv: full key -> language -> template. Those of causes are named like their messages."""
    folder = Path(messages.__file__).parent
    found = {
        f"{path.stem}.{name}": texts
        for path in sorted(folder.glob("*.toml"))
        for name, texts in load_toml(path).items()
    }
    patterns = load_error_patterns()
    for row in patterns.causes.values():
        for name, texts in (("cause", row.says), ("fix", row.fix), ("expect", row.expect)):
            if texts:
                found[f"diagnose.{name}-{row.id}"] = dict(texts)
    return found | {f"diagnose.between-{row.id}": dict(row.expect) for row in patterns.discriminators}


def say_template(key: str, lang: str = "en") -> str:
    """The sentence of `key` with its placeholders, as the catalogue has it."""
    return catalogue()[key][lang]


def _value(value: object, spec: str, lang: str) -> str:
    if isinstance(value, part):
        return f"(?:.*?{_folded(value)}.*?)"
    text = say(Message("doctor.source", {"source": value}), lang) if isinstance(value, (Message, tuple, list)) else None
    if text is not None:
        marker = say(Message("doctor.source", {"source": _MARK}), lang)
        before, _, after = marker.partition(_MARK)
        text = text[len(before) : len(text) - len(after)]
    return _folded(format(value, spec) if text is None else text)


def _folded(text: str) -> str:
    return r"\s+".join(re.escape(word) for word in re.split(r"\s+", text))
