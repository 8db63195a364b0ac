"""Writing here: whole files, lines of a journal, and a claim on a folder. Reading is in `npuenv.host.local`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def write_whole(path: str, text: str, mode: int = 0o644) -> None:
    """Writes a file through a temporary name beside it: a reader sees the old text or the new. Raises OSError.

    So it is after a loss of power too, and once this has returned it is the new one.
    """
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{place.name}.new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(mode)
    temporary.replace(place)
    settle(place.parent)


def settle(folder: Path) -> None:
    """Waits until the names in a folder are on the disk, where its file system can say so. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # what some network file systems answer for a folder
            raise
    finally:
        os.close(descriptor)


def append_line(path: str, line: str) -> None:
    """Adds a line to a file. Raises OSError."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def claim(path: str) -> int | None:
    """A lock on a file, held as long as the descriptor is open; None when another process holds it. Raises OSError.

    A program that inherits the descriptor holds the lock too, also when the one that started it is gone.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def holders(path: str) -> tuple[int, ...]:
    """The other processes that have a file open, as far as we may see them; they hold the claim on it."""
    try:
        wanted = os.stat(path)
    except OSError:
        return ()
    return tuple(pid for pid in _others() if any(os.path.samestat(found, wanted) for found in _opened(pid)))


def _others() -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid())
    except OSError:
        return []


def _opened(pid: int) -> Iterator[os.stat_result]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # it has ended, or is another user's
        return
    for name in names:
        with contextlib.suppress(OSError):  # closed meanwhile
            yield os.stat(f"{folder}/{name}")


@contextlib.contextmanager
def claimed(path: str) -> Iterator[bool]:
    """Holds a lock on a file while the block runs; gives False when another process holds it. Raises OSError."""
    descriptor = claim(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)
