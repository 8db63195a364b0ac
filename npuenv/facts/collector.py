"""How a fact is declared and read: levels, captures, readers that fail; what parsers share, such as files as facts.

A fact is a field of the class beside its reader, `memory: Fact[Memory] = fact(memory)`; `collect` joins these classes.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.host import Host, Looked, NotRecorded, PathState, Ran
from npuenv.host.builtin import is_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


S = TypeVar("S")
T = TypeVar("T")
NOT_ASKED = "not asked"  # the command of the evidence of a fact that this level leaves out
_LONGEST = 1000  # characters of a line; patterns may take quadratic time in it
USE_LEVEL = 2  # from this level on, cards and the network are used, not only read
_hints = functools.cache(get_type_hints)


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
    return absent(Evidence(NOT_ASKED, f"needs --level {level}", level))


def was_asked(fact: Fact[Any]) -> bool:
    """False for a fact that the level left out."""
    return not fact.needs_level


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


def made_of(found: Fact[S], parse: Callable[[S], Fact[T] | None]) -> Fact[T]:
    """What `parse` makes of a value, unknown where it gives None; a fact without a value stays as it is."""
    if found.value is None:
        return Fact(found.state, None, found.evidence)
    return parse(found.value) or unknown(*found.evidence)


def of_file(path: str) -> Callable[[Callable[[str], Fact[T] | None]], Callable[[Host], Fact[T]]]:
    """Makes a reader of a file out of one of its text, which gives None for a text that it cannot read."""

    def declare(parse: Callable[[str], Fact[T] | None]) -> Callable[[Host], Fact[T]]:
        return functools.wraps(parse)(lambda host: made_of(file_text(host, path), parse))

    return declare


def file_text(host: Host, path: str) -> Fact[str]:
    """The text of a file; absent where nothing is there, unknown where it cannot be read or is no file."""
    looked = host.look(path)
    is_file = looked.state is PathState.FILE
    return known(looked.text, Evidence(path, first_line(looked.text))) if is_file else not_here(looked)


def not_here(looked: Looked) -> Fact[Any]:
    """What was looked for at a path and is not there: absent where nothing is, else unknown with the reason."""
    if looked.state is PathState.ABSENT:
        return absent(Evidence(looked.path, "absent"))
    return unknown(Evidence(looked.path, looked.error or looked.state.value))


def pairs(text: str, separator: str = "=") -> dict[str, str]:
    """`Key=value` lines as a mapping; other lines are left out. The first of two equal keys counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, mark, value = line.partition(separator)
        if mark and key.strip() and not key.lstrip().startswith("#"):
            found.setdefault(key.strip(), value.strip())
    return found


def line_with(text: str, key: str) -> str:
    """The first line that starts with `key`, for evidence; "" when there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip().startswith(key)), "")


def plain_lines(text: str) -> list[str]:
    """The lines without colour codes and blanks at their ends, cut where they are longer than any the tools print."""
    return [line[:_LONGEST].rstrip("\r\n\t ") for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()]


def why_failed(ran: Ran) -> str:
    """One line that says how a command failed."""
    if ran.timed_out:
        return "timed out"
    lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit {ran.code}"


def first_line(text: str) -> str:
    """The first line that is not blank; "" when there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def from_json(kind: type[T], found: Mapping[str, Any]) -> T:
    """The dataclass or NamedTuple of a JSON object with its fields' names; fields with a default may be missing.

    Raises KeyError, TypeError, AttributeError or ValueError for what a foreign interpreter or capture may hold.
    """
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    names = [name for name, is_required in _fields(kind) if name in found or is_required]  # type: ignore[arg-type]
    return kind(**{name: _value(hints[name], found[name]) for name in names})


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, bool], ...]:
    """The name of each field, and whether it has no default."""
    if issubclass(kind, tuple):
        return tuple((name, name not in kind._field_defaults) for name in kind._fields)
    fields = dataclasses.fields(kind)
    return tuple((item.name, item.default is item.default_factory is dataclasses.MISSING) for item in fields)


def _value(kind: Any, value: Any) -> Any:
    if get_origin(kind) is tuple:
        if isinstance(value, str):
            raise TypeError(value)
        return tuple(_value(get_args(kind)[0], item) for item in value)
    if get_origin(kind) is Mapping:
        return {str(key): _value(get_args(kind)[1], item) for key, item in value.items()}
    has_fields = hasattr(kind, "_fields") or hasattr(kind, "__dataclass_fields__")
    return from_json(kind, value) if has_fields else kind(value)
