"""How a bundle lies on disk: its manifest, and the reproducible archive of its folder.

The manifest has every file with size, hash and purpose, and what is missing. Its text is canonical, so that the same
bundle has the same manifest, and sealed with its own hash, so that an edit is detected. A seal guards against accidents
and damage, not against forgery: compare the digest of the manifest with the one that was printed when the bundle was
made.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import tarfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import JsonError, parse_json
from npuenv.core.errors import BadInput, StepFailed
from npuenv.core.messages import Message
from npuenv.core.seal import text_hash
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


SCHEMA = "npuenv.bundle/1"
MANIFEST = "manifest.json"
MAX_MANIFEST = 16 * 1024**2  # bytes; a stack of 250 packages has 0.1 MB
# The fields of a request that decide which stack it resolves to; origins of values are left out.
_ASKED = tuple(each.name for each in fields(Request) if each.name != "origins")
TIME = 315_532_800  # 1980-01-01: the earliest that zip knows too; a clock would change the bytes
_MODE, _PROGRAM_MODE = 0o644, 0o755


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file of a bundle."""

    path: str  # from the bundle's folder, with slashes
    kind: str  # wheel | sdist | build | tool | source | lock | program | python | cann
    size: int  # bytes
    sha256: str
    name: str = ""  # the distribution, or the source
    version: str = ""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A component that is built on the target, and where its files come from."""

    name: str
    path: str  # of its archive; "": left out, the user has to supply it
    origin: str  # git | sdist | given | left-out
    repo: str
    ref: str
    commit: str  # 40 hexadecimal digits; "" without a repository
    is_moving: bool
    how: str


@dataclass(frozen=True, slots=True)
class Needed:
    """What the user must have on the target or supply."""

    kind: str  # cann | python | source
    name: str  # a file name, if one is known
    size: int = 0  # bytes; 0: unknown
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The complete manifest. Files are sorted by path."""

    npuenv: str  # version
    stack: str
    platform: str  # Platform.tag
    lock: str  # Lock.hash
    lock_file: str  # path of the lock
    request: Mapping[str, Any]
    pythons: tuple[str, ...]  # Pythons that the bundled npuenv itself runs on
    files: tuple[FileRow, ...]
    sources: tuple[SourceRow, ...]
    needed: tuple[Needed, ...]

    @property
    def size(self) -> int:
        """Bytes of all files, without the manifest."""
        return sum(row.size for row in self.files)

    @property
    def digest(self) -> str:
        """The sha256 of the manifest's text."""
        return text_hash(manifest_text(self))


def request_values(request: Request) -> dict[str, Any]:
    """A request as plain values; `Request(**values)` restores it without the origins."""
    values = {name: getattr(request, name) for name in _ASKED}
    return {**values, "pins": dict(sorted(request.pins.items()))}


def manifest_text(manifest: Manifest) -> str:
    """The manifest as JSON, the same for the same manifest."""
    bare = {"schema": SCHEMA, **asdict(manifest)}
    return _text({**bare, "seal": _seal(bare)})


def parse_manifest(data: bytes, location: str) -> Manifest:
    """The manifest in a file; `location` is for messages. Raises: BadInput for an invalid or modified one."""
    try:
        table = parse_json(data)
    except JsonError as error:
        raise refused(location, Message("bundle.no-json", {"why": str(error)[:200]})) from error
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        schema = str(table.get("schema"))[:100] if isinstance(table, dict) else "-"
        raise refused(location, Message("bundle.other-schema", {"schema": schema, "known": SCHEMA}))
    seal = table.pop("seal", "")
    if seal != _seal(table) or data != _text({**table, "seal": seal}).encode():
        raise refused(location, Message("bundle.changed-manifest"))
    try:
        return _manifest(table)
    except (KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise refused(location, Message("bundle.bad-manifest", {"why": why})) from error


def mode_of(row: FileRow) -> int:
    """The permissions of a file in an archive and after unpacking."""
    return _PROGRAM_MODE if row.kind == "program" else _MODE


def is_inside(path: str) -> bool:
    """Whether a path is a plain relative one: not absolute, no `..`, no unusual characters."""
    pure = PurePosixPath(path)
    is_plain = re.fullmatch(r"[A-Za-z0-9._+!@/-]+", path) is not None and str(pure) == path
    return is_plain and not pure.is_absolute() and ".." not in pure.parts and path != "."


def _manifest(table: dict[str, Any]) -> Manifest:
    table = {name: value for name, value in table.items() if name != "schema"}
    table["files"] = tuple(FileRow(**row) for row in table["files"])
    table["sources"] = tuple(SourceRow(**row) for row in table["sources"])
    table["needed"] = tuple(Needed(**row) for row in table["needed"])
    table["pythons"] = tuple(table["pythons"])
    manifest = Manifest(**table)
    paths = [row.path for row in manifest.files]
    for row in manifest.files:
        if not is_inside(row.path) or row.path == MANIFEST:
            raise ValueError(row.path)
        if not isinstance(row.size, int) or row.size < 0 or not re.fullmatch("[0-9a-f]{64}", row.sha256):
            raise ValueError(row.path)
    known = set(paths)
    if paths != sorted(known):
        raise ValueError("files")
    if manifest.lock_file not in known or any(row.path and row.path not in known for row in manifest.sources):
        raise ValueError("lock_file, sources")
    Request(**manifest.request)
    return manifest


def _seal(table: Mapping[str, Any]) -> str:
    return text_hash(_text(table))


def _text(table: Mapping[str, Any]) -> str:
    return json.dumps(table, indent=1, sort_keys=True, ensure_ascii=True) + "\n"


def settle(folder: Path, programs: Collection[str]) -> None:
    """Sets one time and plain permissions for everything below a folder; `programs` are paths that may be executed."""
    for path in folder.rglob("*"):
        is_program = path.is_dir() or path.relative_to(folder).as_posix() in programs
        path.chmod(_PROGRAM_MODE if is_program else _MODE)
        os.utime(path, (TIME, TIME))


def write_tar(
    folder: Path, out: Path, *, top: str, first: tuple[str, ...] = (), skip: frozenset[str] = frozenset()
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


def refused(location: Path | str, what: Message) -> BadInput:
    """The error for what is no bundle, or no longer the one that was made."""
    args = {"path": str(location), "what": what}
    return BadInput(Message("bundle.no-bundle", args), Message("bundle.no-bundle-hint"))


def failed_by_disk(error: OSError, path: Path) -> StepFailed:
    """The error for a file that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StepFailed(Message("bundle.disk-full", {"path": str(path)}), Message("bundle.disk-full-hint"))
    args = {"path": str(path), "why": error.strerror or str(error)}
    return StepFailed(Message("bundle.cannot-write", args), Message("bundle.cannot-write-hint"))
