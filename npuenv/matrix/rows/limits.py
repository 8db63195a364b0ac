"""Rows about what does not go together, and about sources that contradict each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npuenv.matrix.rows.base import Row


@dataclass(frozen=True, slots=True)
class Unsupported(Row):
    """Something that does not work on an NPU, who says so, and for how long."""

    what: str
    kind: Literal["package", "backend", "mode", "env", "hardware"]
    frameworks: tuple[str, ...]  # empty: all
    package: str = ""  # distribution name, where it is one
    hardware: tuple[str, ...] = ()
    since: str = ""
    until: str = ""  # when that stopped being true; "": still
    instead: str = ""  # what to use
    believe: bool = True  # False: kept because a document says it, but overruled by `why`
    why: str = ""


@dataclass(frozen=True, slots=True)
class Limit(Row):
    """A requirement that no package metadata holds: where `when` is installed, `needs` must hold."""

    when: str
    needs: str
    why: str
    since: str = ""  # the day the first release that `when` names came out; a lock that ends before it cannot meet it
    python: tuple[str, ...] = ()  # only on these Pythons; empty: on all
    is_imported: bool = False  # `when` imports the package of `needs`, which therefore has to be installed


@dataclass(frozen=True, slots=True)
class Contradiction(Row):
    """Two sources that contradict each other about rows of the matrix: both, and which one the rows follow."""

    about: str
    rows: tuple[str, ...]  # ids of the rows it touches; empty: none of them hangs on it
    one: str
    one_source: str
    other: str
    other_source: str
    believe: Literal["one", "other", "both", "open"]
    why: str
