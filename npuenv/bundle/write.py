"""Writes a folder of files as a reproducible tar archive."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.bundle.fetch import failed_by_disk
from npuenv.core.errors import StepFailed
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator


TIME = 315_532_800  # 1980-01-01: the earliest that zip knows too; a clock would change the bytes
_MODE, _PROGRAM_MODE = 0o644, 0o755


def settle(folder: Path, programs: tuple[str, ...]) -> None:
    """Sets one time and plain permissions for everything below a folder; `programs` are paths that may be executed."""
    for path in folder.rglob("*"):
        is_program = path.is_dir() or path.relative_to(folder).as_posix() in programs
        path.chmod(_PROGRAM_MODE if is_program else _MODE)
        os.utime(path, (TIME, TIME))


def write_tar(
    folder: Path,
    out: Path,
    *,
    top: str,
    first: tuple[str, ...] = (),
    skip: frozenset[str] = frozenset(),
) -> None:
    """The files and links below a folder as an archive: sorted, `first` before all others, without traces of this
    machine.

    `top`: their folder inside the archive. `skip`: names that are left out at any depth. The archive appears under its
    name when it is complete. Raises: StepFailed if the disk is full, a link leads out of the folder, or an entry is
    neither a file, a link nor a folder.
    """
    part = out.with_name(f"{out.name}.part")
    try:
        with tarfile.open(part, "w", format=tarfile.GNU_FORMAT) as archive:
            for path, name in _ordered(folder, first, skip):
                info = _member(path, f"{top}/{name}", folder)
                if info.issym():
                    archive.addfile(info)
                else:
                    with path.open("rb") as content:
                        archive.addfile(info, content)
        part.replace(out)
    except OSError as error:
        raise failed_by_disk(error, out) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _ordered(folder: Path, first: tuple[str, ...], skip: frozenset[str]) -> Iterator[tuple[Path, str]]:
    found: dict[str, Path] = {}
    for location, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in skip]
        links = [name for name in folders if os.path.islink(os.path.join(location, name))]
        for name in (*files, *links):
            if name not in skip:
                path = Path(location, name)
                found[path.relative_to(folder).as_posix()] = path
    ordered = [name for name in first if name in found] + [name for name in sorted(found) if name not in first]
    return ((found[name], name) for name in ordered)


def _member(path: Path, name: str, folder: Path) -> tarfile.TarInfo:
    looked = path.lstat()
    info = tarfile.TarInfo(name)  # without owner
    info.mode, info.mtime = 0o777, TIME
    if stat.S_ISLNK(looked.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        inside = os.path.relpath(os.path.normpath(path.parent / info.linkname), folder)
        if os.path.isabs(info.linkname) or inside.startswith(".."):
            args = {"path": name, "target": info.linkname}
            raise StepFailed(Message("bundle.link-leads-out", args), Message("bundle.link-hint"))
    elif stat.S_ISREG(looked.st_mode):
        info.size, info.mode = looked.st_size, _PROGRAM_MODE if looked.st_mode & stat.S_IXUSR else _MODE
    else:
        raise StepFailed(Message("bundle.odd-file", {"path": name}), Message("bundle.link-hint"))
    return info
