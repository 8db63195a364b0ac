"""What a dist-info folder says of its distribution, and what is on the disk: METADATA, RECORD, files, links, hashes.

The first part of the programs that look at an environment: the doctor's `inventory` and `hashes`, and the verifier
(`npuenv.install.env_verifier`).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re

TYPE_CHECKING = False  # as type checkers know it; importing `typing` would take a tenth of the whole program's time
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

HASHES = ("sha256=", "md5=", "sha1=", "sha224=", "sha384=", "sha512=")  # that a file may have in RECORD
HEADERS = ("name", "version", "requires-python", "requires-dist")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def list_folder(path: str) -> list[str]:
    """The names in a folder, sorted; [] where there is none. Raises OSError where it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def headers(path: str) -> dict[str, list[str]]:
    """The headers of METADATA or PKG-INFO that matter, up to the description. Raises OSError."""
    found: dict[str, list[str]] = {}
    last = None
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            line = line.rstrip("\r\n")
            if not line:
                break
            if line[0] in " \t":
                if last is not None:
                    last[-1] += " " + line.strip()
                continue
            key, mark, value = line.partition(":")
            last = None
            if mark and key.lower() in HEADERS:
                last = found.setdefault(key.lower(), [])
                last.append(value.strip())
    return found


def requirements(found: dict[str, list[str]]) -> list[str]:
    """Requirements without those of extras, which nobody said were wanted."""
    return [text for text in found.get("requires-dist", ()) if "extra" not in text.partition(";")[2]]


def record_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """The rows of RECORD: path, hash and size, where it is as it should be."""
    for line in lines:
        if '"' in line:
            try:
                yield from csv.reader([line])
            except csv.Error:
                yield [line]
        elif line:
            yield line.rsplit(",", 2)  # as csv would, in half the time


def is_hash(text: str) -> bool:
    """Whether RECORD may say this of a file's content: a hash, or nothing."""
    return not text or text.startswith(HASHES)


def located(folder: str, path: str) -> str:
    """Where a file lies that the RECORD of a distribution in this folder names."""
    if ".." in path or path.startswith("/"):
        return os.path.normpath(os.path.join(folder, path))
    return f"{folder}/{path}"


def source_folder(direct: dict[str, Any]) -> str:
    """The folder that a direct_url.json names; "" where it names something else."""
    url = str(direct.get("url", ""))
    if not url.startswith("file://"):
        return ""
    path = "/" + url[len("file://") :].partition("/")[2]
    if "%" in path:
        from urllib.parse import unquote  # 10 ms to load, and hardly a folder has such a name

        path = unquote(path)
    return path


class Disk:
    """Sizes, times and links of files, one listing per folder: a call per file costs twice as much."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, tuple[int, int, int]] | OSError] = {}
        self._links: set[str] = set()  # of what has been listed
        self._above: dict[str, str] = {}  # folder -> the link that it is or lies below; ""

    def stamp(self, path: str) -> tuple[int, int, int] | None:
        """Size and times; None where nothing is there. Raises OSError where the folder cannot be read."""
        folder, _, name = path.rpartition("/")
        stamps = self._folders.get(folder)
        if stamps is None:
            stamps = self._folders[folder] = self._list(folder)
        if isinstance(stamps, OSError):
            raise stamps
        return stamps.get(name)

    def link(self, path: str, below: str) -> str:
        """The link that a path, of which the stamp was asked, is or lies below; "" where there is none."""
        return path if path in self._links else self.link_above(path, below)

    def link_above(self, path: str, below: str) -> str:
        """The outermost link between `below` and a path; "" where its folders are folders.

        No wheel holds links: what one leads to is somebody else's, and changes or goes without this environment.
        """
        folder = path.rpartition("/")[0]
        if folder not in self._above:
            is_inside = folder.startswith(below + "/")
            above = self.link_above(folder, below) if is_inside else ""
            self._above[folder] = above or (folder if is_inside and os.path.islink(folder) else "")
        return self._above[folder]

    def _list(self, folder: str) -> dict[str, tuple[int, int, int]] | OSError:
        stamps: dict[str, tuple[int, int, int]] = {}
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        self._links.add(entry.path)
                    elif entry.is_dir():  # RECORD names none
                        continue
                    try:
                        found = entry.stat()
                    except FileNotFoundError:  # a dangling link is as good as gone
                        continue
                    stamps[entry.name] = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            return error
        return stamps


CHUNK = 1 << 20


def sha256(path: str, size: int = CHUNK) -> str:
    """As RECORD writes it: `sha256=` and urlsafe base64 without padding. `size`: as expected. Raises OSError."""
    digest = hashlib.sha256()
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # One byte more than there is: a short answer is the end, and no second one is asked for.
        chunk = os.read(file, min(size + 1, CHUNK))
        digest.update(chunk)
        is_all = len(chunk) == size < CHUNK
        while not is_all:
            chunk = os.read(file, CHUNK)
            digest.update(chunk)
            is_all = not chunk
    finally:
        os.close(file)
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
