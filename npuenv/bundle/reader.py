"""Opens a bundle on its target, and checks whether it matches the request and the tables of this npuenv.

`open_bundle` compares every file with the manifest before any of it is used. An archive is unpacked for the duration of
the block; a folder is used in place.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from npuenv.bundle.layout import (
    MANIFEST,
    MAX_MANIFEST,
    FileRow,
    Manifest,
    failed_by_disk,
    mode_of,
    parse_manifest,
    refused,
)
from npuenv.core import versions
from npuenv.core.errors import BadInput, StepFailed
from npuenv.core.messages import Message
from npuenv.lock.file import Lock, read_lock
from npuenv.lock.store import answers
from npuenv.matrix.release_stacks import recipe_named
from npuenv.resolve import resolve
from npuenv.resolve.request import checked
from npuenv.resolve.types import Request, Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.lock.file import Lock
    from npuenv.matrix import Matrix


_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose files match its manifest."""

    root: Path
    manifest: Manifest
    lock: Lock
    request: Request  # resolves to the bundle's stack

    @property
    def stack(self) -> str:
        return self.manifest.stack

    @property
    def wheels(self) -> str:
        """The folder with a file for every package of the lock, and with the build requirements of sdists."""
        return str(self.root / "wheels")

    @property
    def sources(self) -> dict[str, str]:
        """Normalised name -> archive, of each source that is not left out."""
        return {row.name: str(self.root / row.path) for row in self.manifest.sources if row.path}

    @property
    def left_out(self) -> tuple[str, ...]:
        """Sources that the user has to supply."""
        return tuple(row.name for row in self.manifest.sources if not row.path)

    @property
    def zipapp(self) -> str:
        """The doctor in one file."""
        return self._only("program", "npuenv-doctor.pyz")

    @property
    def python_archive(self) -> str:
        """An archive with the stack's interpreter; "" if none was added."""
        return self._only("python", "")

    @property
    def cann_files(self) -> tuple[str, ...]:
        return tuple(str(self.root / row.path) for row in self.manifest.files if row.kind == "cann")

    def _only(self, kind: str, end: str) -> str:
        paths = [row.path for row in self.manifest.files if row.kind == kind and row.path.endswith(end)]
        return str(self.root / paths[0]) if paths else ""


@contextmanager
def open_bundle(path: str | Path, scratch: Path | None = None) -> Iterator[Bundle]:
    """The parts of a bundle, a folder or an archive.

    `scratch`: where an archive is unpacked; None: the folder of temporary files. Raises: BadInput for any difference
    from what was written, with the name of the first such file; StepFailed if there is no space to unpack.
    """
    location = Path(path)
    if location.is_dir():
        yield _bundle(location.resolve(), _checked_folder(location))
    elif location.is_file():
        with tempfile.TemporaryDirectory(prefix="npuenv-bundle-", dir=scratch) as folder:
            root = Path(folder).resolve()
            yield _bundle(root, _unpacked(location, root))
    else:
        raise BadInput(Message("bundle.absent", {"path": str(path)}), Message("bundle.absent-hint"))


def _bundle(root: Path, manifest: Manifest) -> Bundle:
    lock = read_lock(root / manifest.lock_file)
    if (lock.hash, lock.stack, lock.platform) != (manifest.lock, manifest.stack, manifest.platform):
        raise refused(root, Message("bundle.other-lock", {"file": manifest.lock_file}))
    return Bundle(root, manifest, lock, Request(**manifest.request))


def _checked_folder(location: Path) -> Manifest:
    if not (location / MANIFEST).is_file():
        raise refused(location, Message("bundle.no-manifest", {"name": MANIFEST}))
    try:
        with (location / MANIFEST).open("rb") as file:
            manifest = parse_manifest(file.read(MAX_MANIFEST + 1), str(location))
        rows = {row.path: row for row in manifest.files}
        for found in _entries(location):
            if found not in rows and found != MANIFEST:
                raise refused(location, Message("bundle.extra-file", {"file": found}))
        for row in manifest.files:
            _check_file(location, row)
    except OSError as error:
        args = {"file": str(error.filename or location), "why": error.strerror or str(error)}
        raise refused(location, Message("bundle.unreadable-file", args)) from error
    return manifest


def _check_file(location: Path, row: FileRow) -> None:
    path = location / row.path
    try:
        looked = path.lstat()
    except FileNotFoundError as error:
        raise refused(location, Message("bundle.missing-file", {"file": row.path})) from error
    # A link may lead to a file that changes after it was compared.
    if not stat.S_ISREG(looked.st_mode) or os.path.realpath(path) != os.path.join(os.path.realpath(location), row.path):
        raise refused(location, Message("bundle.no-plain-file", {"file": row.path}))
    _require_size(location, row, looked.st_size)
    with path.open("rb") as content:
        _check_content(location, row, content)


def _entries(location: Path) -> Iterator[str]:
    """Every entry below a folder that is not itself a folder, links to folders included."""
    for folder, names, files in os.walk(location, onerror=_raise):
        for name in (*files, *(name for name in names if os.path.islink(os.path.join(folder, name)))):
            yield Path(folder, name).relative_to(location).as_posix()


