"""Writes local files: complete files, journal lines, and locks on a folder; hashes them. Reading is in
`npuenv.host.local`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator


_CHUNK = 1 << 20


def write_whole(path: str, text: str, mode: int = 0o644) -> None:
    """Writes a file atomically through a temporary name beside it: readers see the old text or the new. Raises:
    OSError.

    This also holds after a loss of power; once it has returned it is the new text.
    """
    location = Path(path)
    location.parent.mkdir(parents=True, exist_ok=True)
    temporary = location.with_name(f".{location.name}.new")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(location)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)  # nothing partial stays on a full disk
        raise
    settle(location.parent)


def cannot_save(path: Path | str, error: OSError) -> BadInput:
    """The error for a file that the user named and that cannot be written."""
    args = {"path": str(path), "reason": error.strerror or str(error)}
    return BadInput(Message("cli.cannot-save", args), Message("cli.cannot-save-hint"))


def settle(folder: Path) -> None:
    """Waits until the names in a folder are on the disk, if its file system supports that. Raises: OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems return these for a folder
            raise
    finally:
        os.close(descriptor)


def append_line(path: str, line: str) -> None:
    """Appends a line to a file. Raises: OSError."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def claim(path: str) -> int | None:
    """Locks a file for as long as the descriptor is open; None if another process holds the lock. Raises: OSError.

    A program that inherits the descriptor holds the lock too, also after its parent has ended.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


@contextlib.contextmanager
def claimed(path: str) -> Iterator[bool]:
    """Holds a lock on a file during the block; yields False if another process holds it. Raises: OSError."""
    descriptor = claim(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def sha256_of(path: Path) -> str:
    """The sha256 of a file's content, in hexadecimal digits. Raises: OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()
