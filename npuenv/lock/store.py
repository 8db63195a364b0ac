"""Folders of locks, shipped and made on this machine, a lock as one generation of cards takes it, and `LockedRequest`.

Locks that several generations share build some components from source, which fits all of them; `for_chip` takes wheels
that are built for the cards instead.
"""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import npuenv
from npuenv.core import versions
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message
from npuenv.host.writing import write_whole
from npuenv.lock.file import COMPLETE, IMPOSSIBLE, PARTIAL, STACK, Lock, LockedPackage, read_lock, write_lock
from npuenv.lock.inputs import inputs_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from npuenv.lock.uv import Resolver
    from npuenv.matrix.rows import ChipWheel
    from npuenv.resolve.types import Request, Stack


def shipped_folder() -> Path:
    """The locks that come with npuenv: beside the package in a checkout, in the data folder of an installed wheel."""
    checkout = Path(npuenv.__file__).parent.parent / "lockfiles"
    return checkout if checkout.is_dir() else Path(sysconfig.get_path("data")) / "share" / "npuenv" / "lockfiles"


def find_lock(stack: Stack, local_folder: Path) -> Lock | None:
    """The lock of a stack: one in `local_folder` before the shipped one, a complete one before a partial one; None if
    neither matches the stack.
    """
    name = f"{stack.name}.{stack.platform.tag}.toml"
    lacking = None
    for folder in (local_folder, shipped_folder()):
        if (folder / name).is_file():
            lock = read_lock(folder / name)
            if answers(lock, stack):
                if lock.is_complete:
                    return lock
                lacking = lacking or lock
    return lacking


def answers(lock: Lock, stack: Stack) -> bool:
    """Whether a lock belongs to the stack: same name and platform, its pins, and the same inputs.

    A lock with other pins or other inputs belongs to another request.
    """
    is_named = (lock.stack, lock.platform) == (stack.name, stack.platform.tag)
    return is_named and fits_stack(lock, stack) and lock.inputs in ("", inputs_of(stack).digest)


def as_locked(stack: Stack, lock: Lock) -> Stack:
    """The stack with each built component as the lock has it: at its revision of the repository, or as a wheel."""
    locked = {row.name: row for row in lock.sources}
    wheels = {source.name for source in stack.git_sources if lock.package(source.name)}
    because = Message("plan.why-chip-wheel", {"name": ", ".join(sorted(wheels)), "hardware": stack.platform.hardware})
    order = (
        replace(step, does="pip", why=because) if step.does == "git" and wheels.issuperset(step.what) else step
        for step in stack.order
    )
    sources = tuple(
        replace(
            source,
            repo=row.repo,
            ref=row.ref,
            is_moving=row.is_moving,
            how=row.how,
            commit=source.commit if row.ref == source.ref else "",
        )
        if (row := locked.get(source.name))
        else source
        for source in stack.git_sources
        if source.name not in wheels
    )
    platform = replace(stack.platform, glibc=lock.platform.rpartition("glibc")[2])
    return replace(stack, platform=platform, git_sources=sources, order=tuple(order))


def fits_stack(lock: Lock, stack: Stack) -> bool:
    """Whether the lock holds every Python pin of the stack in the pinned version, and wheels only for its cards."""
    built = {source.name.lower(): source.wheel for source in stack.git_sources}
    for name, wheel in built.items():
        if (found := lock.package(name)) is not None and (wheel is None or found.sha256 != (wheel.sha256,)):
            return False
    return all(
        (package := lock.package(pin.name)) is not None and package.version == pin.version
        for pin in stack.pins
        if pin.is_python and pin.name not in built
    )


def shelf_locks(folder: Path) -> tuple[Lock, ...]:
    """Every lock in a folder, by file name. Raises: BadInput for the first invalid one."""
    return tuple(read_lock(path) for path in sorted(folder.glob("*.toml")))


