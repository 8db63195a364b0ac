"""Asks a host for facts under the rules of a level."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from npuenv.core.fact import Evidence, Fact, State, absent, unknown
from npuenv.host.base import NotRecorded
from npuenv.host.builtin import is_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.host.base import Host, Looked, Ran

T = TypeVar("T")
NOT_ASKED = "not asked"  # the command of the evidence of a fact that this level leaves out
USE_LEVEL = 2  # from this level on, cards and the network are used, not only read


def not_asked(level: int) -> Fact[Any]:
    """A fact that this level leaves out; `level` is the first one that asks it."""
    return absent(Evidence(NOT_ASKED, f"needs --level {level}"))


def was_asked(fact: Fact[Any]) -> bool:
    """False for a fact that the level left out."""
    return not (fact.state is State.ABSENT and any(item.command == NOT_ASKED for item in fact.evidence))


@dataclass(frozen=True, slots=True)
class Asker:
    """A host, the level at which it is asked, and what the answers are for."""

    host: Host
    level: int
    python: str  # the interpreter whose packages are judged
    framework: str | None = None
    hashes: bool = False  # compare every installed file's hash, not only its size
    imports: bool = True  # try the installed modules

    def __call__(self, ask: Callable[[Host], Fact[T]]) -> Fact[T]:
        """The fact. What a capture does not hold becomes unknown; what needs a program at level 0 is not asked."""
        try:
            return ask(self.host if self.level else _FilesOnly(self.host))
        except _NeedsProgram:
            return not_asked(1)
        except NotRecorded as error:
            return unknown(Evidence(str(error), "not in the capture"))
        except Exception as error:  # a reader is our own code: its bug must not cost the other facts
            place = traceback.extract_tb(error.__traceback__)[-1]
            line = f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})"
            return unknown(Evidence(f"npuenv: {Path(place.filename).name}", line))

    def at(self, level: int, ask: Callable[[Host], Fact[T]]) -> Fact[T]:
        """The fact, from this level on."""
        return self(ask) if self.level >= level else not_asked(level)

    def timeout(self, short_s: float, long_s: float) -> float:
        """Seconds to wait for a program: `short_s` at level 1, which promises an answer soon, else `long_s`."""
        return short_s if self.level < USE_LEVEL else long_s


class _NeedsProgram(Exception):
    """A program would have to run, at a level that runs none."""


class _FilesOnly:
    """A host at level 0: it reads, and runs nothing but what needs no process."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def name(self) -> str:
        return self._host.name

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        if not is_answered(argv):
            raise _NeedsProgram(argv[0])
        return self._host.run(argv, timeout_s=timeout_s, env=env)

    def look(self, path: str) -> Looked:
        return self._host.look(path)

    def environ(self) -> Mapping[str, str]:
        return self._host.environ()
