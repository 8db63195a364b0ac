"""Rendered files on disk: whole folders, replaced at once and on request only.

Nobody else's files are touched, whatever is asked for.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.render.docker import MARK

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS = re.compile(
    r"Dockerfile|activate\.sh|entrypoint\.sh|healthcheck\.py|npuenv-doctor\.pyz|requirements\.[^/]+\.txt"
)
_MODE = 0o644
_FOLDER_MODE = 0o755


def write_folders(files: Mapping[str, str | bytes], parent: Path, *, is_forced: bool = False) -> tuple[Path, ...]:
    """The folders that were written or replaced below `parent`; those that hold the same texts already are left alone.

    `files` are as `render_docker` gives them, with bytes for what is no text. All folders are looked at before the
    first is written. A folder is made beside its place and renamed, so that a reader never sees half of it.

    Raises BadInput for a folder with content that was not rendered here, for one that differs unless `is_forced`, and
    where writing is not allowed.
    """
    folders: dict[str, dict[str, bytes]] = {}
    for path, content in files.items():
        folder, name = _split(path)
        folders.setdefault(folder, {})[name] = content.encode() if isinstance(content, str) else content
    try:
        wanted = {parent / folder: texts for folder, texts in folders.items()}
        changed = {place: texts for place, texts in wanted.items() if not _is_same(place, texts)}
        for place, texts in changed.items():
            _refuse_foreign(place)
            if not is_forced:
                _refuse_different(place, texts)
        for place, texts in changed.items():
            _replace(place, texts)
    except OSError as error:
        args = {"path": str(error.filename or parent), "reason": error.strerror or str(error)}
        raise BadInput(Message("render.cannot-write", args), Message("render.cannot-write-hint")) from error
    return tuple(changed)


def _split(path: str) -> tuple[str, str]:
    """The folder and the file of a path of exactly two parts. Raises BadInput for one that leads elsewhere."""
    parts = PurePosixPath(path).parts
    if len(parts) != 2 or ".." in parts or "/" in parts:
        raise BadInput(Message("render.outside-folder", {"path": path}), Message("render.outside-folder-hint"))
    return parts[0], parts[1]


def _is_same(place: Path, texts: Mapping[str, bytes]) -> bool:
    if not place.is_dir() or {entry.name for entry in place.iterdir()} != set(texts):
        return False
    return all((place / name).is_file() and (place / name).read_bytes() == text for name, text in texts.items())


def _refuse_foreign(place: Path) -> None:
    """A folder may be replaced when it is empty, or holds an earlier rendering and nothing else."""
    if not place.exists() and not place.is_symlink():
        return
    if not place.is_dir() or place.is_symlink():
        raise BadInput(Message("render.not-a-folder", {"path": str(place)}), Message("render.not-a-folder-hint"))
    names = sorted(entry.name for entry in place.iterdir())
    foreign = [name for name in names if not _OURS.fullmatch(name) or not (place / name).is_file()]
    if names and not foreign and not _is_rendered(place / "Dockerfile"):
        foreign = names
    if foreign:
        args = {"path": str(place), "found": tuple(foreign[:5])}
        raise BadInput(Message("render.foreign-folder", args), Message("render.foreign-folder-hint"))


def _refuse_different(place: Path, texts: Mapping[str, bytes]) -> None:
    """Somebody may have edited it: what was rendered by another version cannot be told from that."""
    there = {entry.name: entry.read_bytes() for entry in place.iterdir()} if place.exists() else {}
    names = tuple(sorted(name for name in {*there, *texts} if there.get(name) != texts.get(name)))
    if there:
        args: dict[str, object] = {"path": str(place), "files": names[:5]}
        raise BadInput(Message("render.differs", args), Message("render.differs-hint"))


def _is_rendered(dockerfile: Path) -> bool:
    return dockerfile.is_file() and dockerfile.read_bytes().startswith(MARK.encode())


def _replace(place: Path, texts: Mapping[str, bytes]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as scratch:
        fresh, old = Path(scratch) / "new", Path(scratch) / "old"
        fresh.mkdir()
        for name, text in texts.items():
            (fresh / name).write_bytes(text)
            (fresh / name).chmod(_MODE)
        fresh.chmod(_FOLDER_MODE)
        if place.exists():
            place.rename(old)
        try:
            fresh.rename(place)
        except OSError:
            if old.exists():
                old.rename(place)
            raise
