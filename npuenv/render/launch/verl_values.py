"""Values of verl's configuration: from the text of a recipe, to a word of a command, to a line of YAML; and its keys
under the names that one release gives them.

A value that could end the word or the scalar it stands in is refused; nothing here is expanded by a shell or by Hydra.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypeVar

from npuenv.core import versions
from npuenv.matrix import load_matrix
from npuenv.render.launch.job import nested
from npuenv.render.words import UNSAFE_OR_BLANK, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npuenv.matrix.rows import LaunchKey

V = TypeVar("V")
Value = bool | int | float | str | list[str] | None

_INTEGER = re.compile(r"[+-]?\d+\Z")
_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?\Z")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}
# What Hydra takes without quotes, for certain: its grammar allows more.
_PLAIN_HYDRA = re.compile(r"[A-Za-z0-9_./-]+\Z")
_PLAIN_YAML = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*\Z")
_PLAIN_SHELL = re.compile(r"[A-Za-z0-9_./:@%+=,-]+\Z")
_YAML_WORDS = {"true", "false", "null", "none", "yes", "no", "on", "off", "y", "n", "nan", "inf"}


def value_of(text: str) -> Value:
    """The value that Hydra makes of a text.

    Example: "5e-7" -> 5e-07, "True" -> True, "[console,wandb]" -> ["console", "wandb"], "vllm" -> "vllm"
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    if text.startswith("[") and text.endswith("]"):
        return [each.strip() for each in text[1:-1].split(",") if each.strip()]
    return text


def word(key: str, value: Value, *, is_added: bool = False) -> str:
    """An override as one word of a POSIX shell command; `is_added` for a key that verl's configuration does not list.

    Example: ("trainer.logger", ["console", "wandb"]) -> "trainer.logger=[console,wandb]" with the quotes around it
    """
    # Not a single plus: Hydra refuses that one where a release does have the key.
    text = f"{'++' if is_added else ''}{key}={_hydra(value, key)}"
    return text if _PLAIN_SHELL.match(text) else f'"{text}"'


def yaml(values: Mapping[str, Value]) -> str:
    """Dotted keys as nested YAML, in the order in which each branch comes first."""
    tree = nested({key: _scalar(value, key) for key, value in values.items()})
    return "\n".join(_lines(tree, "")) + "\n"


def _lines(branch: Mapping[str, object], indent: str) -> Iterator[str]:
    for name, below in branch.items():
        if isinstance(below, dict):
            yield f"{indent}{name}:"
            yield from _lines(below, indent + "  ")
        else:
            yield f"{indent}{name}: {below}"


def _scalar(value: Value, key: str) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_scalar(each, key) for each in value)}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        plain(value, key, UNSAFE_OR_BLANK)
        is_plain = _PLAIN_YAML.match(value) and value.lower() not in _YAML_WORDS
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    # YAML 1.1 takes 5e-07 for a text: it wants the dot.
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _hydra(value: Value, key: str) -> str:
    if isinstance(value, list):
        return f"[{','.join(_hydra(each, key) for each in value)}]"
    if isinstance(value, str):
        plain(value, key, UNSAFE_OR_BLANK)
        is_plain = _PLAIN_HYDRA.match(value) and isinstance(value_of(value), str)
        return value if is_plain else f"'{value}'"
    # 5e-07 as the guides write it: 5e-7.
    return "null" if value is None else re.sub(r"e([+-])0", r"e\1", repr(value))


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
