"""Opens a bundle on its target: every byte is compared with the manifest before any of it is used.

`open_bundle` returns the parts. An archive is unpacked for the duration of the block; a folder is used in place.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from npuenv.bundle.offline.fetch import failed_by_disk
from npuenv.bundle.offline.manifest import MANIFEST, MAX_MANIFEST, FileRow, Manifest, mode_of, parse_manifest
from npuenv.bundle.offline.write import plain_member
from npuenv.core.errors import BadInput, StepFailed
from npuenv.core.messages import Message
from npuenv.lock.file import Lock, read_lock
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
def open_bundle(
    path: str | Path, scratch: Path | None = None, *, tell: Callable[[int, int], None] | None = None
) -> Iterator[Bundle]:
    """The parts of a bundle, a folder or an archive.

    `scratch`: where an archive is unpacked; None: the folder of temporary files. `tell` is called with the bytes
    compared so far and their total. Raises: BadInput for any difference from what was written, with the name of the
    first such file; StepFailed if there is no space to unpack.
    """
    location = Path(path)
    if location.is_dir():
        yield _bundle(location.resolve(), _checked_folder(location, tell))
    elif location.is_file():
        with tempfile.TemporaryDirectory(prefix="npuenv-bundle-", dir=scratch) as folder:
            root = Path(folder).resolve()
            yield _bundle(root, _unpacked(location, root, tell))
    else:
        raise BadInput(Message("bundle.absent", {"path": str(path)}), Message("bundle.absent-hint"))


def _bundle(root: Path, manifest: Manifest) -> Bundle:
    lock = read_lock(root / manifest.lock_file)
    if (lock.hash, lock.stack, lock.platform) != (manifest.lock, manifest.stack, manifest.platform):
        raise _refused(root, Message("bundle.other-lock", {"file": manifest.lock_file}))
    return Bundle(root, manifest, lock, Request(**manifest.request))


def _checked_folder(location: Path, tell: Callable[[int, int], None] | None) -> Manifest:
    if not (location / MANIFEST).is_file():
        raise _refused(location, Message("bundle.no-manifest", {"name": MANIFEST}))
    try:
        with (location / MANIFEST).open("rb") as file:
            manifest = parse_manifest(_head(file), str(location))
        rows = {row.path: row for row in manifest.files}
        for found in _entries(location):
            if found not in rows and found != MANIFEST:
                raise _refused(location, Message("bundle.extra-file", {"file": found}))
        done = 0
        for row in manifest.files:
            done += row.size
            _check_file(location, row)
            if tell:
                tell(done, manifest.size)
    except OSError as error:
        args = {"file": str(error.filename or location), "why": error.strerror or str(error)}
        raise _refused(location, Message("bundle.unreadable-file", args)) from error
    return manifest


def _check_file(location: Path, row: FileRow) -> None:
    path = location / row.path
    try:
        looked = path.lstat()
    except FileNotFoundError as error:
        raise _refused(location, Message("bundle.missing-file", {"file": row.path})) from error
    # A link may lead to a file that changes after it was compared.
    if not stat.S_ISREG(looked.st_mode) or os.path.realpath(path) != os.path.join(os.path.realpath(location), row.path):
        raise _refused(location, Message("bundle.no-plain-file", {"file": row.path}))
    if looked.st_size != row.size:
        args = {"file": row.path, "expected": row.size, "found": looked.st_size}
        raise _refused(location, Message("bundle.other-size", args))
    with path.open("rb") as content:
        _require_hash(location, row, _pour(content, None, row))


def _entries(location: Path) -> Iterator[str]:
    """Every entry below a folder that is not itself a folder, links to folders included."""
    for folder, names, files in os.walk(location, onerror=_raise):
        for name in (*files, *(name for name in names if os.path.islink(os.path.join(folder, name)))):
            yield Path(folder, name).relative_to(location).as_posix()


def _raise(error: OSError) -> None:
    raise error


def _unpacked(path: Path, root: Path, tell: Callable[[int, int], None] | None) -> Manifest:
    """The manifest of an archive whose files are now in `root`. Its first member must be the manifest."""
    try:
        with tarfile.open(path, "r:") as archive, path.open("rb") as raw:
            first = archive.next()
            manifest = _manifest_of(archive, first, path)
            assert first is not None
            (root / MANIFEST).write_bytes(_content(archive, first).read())
            end = _end_of(first, raw, 0, path, mode=0o644)
            top, rows, done = first.name.partition("/")[0], {row.path: row for row in manifest.files}, 0
            while (member := archive.next()) is not None:
                row = rows.pop(member.name.removeprefix(f"{top}/"), None)
                if row is None or not member.isreg() or not member.name.startswith(f"{top}/"):
                    raise _refused(path, Message("bundle.extra-file", {"file": member.name[:200]}))
                _unpack(archive, member, row, root / row.path, path)
                end = _end_of(member, raw, end, path, mode=mode_of(row))
                done += row.size
                if tell:
                    tell(done, manifest.size)
            if rows:
                raise _refused(path, Message("bundle.missing-file", {"file": min(rows)}))
            _require_end(raw, end, path)
    except (tarfile.TarError, EOFError) as error:
        raise _refused(path, Message("bundle.broken-archive", {"why": str(error)[:200]})) from error
    except OSError as error:
        if error.filename is None or str(error.filename).startswith(str(root)):
            raise StepFailed(failed_by_disk(error, root).message, Message("bundle.unpack-hint")) from error
        args = {"file": str(error.filename), "why": error.strerror or str(error)}
        raise _refused(path, Message("bundle.unreadable-file", args)) from error
    return manifest


def _manifest_of(archive: tarfile.TarFile, first: tarfile.TarInfo | None, path: Path) -> Manifest:
    parts = first.name.split("/") if first else []
    if first is None or not first.isreg() or parts[1:] != [MANIFEST] or first.size > MAX_MANIFEST:
        raise _refused(path, Message("bundle.no-manifest", {"name": MANIFEST}))
    return parse_manifest(_content(archive, first).read(), str(path))


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, row: FileRow, target: Path, path: Path) -> None:
    if member.size != row.size:
        args = {"file": row.path, "expected": row.size, "found": member.size}
        raise _refused(path, Message("bundle.other-size", args))
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        _require_hash(path, row, _pour(_content(archive, member), file, row))
    target.chmod(mode_of(row))


def _end_of(member: tarfile.TarInfo, raw: IO[bytes], start: int, path: Path, *, mode: int) -> int:
    """The end of a member's last block. Its header and padding must be exactly as they are written."""
    wanted = plain_member(member.name, member.size, mode).tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    raw.seek(start)
    is_same = member.offset_data == start + len(wanted) and raw.read(len(wanted)) == wanted
    data_end = member.offset_data + member.size
    end = -(-data_end // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    raw.seek(data_end)
    if not is_same or raw.read(end - data_end) != bytes(end - data_end):
        raise _refused(path, Message("bundle.other-header", {"file": member.name[:200]}))
    return end


def _require_end(raw: IO[bytes], end: int, path: Path) -> None:
    """Requires that the last member is followed by the zeros that end an archive, and nothing else."""
    raw.seek(end)
    padded = -(-(end + 2 * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
    if raw.read(padded - end + 1) != bytes(padded - end):
        raise _refused(path, Message("bundle.after-the-end"))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(member)
    assert content is not None  # a regular file has content
    return content


def _pour(content: IO[bytes], target: IO[bytes] | None, row: FileRow) -> str:
    """The sha256 of the content, reading at most one byte more than the row's size; copies it to `target`, if any."""
    digest, left = hashlib.sha256(), row.size + 1
    while left > 0 and (piece := content.read(min(_CHUNK, left))):
        left -= len(piece)
        digest.update(piece)
        if target:
            target.write(piece)
    return digest.hexdigest()


def _require_hash(location: Path, row: FileRow, found: str) -> None:
    if found != row.sha256:
        args = {"file": row.path, "expected": row.sha256, "found": found}
        raise _refused(location, Message("bundle.other-hash", args))


def _head(file: IO[bytes]) -> bytes:
    return file.read(MAX_MANIFEST + 1)


def _refused(location: Path, what: Message) -> BadInput:
    args = {"path": str(location), "what": what}
    return BadInput(Message("bundle.no-bundle", args), Message("bundle.no-bundle-hint"))
