"""Which published Dockerfile an image corresponds to, and every difference in meaning.

Compared are what the two put into an image, not how: base, CANN, Python, system packages, packages, sources, the order
of installation, settings and edits of installed files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from packaging.utils import canonicalize_name

from npuenv.core import versions
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.lock.file import Lock
    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Upstream
    from npuenv.resolve.types import Stack

Kind = Literal["base", "cann", "python", "system-package", "package", "source", "order", "setting", "patch"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that the published image has otherwise. None: that side does not have it, or does not say."""

    kind: Kind
    name: str
    theirs: str | None
    ours: str | None

    @property
    def says(self) -> Message:
        side = "only-ours" if self.theirs is None else "only-theirs" if self.ours is None else "differs"
        args = {"name": self.name, "theirs": self.theirs or "", "ours": self.ours or ""}
        return Message(f"render.upstream-{self.kind}-{side}", args)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A stack beside one published Dockerfile. `row` is None where none corresponds; then nothing differs."""

    stack: str
    row: Upstream | None
    differences: tuple[Difference, ...]

    @property
    def says(self) -> tuple[Message, ...]:
        """The Dockerfile, then each difference."""
        if self.row is None:
            return (Message("render.upstream-none", {"stack": self.stack}),)
        args = {"stack": self.stack, "source": self.row.source, "num": len(self.differences)}
        return (Message("render.upstream-is", args), *(each.says for each in self.differences))


def compare(stack: Stack, matrix: Matrix, lock: Lock | None = None) -> Comparison:
    """The stack as it would be rendered, beside its published Dockerfile.

    The lock, where one is given, answers for packages that the stack itself does not pin. A stack made from a file for
    the same hardware and another operating system is compared with that file; its base differs then.
    """
    row = corresponding(stack, matrix)
    return Comparison(stack.name, row, tuple(_differences(stack, row, matrix, lock)) if row else ())


def corresponding(stack: Stack, matrix: Matrix) -> Upstream | None:
    """The row of the stack's Dockerfile: for its operating system rather than for another."""
    rows = [row for row in matrix.upstream if stack.name in row.stacks and row.hardware == stack.platform.hardware]
    rows.sort(key=lambda row: row.os != stack.platform.os)
    return rows[0] if rows else None


def _differences(stack: Stack, row: Upstream, matrix: Matrix, lock: Lock | None) -> Iterator[Difference]:
    if row.base != stack.image:
        yield Difference("base", "base image", row.base, stack.image)
    cann = stack.pin("cann")
    if cann and versions.cann(cann.version) != versions.cann(row.cann):
        yield Difference("cann", "CANN", row.cann, cann.version)
    if row.python != stack.platform.python:
        yield Difference("python", "Python", row.python, stack.platform.python)
    yield from _of_system(stack, row, matrix)
    yield from _of_packages(stack, row, lock)
    yield from _of_sources(stack, row)
    yield from _of_order(stack, row)
    env = {**stack.env, **_preloads(stack, matrix)}
    for name in sorted({*row.env, *env}):
        if row.env.get(name) != env.get(name):
            yield Difference("setting", name, row.env.get(name), env.get(name))
    for patch in row.patches:
        yield Difference("patch", patch, patch, None)


def _preloads(stack: Stack, matrix: Matrix) -> dict[str, str]:
    found = [each.preload for each in matrix.packages_among(stack.system_packages) if each.preload]
    return {"LD_PRELOAD": f"{' '.join(found)} prepended"} if found else {}


def _of_system(stack: Stack, row: Upstream, matrix: Matrix) -> Iterator[Difference]:
    """Both under the names of the published file's system."""
    theirs, ours = set(row.system_packages), set(stack.system_packages)
    if row.os.startswith("openeuler"):
        ours = set(matrix.dnf_names(stack.system_packages))
    for name in sorted(theirs ^ ours):
        yield Difference("system-package", name, name if name in theirs else None, name if name in ours else None)


def _of_packages(stack: Stack, row: Upstream, lock: Lock | None) -> Iterator[Difference]:
    """A version outside of what theirs takes; a version where theirs takes any; packages of one side alone.

    What theirs gets through requirements of others is not in its row, so only our own pins count as ours alone.
    """
    theirs: dict[str, str] = {canonicalize_name(name): spec for name, spec in row.packages.items()}
    built: set[str] = {
        canonicalize_name(name) for name in (*row.sources, *(source.name for source in stack.git_sources))
    }
    pinned: dict[str, str] = {canonicalize_name(pin.name): pin.version for pin in stack.pins if pin.is_python}
    found = {**({each.name: each.version for each in lock.packages} if lock else {}), **pinned}
    for name in sorted((theirs.keys() | pinned.keys()) - built):
        ours, spec = found.get(name), theirs.get(name)
        if ours is None and lock is None:
            continue
        if ours is None or not spec or not versions.accepts(spec, ours.partition("+")[0]):
            yield Difference("package", name, spec or ("*" if name in theirs else None), f"=={ours}" if ours else None)


def _of_sources(stack: Stack, row: Upstream) -> Iterator[Difference]:
    ours: dict[str, str] = {canonicalize_name(source.name): source.ref for source in stack.git_sources}
    pinned: dict[str, str] = {canonicalize_name(pin.name): f"=={pin.version}" for pin in stack.pins if pin.is_python}
    for name in sorted(row.sources.keys() | ours.keys()):
        theirs, mine = row.sources.get(name), ours.get(name, pinned.get(name))
        if not _is_one_ref(theirs, mine):
            yield Difference("source", name, theirs, mine)


def _is_one_ref(one: str | None, other: str | None) -> bool:
    """A commit may be shortened on either side."""
    if one is None or other is None or min(len(one), len(other)) < 7:
        return one == other
    is_commit = all(letter in "0123456789abcdef" for letter in one + other)
    return one == other or (is_commit and (one.startswith(other) or other.startswith(one)))


def _of_order(stack: Stack, row: Upstream) -> Iterator[Difference]:
    """The components that both install, in two orders; each where it is installed last."""
    ours = _last([name for step in stack.order for name in _named(step.does, step.what)])
    theirs = _last([canonicalize_name(name) if name[0] != "-" else name for name in row.order])
    both = set(ours) & set(theirs)
    one, other = ([name for name in names if name in both] for names in (theirs, ours))
    if one != other:
        yield Difference("order", "order", " > ".join(one), " > ".join(other))


def _named(does: str, what: tuple[str, ...]) -> list[str]:
    if does == "uninstall":
        return ["-triton"] if "triton" in what else []
    return [canonicalize_name(name) for name in what]


def _last(names: list[str]) -> list[str]:
    """Each name once, where it stands last."""
    return list(reversed(dict.fromkeys(reversed(names))))
