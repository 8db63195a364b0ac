"""A program that unpacks or copies a supplied source and prints its digest. It uses the standard library only: it is
copied beside an environment and run with the environment's base interpreter.

    python unpacker.py digest PATH                 the digest: `sha256:HEX` of a file, `tree:HEX` of a folder
    python unpacker.py unpack PATH DIGEST FOLDER   its content into FOLDER, which must not exist yet

An archive that holds one folder and nothing else gives that folder's content. Nothing is ever written outside FOLDER:
absolute names, `..`, links that lead out, devices and pipes are refused before anything is written.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
import stat
import sys
import tarfile
import zipfile
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Not part of a source at any depth: version control data and caches.
PASSED_OVER = (".git", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache")
BUILT = ("build", "dist", ".eggs")  # build output at the top level; deeper, packages may have these names
MOST_BYTES = 16 << 30  # an archive that declares more is refused


class RefusedArchive(Exception):
    """A source that is refused, with the reason."""


def main(argv: list[str]) -> int:
    """The exit code: 0 done, 1 refused, 2 wrong usage."""
    if (argv[:1], len(argv)) not in ((["digest"], 2), (["unpack"], 4)):
        print("usage: unpacker.py digest PATH | unpack PATH DIGEST FOLDER")
        return 2
    try:
        if argv[0] == "digest":
            print(digest(argv[1]))
            return 0
        found = digest(argv[1])
        if argv[2] not in ("-", found):
            raise RefusedArchive(f"{argv[1]} is {found} and not {argv[2]}")
        unpack(argv[1], argv[3])
    except RefusedArchive as refused:
        print(f"problem: {refused}")
        return 1
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError) as error:
        print(f"problem: {argv[1]}: {error}")
        return 1
    return 0


def digest(path: str) -> str:
    """`sha256:HEX` of a file; `tree:HEX` over names, modes and contents of a folder."""
    if not os.path.isdir(path):
        return "sha256:" + sha256(path)
    total = hashlib.sha256()
    for name, full in files_below(path):
        if os.path.islink(full):
            line = f"link {name} {os.readlink(full)}"
        else:
            line = f"{'x' if os.stat(full).st_mode & 0o100 else 'f'} {name} {sha256(full)}"
        total.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return "tree:" + total.hexdigest()


def sha256(path: str) -> str:
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            total.update(chunk)
    return total.hexdigest()


def files_below(root: str) -> Iterator[tuple[str, str]]:
    """(name below the root, full path) of every file and link, by name, without ignored ones."""
    for folder, folders, names in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        passed = {*links, *left_out(root, folder, folders)}
        folders[:] = sorted(name for name in folders if name not in passed)
        for name in sorted([*names, *links]):
            full = os.path.join(folder, name)
            if os.path.islink(full) or os.path.isfile(full):
                yield os.path.relpath(full, root).replace(os.sep, "/"), full


def left_out(root: str, folder: str, names: list[str]) -> list[str]:
    """The names in a folder of a source that are ignored."""
    passed = PASSED_OVER + (BUILT if os.path.normpath(folder) == os.path.normpath(root) else ())
    return [name for name in names if name in passed or name.endswith(".egg-info")]


def unpack(path: str, folder: str) -> None:
    """Unpacks the source's content into `folder`; removes the folder on any failure."""
    os.makedirs(folder)
    try:
        if os.path.isdir(path):
            copy(path, folder)
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                unzip(archive, folder)
        elif tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                untar(archive, folder)
        else:
            raise RefusedArchive(f"{path} is neither a tar nor a zip archive")
        if not os.listdir(folder):
            raise RefusedArchive(f"{path} is empty")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def copy(path: str, folder: str) -> None:
    """A folder's files, links as links. `.git` is included, because builds read their version from it."""
    for name, full in files_below(path):
        if os.path.islink(full):
            require_inside(name, os.readlink(full))

    def ignore(location: str, names: list[str]) -> list[str]:
        return [name for name in left_out(path, location, names) if name != ".git"]

    shutil.copytree(path, folder, symlinks=True, dirs_exist_ok=True, ignore=ignore)


