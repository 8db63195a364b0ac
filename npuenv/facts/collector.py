"""How a fact is declared, and the rules under which it is read: levels, captures, readers that fail.

A fact is a field of the class beside its reader, `memory: Fact[Memory] = fact(memory)`; `collect` joins these classes.
"""

from __future__ import annotations

import dataclasses
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from npuenv.core.fact import Evidence, Fact, State, absent, unknown
from npuenv.host.base import NotRecorded
from npuenv.host.builtin import is_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.host.base import Host, Looked, Ran

T = TypeVar("T")
NOT_ASKED = "not asked"  # the command of the evidence of a fact that this level leaves out
USE_LEVEL = 2  # from this level on, cards and the network are used, not only read


def fact(reader: Callable[..., Fact[Any]], *needs: str, level: int = 0) -> Any:
    """Declares a fact as a field of a `FactGroup`.

    `reader` is called from `level` on, with the collector (which is also a host) and the facts that `needs` names, such
    as "npu.smi". One that runs a program need not say so: level 0 runs none.
    """
    return dataclasses.field(metadata={"reader": reader, "level": level, "needs": needs})


class FactGroup:
    """Facts by name, a dataclass: it takes the fields of its last base first, so they are listed in that order."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # so that type checkers know it for one

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **facts: Fact[Any]) -> None:
        self.__dict__.update(facts)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # values can be dictionaries


def not_asked(level: int) -> Fact[Any]:
    """A fact that this level leaves out; `level` is the first one that asks it."""
    return absent(Evidence(NOT_ASKED, f"needs --level {level}"))


def was_asked(fact: Fact[Any]) -> bool:
    """False for a fact that the level left out."""
    return not (fact.state is State.ABSENT and any(item.command == NOT_ASKED for item in fact.evidence))


class Collector:
    """A host as readers see it, with what else they may need: level, interpreter, and the other facts."""

    def __init__(
        self,
        host: Host,
        level: int,
        python: str,
        *,
        framework: str | None = None,
        hashes: bool = False,
        imports: bool = True,
        groups: Mapping[str, Any] | None = None,
    ) -> None:
        self.level = level
        self.python = python  # the interpreter whose packages are judged
        self.framework = framework
        self.hashes = hashes  # compare every installed file's hash, not only its size
        self.imports = imports  # try the installed modules
        self._host = host
        self._groups = groups or {}
        self._found: dict[str, Fact[Any]] = {}
        self._shared: dict[tuple[Any, ...], Fact[Any]] = {}

    def get(self, path: str) -> Fact[Any]:
        """A fact by its path, such as "npu.smi". It is read once; one of a group that is not wanted is not asked."""
        group, _, name = path.partition(".")
        if group not in self._groups:
            return not_asked(1)
        if path not in self._found:
            declared = self._groups[group].__dataclass_fields__[name].metadata
            if self.level < declared["level"]:
                self._found[path] = not_asked(declared["level"])
            else:
                self._found[path] = self.read(declared["reader"], *map(self.get, declared["needs"]))
        return self._found[path]

    def read(self, reader: Callable[..., Fact[T]], *given: Any) -> Fact[T]:
        """A reader's fact. What a capture does not hold is unknown; what needs a program at level 0 is not asked."""
        try:
            return reader(self, *given)
        except _NeedsProgram:
            return not_asked(1)
        except NotRecorded as error:
            return unknown(Evidence(str(error), "not in the capture"))
        except Exception as error:  # a reader is our own code: its bug must not cost the other facts
            place = traceback.extract_tb(error.__traceback__)[-1]
            line = f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})"
            return unknown(Evidence(f"npuenv: {Path(place.filename).name}", line))

    def shared(self, reader: Callable[..., Fact[T]], *given: Any) -> Fact[T]:
        """An answer of which several facts are parts: it is read once."""
        key = (reader, *given)
        if key not in self._shared:
            self._shared[key] = self.read(reader, *given)
        return self._shared[key]

    def timeout(self, short_s: float, long_s: float) -> float:
        """Seconds to wait for a program: `short_s` at level 1, which promises an answer soon, else `long_s`."""
        return short_s if self.level < USE_LEVEL else long_s

    @property
    def name(self) -> str:
        return self._host.name

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        if self.level < 1 and not is_answered(argv):
            raise _NeedsProgram(argv[0])
        return self._host.run(argv, timeout_s=timeout_s, env=env)

    def look(self, path: str) -> Looked:
        return self._host.look(path)

    def environ(self) -> Mapping[str, str]:
        return self._host.environ()


class _NeedsProgram(Exception):
    """A program would have to run, at a level that runs none."""
