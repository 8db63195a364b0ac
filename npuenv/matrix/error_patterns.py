"""Known problems: which texts and signs in a report speak for which cause, what mends it, what tells two apart.

Rows lie in the folder `error_patterns`, one file an area. Start from `load_problems`. What a row looks for is one of

    a text        as the software prints it; `*` stands for anything within the line, case does not count.
                  What `shows` names counts only where it is printed, not in a line that sets or types something
    `@sign`       something that `npuenv.diagnose` worked out of versions, tables or settings. It shows a cause only
                  beside a failure, unless the row says that it is a fault by itself
    `#code`       an error code: `#EI0006`, `#507033`, `#-8005`, `#drv87`
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from npuenv.core.files import folder_of
from npuenv.matrix.load import load_table
from npuenv.matrix.rows import Row

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Problem(Row):
    """One way in which a cause shows itself."""

    cause: str  # a row of causes.toml; for the kind `noise` the id of the observation
    confidence: float  # 0..1, for a report in which nothing else speaks; below 0.5 it is only a candidate
    shows: tuple[str, ...]  # one of these is there; the first line of the first that is, is the deciding one
    kind: Literal["cause", "noise", "not-environment"] = "cause"
    also: tuple[str, ...] = ()  # all of these are there too
    any_of: tuple[str, ...] = ()  # and at least one of these
    unless: tuple[str, ...] = ()  # none of these is there
    is_echo: bool = False  # usually follows from something else: gives way to any cause that stands before it
    even_if_worked: bool = False  # counts although the report ends with a sign of success
    is_fault: bool = False  # its `@sign` surely fails: it counts in a report without any error too
    in_settings: bool = False  # its texts count where they are set or typed, not only where something prints them


@dataclass(frozen=True, slots=True)
class CauseRow(Row):
    """One cause. Its sentences are `cause-<id>` and `fix-<id>` of the catalogue `diagnose`."""

    layer: Literal["host", "container", "cann", "python", "build", "ray", "hccl", "config", "none"]
    commands: tuple[tuple[str, ...], ...] = ()  # what mends it, as argv; <words in angle brackets> are for the user
    is_dangerous: bool = False
    check: str = ""  # a command that shows whether it is this one; what to expect is the sentence `expect-<id>`


@dataclass(frozen=True, slots=True)
class SeparationRow(Row):
    """The command that tells two causes apart; what to expect is the sentence `between-<id>`."""

    one: str
    other: str
    command: str


@dataclass(frozen=True, slots=True)
class BoundRow(Row):
    """A version that does not go with another one: `sign` is there where `when` is installed and `needs` is not met."""

    sign: str
    when: str
    needs: str


@dataclass(frozen=True, slots=True)
class Problems:
    """All known problems."""

    rows: tuple[Problem, ...]
    causes: dict[str, CauseRow]
    separations: tuple[SeparationRow, ...]
    bounds: tuple[BoundRow, ...]

    def separation(self, one: str, other: str) -> SeparationRow | None:
        """The row for a pair of causes, in whichever order it names them."""
        wanted = {one, other}
        return next((row for row in self.separations if {row.one, row.other} == wanted), None)


_OTHERS: dict[str, type[Row]] = {"causes": CauseRow, "separations": SeparationRow, "bounds": BoundRow}


@functools.cache
def load_problems(folder: Path | None = None) -> Problems:
    """The known problems that come with npuenv, or those of a folder of the same files. Raises: BadInput."""
    tables = tables_of(folder or folder_of(__file__) / "error_patterns")
    others = {name: tables.pop(name) for name in _OTHERS}
    return Problems(
        rows=cast("tuple[Problem, ...]", tuple(itertools.chain.from_iterable(tables.values()))),
        causes={row.id: row for row in cast("tuple[CauseRow, ...]", others["causes"])},
        separations=cast("tuple[SeparationRow, ...]", others["separations"]),
        bounds=cast("tuple[BoundRow, ...]", others["bounds"]),
    )


def tables_of(folder: Path) -> dict[str, tuple[Row, ...]]:
    """The rows of every file of the folder, by its name. Raises: BadInput."""
    names = sorted(path.name[:-5] for path in folder.iterdir() if path.name.endswith(".toml"))
    return {name: load_table(folder / f"{name}.toml", _OTHERS.get(name, Problem)) for name in names}
