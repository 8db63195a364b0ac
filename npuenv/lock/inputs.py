"""The inputs of the resolver for a stack, line by line, each with its origin.

Does not run uv or read the machine: the same stack gives the same inputs everywhere. `Inputs.digest` shows whether an
existing lock still matches them.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import load_toml
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.core.versions import accepts, exact, normalised, python_version, requirement_name, requirement_spec
from npuenv.lock.file import Proof
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.resolve.types import GitSource, Override, Pin, Platform, Reason, Stack

REQUIRE, CONSTRAIN, REPLACE, EXCLUDE, NEWEST = "require", "constrain", "replace", "exclude", "newest"


@dataclass(frozen=True, slots=True)
class InputLine:
    """One input of the resolver, and its origin."""

    kind: str  # require | constrain | replace | exclude | newest
    text: str  # a requirement; for exclude a name; for newest the last day, YYYY-MM-DD
    source: str
    is_dependency: bool = False  # required by a built component, not by the recipe itself

    @property
    def name(self) -> str:
        """The normalised name of the package; "" for the date limit."""
        return "" if self.kind == NEWEST else requirement_name(self.text)

    @property
    def proof(self) -> Proof:
        """The line as one member of a clashing set."""
        return Proof(f"published<={self.text}" if self.kind == NEWEST else self.text, self.source)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that decides a resolution except the content of the indexes. The order of the lines matters and is
    preserved.
    """

    lines: tuple[InputLine, ...]
    platform: Platform
    any_age: tuple[str, ...] = ()  # names without date limit: their version is chosen, not resolved
    labels: tuple[tuple[str, str], ...] = ()  # name, label of the index it comes from

    def of(self, kind: str) -> list[str]:
        """The texts of one kind, each once."""
        return list(dict.fromkeys(line.text for line in self.lines if line.kind == kind))

    @property
    def newest(self) -> str:
        """The last day whose packages count; "" for no limit."""
        return next(iter(self.of(NEWEST)), "")

    @property
    def first_day_out(self) -> str:
        """The day after the last one that counts. Raises: BadInput if it is not a date."""
        try:
            return (datetime.date.fromisoformat(self.newest) + datetime.timedelta(days=1)).isoformat()
        except ValueError as error:
            raise BadInput(Message("locking.no-date", {"date": self.newest})) from error

    @property
    def digest(self) -> str:
        """sha256 of the canonical text: equal for stacks with the same Python layer, without addresses or paths."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def canonical(self) -> str:
        """One statement a line: what is required, by the recipe or by a component, without the exact source."""
        platform = self.platform
        statements = ["inputs 1", f"platform {platform.arch} {platform.python} {platform.glibc}"]
        statements += [f"any-age {name}" for name in sorted(self.any_age)]
        statements += [f"index {name} {label}" for name, label in sorted(self.labels)]
        for kind in (NEWEST, REQUIRE, CONSTRAIN, REPLACE, EXCLUDE):
            lines = [line for line in self.lines if line.kind == kind]
            statements += dict.fromkeys(f"{kind}{' built' if line.is_dependency else ''} {line.text}" for line in lines)
        versions = dict(text.split("==", 1) for text in self.of(REQUIRE) if "==" in text)
        for name, _ in sorted(self.labels):
            requires = stand_in_requires(name, versions.get(name, ""))
            statements.append(f"stand-in {name} {'?' if requires is None else ', '.join(requires)}")
            statements += [f"ignores {name} {text}" for text in ignored_requirements(name, versions.get(name, ""))]
        return "\n".join(statements) + "\n"


def inputs_of(stack: Stack) -> Inputs:
    """The inputs of a stack. Raises: BadInput if it replaces a requirement on numpy, which may be bounded but never
    replaced.

    As a replacement `numpy<2` would silently keep packages that need numpy 2 beside numpy 1.
    """
    for override in stack.overrides:
        if override.does == REPLACE and requirement_name(override.requirement) == "numpy":
            args = {"stack": stack.name, "requirement": override.requirement}
            raise BadInput(Message("locking.numpy-replaced", args), Message("locking.numpy-constrain"))
    built: set[str] = {normalised(source.name) for source in stack.git_sources}
    pins = [pin for pin in stack.pins if pin.is_python and pin.name not in built]
    lines = (*_required(stack, pins, built), *_limits(stack, pins), *_overrides(stack, pins))
    day = (InputLine(NEWEST, stack.date, stack.name),) if stack.date else ()
    return Inputs(
        lines=tuple(dict.fromkeys((*day, *lines))),
        platform=stack.platform,
        any_age=tuple(sorted(set(_chosen(stack, pins)))),
        labels=tuple((pin.name, pin.index) for pin in pins if pin.index),
    )


def stand_in_requires(name: str, version: str) -> tuple[str, ...] | None:
    """The requirements of the empty stand-in wheel for a version whose index is unreachable; None: unknown."""
    public = version.partition("+")[0]
    for row in _table("stand_ins.toml")["stand_in"]:
        if row["name"] == name and public and accepts(row["versions"], public):
            return tuple(text.replace("{release}", python_version(public).base_version) for text in row["requires"])
    return None


def ignored_requirements(name: str, version: str) -> tuple[str, ...]:
    """Requirements of a version that no published stack installs: the package is installed last, without them."""
    row = load_matrix().triton_ascend_row(version) if name == "triton-ascend" else None
    return row.requires if row is not None else ()


def _required(stack: Stack, pins: list[Pin], built: set[str]) -> Iterator[InputLine]:
    for pin in pins:
        yield InputLine(REQUIRE, f"{pin.name}=={pin.version}", _origin(pin.because, stack))
    recipe = f"{stack.name} ({stack.sources[0]})" if stack.sources else stack.name
    for text in stack.requirements:
        yield InputLine(REQUIRE, text, recipe)
    pinned = {pin.name for pin in stack.pins if pin.is_python}
    excluded = {requirement_name(override.requirement) for override in stack.overrides if override.does == EXCLUDE}
    for source in stack.git_sources:
        for text in source.requires:
            name = requirement_name(text)
            if name not in excluded | built:
                yield _required_by(source, text, is_pinned=name in pinned)


def _required_by(source: GitSource, text: str, *, is_pinned: bool) -> InputLine:
    """A requirement of a built component. If the stack pins the package, only the extras are kept."""
    version = source.ref.removeprefix("v")
    needed = _without_bounds(text) if is_pinned else text
    return InputLine(REQUIRE, needed, f"{source.name} {version} (Requires-Dist)", is_dependency=True)


def _without_bounds(text: str) -> str:
    """The name of a requirement as written, with its extras. Example: "Ray[tune]>=2" -> "Ray[tune]"."""
    name, _, rest = re.split(r"[\s<>=!~;@(]", text.replace(", ", ","), maxsplit=1)[0].partition("[")
    extras = sorted(filter(None, rest.rstrip("]").split(",")))
    return f"{name}[{','.join(extras)}]" if extras else name


def _limits(stack: Stack, pins: list[Pin]) -> Iterator[InputLine]:
    """Bounds that no package declares. A floor for a package that the stack pins is left out."""
    pinned = {pin.name for pin in pins}
    # Floors are for sets without date limit: with one, no such release is reached (measured on every published stack).
    for row in () if stack.date else _table("floors.toml")["floor"]:
        if requirement_name(row["requirement"]) not in pinned:
            yield InputLine(CONSTRAIN, row["requirement"], row["source"])
    for override in stack.overrides:
        if override.does == CONSTRAIN:
            yield InputLine(CONSTRAIN, override.requirement, _override_origin(override, stack))


def _overrides(stack: Stack, pins: list[Pin]) -> Iterator[InputLine]:
    for override in stack.overrides:
        if override.does != CONSTRAIN:
            yield InputLine(override.does, override.requirement, _override_origin(override, stack))
    for pin in pins:
        # A component may require another version than the stack pins (vllm-ascend: torch==2.8.0, not +cpu).
        if "+" in pin.version:
            yield InputLine(REPLACE, f"{pin.name}=={pin.version}", _origin(pin.because, stack))


def _chosen(stack: Stack, pins: list[Pin]) -> Iterator[str]:
    """Names whose exact version the stack states: the date limit does not apply to them."""
    yield from (pin.name for pin in pins)
    stated = [*stack.requirements, *(each.requirement for each in stack.overrides if each.does == REPLACE)]
    yield from (requirement_name(text) for text in stated if exact(requirement_spec(text)))


def _origin(reason: Reason, stack: Stack) -> str:
    return "; ".join(reason.sources or reason.rules) or stack.name


def _override_origin(override: Override, stack: Stack) -> str:
    return f"{override.does} {override.package} ({_origin(override.because, stack)})"


@functools.cache
def _table(name: str) -> dict[str, Any]:
    return load_toml(Path(__file__).with_name(name), is_ours=True)
