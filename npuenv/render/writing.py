"""Rendered files on disk: those alike are left, others are replaced on request only; other files stay."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MODE, _SCRIPT_MODE = 0o644, 0o755


class WrittenFiles(NamedTuple):
    """The names of files: what was written, and what was left there by an earlier run on several nodes."""

    files: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def write_files(
    files: Mapping[str, str | bytes], folder: Path, *, is_forced: bool = False, stale: Sequence[str] = ()
) -> tuple[str, ...]:
    """The names of the files that were written; programs are executable.

    `stale` are files of an earlier rendering, which go. All are looked at, and the new ones are written beside their
    places, before the first is replaced: a failure until then leaves the old ones.

    Raises BadInput for files that differ and stale ones unless `is_forced`, for a link or folder in the place of one,
    and where writing is not allowed.
    """
    changed = changed_files(files, folder, is_forced=is_forced, stale=stale)
    with _as_bad_input(folder):
        fresh: dict[str, Path] = {}
        try:
            for name, content in changed.items():
                fresh[name] = _written_beside(folder / name, content.encode() if isinstance(content, str) else content)
            for name, path in fresh.items():
                path.replace(folder / name)
        finally:
            for path in fresh.values():
                path.unlink(missing_ok=True)
        for name in stale:
            (folder / name).unlink()
    return tuple(changed)


def changed_files(
    files: Mapping[str, str | bytes], folder: Path, *, is_forced: bool = False, stale: Sequence[str] = ()
) -> dict[str, str | bytes]:
    """Those that `write_files` would write. Raises BadInput as it does, and writes nothing."""
    with _as_bad_input(folder):
        changed = {name: content for name, content in files.items() if not _is_same(folder / name, content)}
        there = [name for name in (*changed, *stale) if os.path.lexists(folder / name)]
        for path in (folder / name for name in there):
            if path.is_symlink() or not path.is_file():
                args: dict[str, object] = {"path": str(path)}
                raise BadInput(Message("render.not-a-file", args), Message("render.not-a-file-hint"))
    if there and not is_forced:
        args = {"path": str(folder), "files": tuple(there)}
        raise BadInput(Message("render.exists", args), Message("render.exists-hint"))
    return changed


@contextmanager
def _as_bad_input(folder: Path) -> Iterator[None]:
    """What the system refuses as a sentence."""
    try:
        yield
    except OSError as error:
        args = {"path": str(error.filename2 or error.filename or folder), "reason": error.strerror or str(error)}
        raise BadInput(Message("render.cannot-write", args), Message("render.cannot-write-hint")) from error


def _is_same(path: Path, content: str | bytes) -> bool:
    return path.is_file() and path.read_bytes() == (content.encode() if isinstance(content, str) else content)


def _written_beside(path: Path, content: bytes) -> Path:
    """The file under another name in the folder where it will stand, which is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".npuenv-", dir=path.parent)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        beside.chmod(_SCRIPT_MODE if content.startswith(b"#!") else _MODE)
    except BaseException:
        beside.unlink()
        raise
    return beside
