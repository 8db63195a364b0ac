"""Error patterns: which texts and signs in a report point to which cause, how to fix it, how to tell two causes apart.

Rows lie in the folder `error_patterns`, one file an area. Everything a row looks for is one of

    a text        as the software prints it; `*` stands for anything within the line, case does not count.
                  Fixed text of `boilerplate.toml` is never found
    `@sign`       something that `npuenv.diagnose` derives from versions, tables or settings. It shows a cause only
                  beside a failure, unless the row says that it is a fault by itself
    `#code`       an error code: `#EI0006`, `#507033`, `#-8005`, `#drv87`
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping  # noqa: TC003 - the loader reads these annotations at run time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from npuenv.core.documents import folder_of
from npuenv.matrix.load import Row, load_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ErrorPattern(Row):
    """One way in which a cause shows itself."""

    cause: str  # a row of causes.toml; for the kind `noise` the id of the observation
    confidence: float  # 0..1, for a report in which nothing else is found; below 0.5 it is only a candidate
    patterns: tuple[str, ...]  # one of these is there; the first line of the first that is, is quoted
    kind: Literal["cause", "noise", "not-environment"] = "cause"
    all_of: tuple[str, ...] = ()  # all of these are there too
    any_of: tuple[str, ...] = ()  # and at least one of these
    unless: tuple[str, ...] = ()  # none of these is there
    is_secondary: bool = False  # usually follows from something else: weighs less below any other cause
    is_fallback: bool = False  # counts only where no other row shows a cause
    ignore_success: bool = False  # counts although something worked after it
    means: str = ""  # what a code says by itself; empty: the texts say it
    is_fault: bool = False  # its `@sign` surely fails: it counts in a report without any error too


@dataclass(frozen=True, slots=True)
class ReleaseBugRow(Row):
    """A bug of a package: `@present-<id>` where the report names a release that has it, `@fixed-<id>` a later one."""

    package: str
    texts: tuple[str, ...]
    fixed_in: str = ""  # the first release without it; empty: not known

    def as_patterns(self) -> Iterator[ErrorPattern]:
        """What shows the bug, in a release that has it and in one that the report does not name."""
        where, fixed = (self.id, self.source, self.seen), (f"@fixed-{self.id}",)
        anywhere = ErrorPattern(*where, "framework-known-bug", 0.7, self.texts, unless=fixed)
        yield anywhere
        present = (f"@present-{self.id}",)
        yield replace(anywhere, id=f"{self.id}.release", confidence=0.84, all_of=present, unless=())


@dataclass(frozen=True, slots=True)
class CauseRow(Row):
    """One cause with its sentences, each by language, and with texts that show it, unless other rows hold them all."""

    layer: Literal["host", "container", "cann", "python", "build", "ray", "hccl", "config", "none"]
    says: Mapping[str, str]
    fix: Mapping[str, str]
    commands: tuple[tuple[str, ...], ...] = ()  # the fix, as argv; <words in angle brackets> are for the user
    is_dangerous: bool = False
    check: str = ""  # a command that shows whether it is this one
    expect: Mapping[str, str] = field(default_factory=dict)  # what `check` shows then
    texts: tuple[str, ...] = ()  # the `patterns` of one row more
    confidence: float = 0.8  # of that row
    other_fix: Mapping[str, str] = field(default_factory=dict)  # the fix where the quoted line has one of `other_texts`
    other_texts: tuple[str, ...] = ()  # parts of a line, without `*`; case does not count

    def fix_for(self, line: str) -> Mapping[str, str]:
        """The sentences of the fix for the line that is quoted."""
        lowered = line.lower()
        return self.other_fix if any(text.lower() in lowered for text in self.other_texts) else self.fix

    def as_patterns(self) -> Iterator[ErrorPattern]:
        """The row of its own texts, if it has any."""
        if self.texts:
            yield ErrorPattern(f"c.{self.id}", self.source, self.seen, self.id, self.confidence, self.texts)


@dataclass(frozen=True, slots=True)
class DiscriminatorRow(Row):
    """The command that tells two causes apart."""

    one: str
    other: str
    command: str
    expect: Mapping[str, str]  # what it shows in either case, by language


@dataclass(frozen=True, slots=True)
class BoundRow(Row):
    """Versions that do not go together: `sign` is there where `when` is installed and `needs` does not hold."""

    sign: str
    when: str
    needs: str


@dataclass(frozen=True, slots=True)
class BoilerplateRow(Row):
    """Fixed text of messages. `*` stands for a value that is filled in, `**` at the end for the rest of the line."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoleRow(Row):
    """Lines of one kind, and how much they speak for a document. Patterns are regular expressions."""

    weight: float
    patterns: tuple[str, ...]
    is_case_sensitive: bool = False


@dataclass(frozen=True, slots=True)
class ErrorPatterns:
    """All rows of the folder."""

    rows: tuple[ErrorPattern, ...]
    causes: dict[str, CauseRow]
    discriminators: tuple[DiscriminatorRow, ...]
    bounds: tuple[BoundRow, ...]
    boilerplate: tuple[BoilerplateRow, ...]
    releases: tuple[ReleaseBugRow, ...]
    roles: tuple[RoleRow, ...]

    def discriminator(self, one: str, other: str) -> DiscriminatorRow | None:
        """The row for a pair of causes, in whichever order it names them."""
        return next((row for row in self.discriminators if {row.one, row.other} == {one, other}), None)


_OTHERS: dict[str, type[Row]] = {
    "boilerplate": BoilerplateRow,
    "bounds": BoundRow,
    "causes": CauseRow,
    "discriminators": DiscriminatorRow,
    "releases": ReleaseBugRow,
    "roles": RoleRow,
}


@functools.cache
def load_error_patterns(folder: Path | None = None) -> ErrorPatterns:
    """The rows that come with npuenv, or those of a folder of the same files. Raises: BadInput."""
    tables: dict[str, Any] = tables_of(folder or folder_of(__file__) / "error_patterns")
    others = {name: tables.pop(name) for name in _OTHERS}
    causes: tuple[CauseRow, ...] = others.pop("causes")
    own = (row.as_patterns() for row in (*causes, *others["releases"]))
    rows = itertools.chain.from_iterable((*tables.values(), *own))
    return ErrorPatterns(rows=tuple(rows), causes={row.id: row for row in causes}, **others)


def tables_of(folder: Path) -> dict[str, tuple[Row, ...]]:
    """The rows of every file of the folder, by its name. Raises: BadInput."""
    names = sorted(path.name[:-5] for path in folder.iterdir() if path.name.endswith(".toml"))
    return {name: load_table(folder / f"{name}.toml", _OTHERS.get(name, ErrorPattern)) for name in names}