def _raise(error: OSError) -> None:
    raise error


def _unpacked(path: Path, root: Path) -> Manifest:
    """The manifest of an archive whose files are now in `root`. Its first member must be the manifest."""
    try:
        with tarfile.open(path, "r:") as archive:
            first = archive.next()
            parts = first.name.split("/") if first else []
            if first is None or not first.isreg() or parts[1:] != [MANIFEST] or first.size > MAX_MANIFEST:
                raise refused(path, Message("bundle.no-manifest", {"name": MANIFEST}))
            data = _content(archive, first).read()
            manifest = parse_manifest(data, str(path))
            (root / MANIFEST).write_bytes(data)
            rows = {f"{parts[0]}/{row.path}": row for row in manifest.files}
            while (member := archive.next()) is not None:
                row = rows.pop(member.name, None)
                if row is None or not member.isreg():
                    raise refused(path, Message("bundle.extra-file", {"file": member.name[:200]}))
                _require_size(path, row, member.size)
                target = root / row.path
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    _check_content(path, row, _content(archive, member), file)
                target.chmod(mode_of(row))
            if rows:
                raise refused(path, Message("bundle.missing-file", {"file": min(rows).partition("/")[2]}))
    except (tarfile.TarError, EOFError) as error:
        raise refused(path, Message("bundle.broken-archive", {"why": str(error)[:200]})) from error
    except OSError as error:
        if error.filename is None or str(error.filename).startswith(str(root)):
            raise StepFailed(failed_by_disk(error, root).message, Message("bundle.unpack-hint")) from error
        args = {"file": str(error.filename), "why": error.strerror or str(error)}
        raise refused(path, Message("bundle.unreadable-file", args)) from error
    return manifest


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(member)
    assert content is not None  # a regular file has content
    return content


def _require_size(location: Path, row: FileRow, found: int) -> None:
    if found != row.size:
        args = {"file": row.path, "expected": row.size, "found": found}
        raise refused(location, Message("bundle.other-size", args))


def _check_content(location: Path, row: FileRow, content: IO[bytes], target: IO[bytes] | None = None) -> None:
    """Raises BadInput for content with another hash than the row's; copies it to `target`, if any."""
    digest, left = hashlib.sha256(), row.size + 1
    while left > 0 and (piece := content.read(min(_CHUNK, left))):
        left -= len(piece)
        digest.update(piece)
        if target:
            target.write(piece)
    if digest.hexdigest() != row.sha256:
        args = {"file": row.path, "expected": row.sha256, "found": digest.hexdigest()}
        raise refused(location, Message("bundle.other-hash", args))


def as_bundled(bundle: Bundle) -> Request:
    """The request for exactly the stack of the bundle, independent of today's tables."""
    return replace(bundle.request, stack=bundle.stack, framework=None, release=None)


def require_known(bundle: Bundle, matrix: Matrix) -> None:
    """Raises BadInput if the tables of this npuenv give the stack other versions than the bundle holds.

    The bundle's `install.sh` runs the npuenv that made it.
    """
    try:
        found = resolve(as_bundled(bundle), matrix)
    except BadInput:  # a name that the tables no longer have
        found = None
    if not (isinstance(found, Stack) and answers(bundle.lock, found)):
        args = {"stack": bundle.stack, "npuenv": bundle.manifest.npuenv}
        raise BadInput(Message("bundle.other-tables", args), Message("bundle.other-tables-hint"))


def require_matching(requested: Request, bundle: Bundle, stack: Stack, matrix: Matrix) -> None:
    """Raises BadInput if the options beside the bundle do not match its content, or do not exist."""
    expected = checked(replace(requested, stack=requested.stack or bundle.stack), matrix)
    recipe = recipe_named(stack.name, matrix)
    cann = stack.pin("cann")
    pairs = {
        "STACK": (expected.stack, stack.name),
        "--for": (expected.framework, stack.framework),
        "--for ...==": (expected.release, recipe.release if recipe else None),
        "--arch": (expected.arch, stack.platform.arch),
        "--python": (expected.python, stack.platform.python),
        "--hardware": (expected.hardware, stack.platform.hardware),
        "--os": (expected.os, stack.platform.os),
        "--as-of": (expected.as_of, bundle.request.as_of),
        "--newest": ("on" if expected.is_newest else None, "on" if bundle.request.is_newest else None),
    }
    other = {option: wanted for option, (wanted, held) in pairs.items() if wanted is not None and wanted != held}
    if expected.cann and not (cann and versions.cann(expected.cann) == versions.cann(cann.version)):
        other["--cann"] = expected.cann
    for name, version in expected.pins.items():
        package = bundle.lock.package(name)
        if package is None or not versions.accepts(f"=={version}", package.version):
            other[f"--pin {name}=="] = version
    for option, wanted in other.items():
        args = {"option": option, "wanted": wanted, "stack": stack.name, "platform": stack.platform.tag}
        raise BadInput(Message("install.bundle-other", args), Message("install.bundle-other-hint"))
