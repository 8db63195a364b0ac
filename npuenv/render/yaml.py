"""YAML from plain data: `dump`. Texts that a parser of YAML 1.1 or 1.2 could mistake stand in double quotes."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

# What no parser takes for a number, a truth value or a time.
_UNMISTAKABLE = re.compile(r"[A-Za-z/_][\w./@ -]*[\w./]|[A-Za-z]", re.ASCII)
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def dump(head: Sequence[str], documents: Sequence[Any]) -> str:
    """The comment lines, then each document; mappings keep their order, so the same data give the same bytes."""
    return "".join(f"{line}\n" for line in head) + text_of([_quoted(document) for document in documents])


def text_of(documents: Sequence[Any]) -> str:
    """Documents of ruamel's types, as they are; no value is broken over lines."""
    # 60 ms to load: only what writes YAML pays for it.
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 4096
    yaml.representer.add_representer(type(None), _null)
    stream = io.StringIO()
    for place, document in enumerate(documents):
        if place:
            stream.write("---\n")
        yaml.dump(document, stream)
    return stream.getvalue()


def _null(representer: Any, value: None) -> Any:
    """A tilde, as in ROLL's samples; nothing at all reads like a forgotten value."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "~")


def _quoted(data: Any) -> Any:
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

    if isinstance(data, dict):
        return {key: _quoted(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_quoted(item) for item in data]
    if not isinstance(data, str):
        return data
    if "\n" in data:
        return LiteralScalarString(data)
    is_plain = _UNMISTAKABLE.fullmatch(data) and data.lower() not in _WORDS
    return data if is_plain else DoubleQuotedScalarString(data)
