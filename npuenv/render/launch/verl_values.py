"""Values of verl's configuration: from the text of a recipe, to a word of a command, to a line of YAML; and its keys
under the names that one release gives them.

Nothing here is expanded by a shell or by Hydra: `overrides` refuses values that could end their word.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from npuenv.core import versions
from npuenv.matrix import load_matrix
from npuenv.preflight.hydra import NotHydra, read_value, write_value
from npuenv.preflight.yaml_text import write_scalar
from npuenv.render.launch.job import nested

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npuenv.matrix.rows import LaunchKey

V = TypeVar("V")
Value = bool | int | float | str | list[str] | None

# A word that no shell expands or parts.
_PLAIN_SHELL = re.compile(r"[A-Za-z0-9_./:@%+=,-]+\Z")


def value_of(text: str) -> Value:
    """The value that Hydra makes of a text; the text itself, which then needs quotes, where Hydra would refuse it.

    Example: "5e-7" -> 5e-07, "True" -> True, "[console,wandb]" -> ["console", "wandb"], "vllm" -> "vllm"
    """
    try:
        found: Value = read_value(text)
    except NotHydra:
        return text
    return found


def word(key: str, value: Value, *, is_added: bool = False) -> str:
    """An override as one word of a POSIX shell command; `is_added` for a key that verl's configuration does not list.

    Example: ("trainer.logger", ["console", "wandb"]) -> "trainer.logger=[console,wandb]" with the quotes around it
    """
    # Not a single plus: Hydra refuses that one where a release does have the key.
    text = f"{'++' if is_added else ''}{key}={write_value(value)}"
    return text if _PLAIN_SHELL.match(text) else f'"{text}"'


def yaml(values: Mapping[str, Value]) -> str:
    """Dotted keys as nested YAML, in the order in which each branch comes first."""
    tree = nested({key: write_scalar(value) for key, value in values.items()})
    return "\n".join(_lines(tree, "")) + "\n"


def _lines(branch: Mapping[str, object], indent: str) -> Iterator[str]:
    for name, below in branch.items():
        if isinstance(below, dict):
            yield f"{indent}{name}:"
            yield from _lines(below, indent + "  ")
        else:
            yield f"{indent}{name}: {below}"


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
