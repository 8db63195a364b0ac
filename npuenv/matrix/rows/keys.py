"""Rows about the keys of a framework's configuration: which values one takes or not, and where one went."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from npuenv.matrix.rows.base import Row


@dataclass(frozen=True, slots=True)
class Choice(Row):
    """The words that a key takes. `key` may hold `*` for any number of parts."""

    framework: Literal["verl", "roll"]
    key: str
    values: tuple[str, ...]
    since: str = ""  # the framework's release from which on this list holds; "": from the first
    until: str = ""  # the first release for which it holds no more
    is_open: bool = False  # users may add words of their own: one outside of the list is doubtful, no more


@dataclass(frozen=True, slots=True)
class Bound(Row):
    """The numbers that a key takes. `key` may hold `*` for any number of parts."""

    framework: Literal["verl", "roll"]
    key: str
    kind: Literal["whole", "decimal"]
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf  # as `least`, itself left out
    also: tuple[float, ...] = ()  # values outside of the range that mean something: -1 for all
    unless: tuple[str, ...] = ()  # KEY=VALUE: where one is in force, the range is another


@dataclass(frozen=True, slots=True)
class RefusedValue(Row):
    """Values of keys or variables that a launch is warned of. Without `values` and `pattern` it is any value."""

    rule: str  # of preflight, without its prefix; several rows may share it, and the first one that holds speaks
    frameworks: tuple[Literal["verl", "roll"], ...]
    keys: tuple[str, ...] = ()  # `*` for any number of parts
    variables: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    pattern: str = ""  # a regular expression for the whole value
    since: str = ""  # the framework's release from which on the row holds; "": from the first
    until: str = ""  # the first release for which it holds no more
    not_on: tuple[str, ...] = ()  # hardware on which the value works
    severity: Literal["error", "warning", "note"] = "error"
    says: str = ""  # the sentence; "": that of the rule
    fix: str = ""  # the value to write instead, as in YAML
    removes: bool = False  # instead: take the setting out


@dataclass(frozen=True, slots=True)
class MovedKey(Row):
    """A key, or the beginning of several, that has another name from a release on."""

    framework: Literal["verl", "roll"]
    old: str
    new: str  # "": gone, and nothing stands in its place
    since: str