def untar(archive: tarfile.TarFile, folder: str) -> None:
    members: list[tarfile.TarInfo] = []
    sizes: dict[str, int] = {}
    total = 0
    for member in archive:  # a few MB may unpack to terabytes, so each next member is read only while there is room
        safe = safe_name(member.name)
        sizes[safe] = sizes.get(safe_name(member.linkname), 0) if member.islnk() else member.size
        total += sizes[safe] + tarfile.BLOCKSIZE
        require_size(total)
        if safe:
            members.append(member)
    top = common_top([(member.name, member.isdir()) for member in members])
    links = []
    for member in members:
        if not (member.isdir() or member.isreg() or member.issym() or member.islnk()):
            raise RefusedArchive(f"{member.name} is a device or a pipe")
        if member.issym():
            require_inside(below(member.name, top), member.linkname)
        if member.islnk() and not below(safe_name(member.linkname), top):
            raise RefusedArchive(f"{member.name} leads out of the archive")
    for member in members:
        location = below(safe_name(member.name), top)
        if not location:
            continue
        full = os.path.join(folder, location)
        if member.isdir():
            os.makedirs(full, exist_ok=True)
        elif member.issym():
            links.append((full, member.linkname))
        else:
            content = archive.extractfile(member)  # of a hard link: its target
            assert content is not None
            write(full, content, member.mode)
    put_links(links)


def unzip(archive: zipfile.ZipFile, folder: str) -> None:
    members = [member for member in archive.infolist() if safe_name(member.filename)]
    require_size(sum(member.file_size for member in members))
    top = common_top([(member.filename, member.is_dir()) for member in members])
    links = []
    for member in members:
        if stat.S_ISLNK(member.external_attr >> 16):
            links.append((below(safe_name(member.filename), top), archive.read(member).decode()))
            require_inside(*links[-1])
    locations = {location for location, _ in links}
    for member in members:
        location = below(safe_name(member.filename), top)
        if not location or location in locations:
            continue
        if member.is_dir():
            os.makedirs(os.path.join(folder, location), exist_ok=True)
        else:
            with archive.open(member) as content:
                write(os.path.join(folder, location), content, member.external_attr >> 16)
    put_links([(os.path.join(folder, location), target) for location, target in links])


def write(full: str, content: IO[bytes], mode: int) -> None:
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "xb") as file:  # a second file of the same name is refused
        shutil.copyfileobj(content, file)
    os.chmod(full, 0o755 if mode & 0o100 else 0o644)


def put_links(links: list[tuple[str, str]]) -> None:
    """Writes links last, so that no file is ever written through one."""
    for full, target in links:
        os.makedirs(os.path.dirname(full), exist_ok=True)
        os.symlink(target, full)


def safe_name(name: str) -> str:
    """The name as a relative path without `.`; "" for the archive's root. Refuses a path that leads out of it."""
    if name.startswith(("/", "\\")) or "\\" in name or "\0" in name or name[1:2] == ":":
        raise RefusedArchive(f"{name!r} is no relative path")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise RefusedArchive(f"{name!r} leads out of the archive")
    return "/".join(parts)


def require_inside(location: str, target: str) -> None:
    """Refuses a link at `place` (relative to the root) whose target is not below the root."""
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(location), target))
    if target.startswith("/") or reached == ".." or reached.startswith("../"):
        raise RefusedArchive(f"the link {location} leads out of the source, to {target}")


def require_size(size: int) -> None:
    if size > MOST_BYTES:
        raise RefusedArchive(f"it would take {size >> 20} MiB unpacked")


def common_top(names: list[tuple[str, bool]]) -> str:
    """The one folder that holds everything; "" if there is none."""
    tops = {safe_name(name).split("/")[0] for name, _ in names}
    is_folder = all(is_dir or "/" in safe_name(name) for name, is_dir in names)
    return tops.pop() if len(tops) == 1 and is_folder else ""


def below(name: str, top: str) -> str:
    """The name without the top folder; "" for the top itself."""
    name = safe_name(name)
    return name if not top else "" if name == top else name[len(top) + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
