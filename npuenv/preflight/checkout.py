"""The configuration of verl in a source tree of it, where a launch lies in one: `find_checkout`.

verl keeps its composed configurations in the tree, as files that its own checks hold to be up to date.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.files import read_bytes
from npuenv.core.messages import Message
from npuenv.matrix.keys import KeyTable, defaults_of, names_of, nearest_release
from npuenv.preflight import limits
from npuenv.preflight.yaml_text import read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

_CONFIG = Path("verl", "trainer", "config")
_COMPOSED = "_generated_ppo_trainer.yaml"
_VERSION = Path("verl", "version", "version")


@dataclass(frozen=True, slots=True)
class Checkout:
    """A source tree of verl."""

    version: str  # as the tree calls itself, like 0.10.0.dev
    release: str  # the recorded release whose keys and defaults it has, else `version`
    keys: KeyTable | None = None  # None: those of the recorded release
    damage: Message | None = None  # why it cannot be read; then its release counts as unknown


def find_checkout(folders: Iterable[Path]) -> Checkout | None:
    """The first of the folders that is a source tree of verl; None where none is, or one older than all releases."""
    found = next((each for each in folders if (each / _CONFIG / _COMPOSED).is_file()), None)
    return None if found is None else _read(found)


@functools.cache
def _read(tree: Path) -> Checkout | None:
    try:
        version = _text(tree / _VERSION).strip()
        nearest = nearest_release("verl", version)
        if nearest is None:
            return None
        base = versions.python_version(version).base_version
        defaults = {"model_engine": "dp", **_leaves(tree / _CONFIG / _COMPOSED)}  # a choice, which is not in the file
        if defaults == defaults_of("verl", base):
            return Checkout(version, base)
        names = frozenset(defaults).union(*map(_leaves, _other_trainers(tree)))
    except BadInput as error:
        damage = Message("preflight.checkout-damaged", {"path": str(tree), "why": error.message})
        return Checkout("", "", damage=damage)
    files = (tree / "verl").rglob("config/**/*.yaml")
    configs = frozenset(each.relative_to(tree).with_suffix("").as_posix() for each in files if each.name[0] != "_")
    if not _are_composed(tree):
        names |= names_of("verl", nearest)
    return Checkout(version, version, KeyTable(version, defaults, names, configs, str(tree)))


def _other_trainers(tree: Path) -> list[Path]:
    """The composed configurations of other engines, and those of trainers in other folders."""
    others = [each for each in (tree / "verl").rglob("config/*ppo*trainer.yaml") if each.parent != tree / _CONFIG]
    return [*(tree / _CONFIG).glob("_generated_*.yaml"), *others]


def _are_composed(tree: Path) -> bool:
    """Whether the tree has a composed configuration for each engine."""
    engines = {each.stem for each in (tree / _CONFIG / "model_engine").glob("*.yaml")} - {"dp"}
    return all((tree / _CONFIG / f"_generated_ppo_{name}_trainer.yaml").is_file() for name in engines)


def _leaves(file: Path) -> dict[str, Any]:
    entries = read_yaml(_text(file), str(file))
    return {
        leaf.dotted: leaf.value
        for each in entries
        if each.path[0] not in ("defaults", "hydra")
        for leaf in each.leaves()
    }


def _text(file: Path) -> str:
    try:
        return read_bytes(file, limits.BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(Message("preflight.unreadable", {"path": str(file), "why": str(error)})) from error