def locks_named(names: Sequence[str], folders: Sequence[Path]) -> tuple[Lock, ...]:
    """The locks named by files or stack names; without names, all of the last folder.

    A stack name means its locks for all platforms, each from the first folder that has it. Raises: BadInput for a name
    that is neither, with the stacks that exist.
    """
    if not names:
        return shelf_locks(folders[-1])
    found: dict[str, Lock] = {}
    shelf = {path.name: path for folder in reversed(folders) for path in sorted(folder.glob("*.toml"))}
    stacks = {name: _stack_of(name) for name in shelf}
    for name in names:
        path = Path(name)
        is_file = path.exists() or path.suffix == ".toml"
        chosen = [path] if is_file else [path for file, path in shelf.items() if stacks[file] == name]
        if not chosen:
            args = {"name": name, "known": tuple(sorted(set(stacks.values())))}
            raise BadInput(Message("lock.no-such-lock", args))
        found |= {str(item): read_lock(item) for item in chosen}
    return tuple(found.values())


def put_lock(lock: Lock, folder: Path) -> Path:
    """Writes a lock into a folder and replaces an older one atomically. Raises: BadInput if that fails."""
    return put_text(write_lock(lock), folder / lock.file_name)


def put_text(text: str, path: Path) -> Path:
    """Writes a file atomically; creates its folder. Raises: BadInput if that fails."""
    try:
        write_whole(str(path), text)
    except OSError as error:
        args = {"path": str(path), "why": error.strerror or str(error)}
        raise BadInput(Message("lock.unwritable", args), Message("lock.other-folder")) from error
    return path


def _stack_of(file_name: str) -> str:
    """`verl-0.7.1-cann8.5.0.aarch64-cp311-glibc2.28.toml` -> `verl-0.7.1-cann8.5.0`."""
    return re.sub(r"\.[a-z0-9_]+-cp3\d+-glibc\d+\.\d+\.toml$", "", file_name)


def for_chip(stack: Stack, lock: Lock, given: Collection[str] = ()) -> tuple[Stack, Lock]:
    """The stack and its lock with each wheel for the stack's cards in the place of a build; unchanged without one.

    `given`: sources that the user supplies; they are built. A wheel for a newer C library raises that of the lock.
    """
    if lock.status == IMPOSSIBLE:
        return stack, lock
    built = {source.name for source in lock.sources} - {versions.normalised(name) for name in given}
    wheels = [each.wheel for each in stack.git_sources if each.wheel and each.wheel.sha256 and each.name in built]
    if wheels:
        names = {wheel.name for wheel in wheels}
        glibc = max((stack.platform.glibc, *(wheel.glibc for wheel in wheels)), key=_minor)
        lock = replace(
            lock,
            platform=replace(stack.platform, glibc=glibc).tag,
            packages=tuple(sorted((*lock.packages, *map(_locked, wheels)), key=lambda package: package.name)),
            sources=tuple(source for source in lock.sources if source.name not in names),
        )
    is_for_chip = any(lock.package(source.name) for source in stack.git_sources)
    return as_locked(stack, lock) if is_for_chip else stack, lock


def _locked(wheel: ChipWheel) -> LockedPackage:
    index = None if wheel.index == "default" else wheel.index
    return LockedPackage(wheel.name, wheel.version, (wheel.sha256,), index, (STACK,))


def _minor(glibc: str) -> int:
    return int(glibc.partition(".")[2])


_EXIT_CODES = {COMPLETE: ExitCode.FINE, PARTIAL: ExitCode.UNKNOWN, IMPOSSIBLE: ExitCode.NOTHING_FITS}


@dataclass(frozen=True, slots=True)
class LockedRequest:
    """A request, what answers it, and what locks and installs on this machine."""

    stack: Stack
    lock: Lock
    resolver: Resolver
    request: Request

    @property
    def exit_code(self) -> ExitCode:
        """That of `npuenv lock`: UNKNOWN for a partial lock, NOTHING_FITS for an impossible one."""
        return _EXIT_CODES[self.lock.status]
