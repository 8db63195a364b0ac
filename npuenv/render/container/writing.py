"""Run files on disk: those alike are left, others are replaced on request only.

Unlike an image's folder, one of run files may hold more than was rendered, and people edit what is in it.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import npuenv
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.render.container import apptainer, compose, docker_run, kubernetes, slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from npuenv.render.container.description import Container
    from npuenv.render.container.header import Say

_RENDERERS: dict[str, tuple[str, Callable[[Container, str, Say], str]]] = {
    "run": ("docker-run.sh", docker_run.render),
    "compose": ("compose.yaml", compose.render),
    "k8s": ("kubernetes.yaml", kubernetes.render),
    "slurm": ("slurm.sh", slurm.render),
    "apptainer": ("apptainer.sh", apptainer.render),
}
FORMS = tuple(_RENDERERS)


def render_container(
    container: Container, forms: Iterable[str] = FORMS, *, version: str = npuenv.__version__, lang: str = "en"
) -> dict[str, str]:
    """File name -> text of each of the forms. The same values give the same bytes."""

    def speak(key: str, **args: object) -> str:
        return say(Message(f"container.{key}", args), lang)

    files = {}
    for form in forms:
        name, render = _RENDERERS[form]
        files[name] = render(container, version, speak)
    return files


_MODE, _SCRIPT_MODE = 0o644, 0o755


def write_files(files: Mapping[str, str], folder: Path, *, is_forced: bool = False) -> tuple[Path, ...]:
    """The files that were written; those with the same text already are left alone, as is everything else there.

    All are looked at before the first is written, and each comes into place at once.

    Raises BadInput for files that differ unless `is_forced`, for a link or folder in the place of one, and where
    writing is not allowed.
    """
    with _told(folder):
        changed = changed_files(files, folder, is_forced=is_forced)
        for name, text in changed.items():
            _write(folder / name, text)
    return tuple(folder / name for name in changed)


def changed_files(files: Mapping[str, str], folder: Path, *, is_forced: bool = False) -> dict[str, str]:
    """Those that `write_files` would write. Raises BadInput as it does, and writes nothing."""
    with _told(folder):
        changed = {name: text for name, text in files.items() if not _is_same(folder / name, text)}
        _refuse(folder, changed, is_forced=is_forced)
    return changed


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """What the system refuses as a sentence."""
    try:
        yield
    except OSError as error:
        args = {"path": str(error.filename or folder), "reason": error.strerror or str(error)}
        raise BadInput(Message("container.cannot-write", args), Message("container.cannot-write-hint")) from error


def _is_same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _refuse(folder: Path, changed: Mapping[str, str], *, is_forced: bool) -> None:
    there = [name for name in changed if os.path.lexists(folder / name)]
    for name in there:
        if (folder / name).is_symlink() or not (folder / name).is_file():
            args: dict[str, object] = {"path": str(folder / name)}
            raise BadInput(Message("container.not-a-file", args), Message("container.not-a-file-hint"))
    if there and not is_forced:
        args = {"path": str(folder), "files": tuple(there)}
        raise BadInput(Message("container.exists", args), Message("container.exists-hint"))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
        fresh.chmod(_SCRIPT_MODE if text.startswith("#!") else _MODE)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
