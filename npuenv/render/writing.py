"""Rendered files on disk: those alike are left, others are replaced on request only; other files stay."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MODE, _SCRIPT_MODE = 0o644, 0o755


def write_files(
    files: Mapping[str, str | bytes], folder: Path, *, is_forced: bool = False, stale: Sequence[str] = ()
) -> tuple[str, ...]:
    """The names of the files that were written; programs are executable.

    `stale` are files of an earlier rendering, which go. All are looked at, and the new ones written to a folder beside
    them, before the first is replaced: a failure until then leaves the old ones.

    Raises BadInput for files that differ and stale ones unless `is_forced`, for a link or folder in the place of one,
    and where writing is not allowed.
    """
    changed = changed_files(files, folder, is_forced=is_forced, stale=stale)
    with _as_bad_input(folder):
        if changed:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".npuenv-", dir=folder) as staging:
                for name, content in changed.items():
                    _write(Path(staging) / name, content.encode() if isinstance(content, str) else content)
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                for name in changed:
                    (Path(staging) / name).replace(folder / name)
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
        args = {"path": str(error.filename or folder), "reason": error.strerror or str(error)}
        raise BadInput(Message("render.cannot-write", args), Message("render.cannot-write-hint")) from error


def _is_same(path: Path, content: str | bytes) -> bool:
    return path.is_file() and path.read_bytes() == (content.encode() if isinstance(content, str) else content)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(_SCRIPT_MODE if content.startswith(b"#!") else _MODE)
