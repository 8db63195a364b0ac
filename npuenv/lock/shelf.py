"""Where locks lie: those that npuenv ships, and those that were made on this machine. Start from `find_lock`."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import npuenv
from npuenv.errors import BadInput
from npuenv.lock.file import Lock, read_lock, write_lock
from npuenv.messages import Message

if TYPE_CHECKING:
    from npuenv.resolve.types import Stack


def shipped_folder() -> Path:
    """The locks that come with npuenv: beside the package in a checkout, in the data folder of an installed wheel."""
    checkout = Path(npuenv.__file__).parent.parent / "lockfiles"
    return checkout if checkout.is_dir() else Path(sysconfig.get_path("data")) / "share" / "npuenv" / "lockfiles"


def find_lock(stack: Stack, own: Path) -> Lock | None:
    """The lock of a stack: one made here (in `own`) before the shipped one; None when neither has the stack's pins.

    A lock with other versions than the stack pins is passed over: it belongs to another request.
    """
    name = f"{stack.name}.{stack.platform.tag}.toml"
    for folder in (own, shipped_folder()):
        if (folder / name).is_file():
            lock = read_lock(folder / name)
            if fits_stack(lock, stack):
                return lock
    return None


def fits_stack(lock: Lock, stack: Stack) -> bool:
    """True when the lock holds every Python pin of the stack in the pinned version."""
    built = {source.name.lower() for source in stack.git_sources}
    return all(
        (package := lock.package(pin.name)) is not None and package.version == pin.version
        for pin in stack.pins
        if pin.is_python and pin.name not in built
    )


def put_lock(lock: Lock, folder: Path) -> Path:
    """Writes a lock into a folder, replacing an older one as a whole. Raises BadInput when that is not possible."""
    path = folder / lock.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(write_lock(lock), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        args = {"path": str(path), "why": error.strerror or str(error)}
        raise BadInput(Message("lock.unwritable", args), Message("lock.other-folder")) from error
    return path
