"""What an installed wheel has, or None where its record is not whole; hashes of many files; documents of npuenv."""

from __future__ import annotations

import errno
import json
import os
import re
from collections import deque

from npuenv.core.seal import is_sealed
from npuenv.facts.target.dist_info import CHUNK, headers, is_hash, normal, record_rows, sha256

TYPE_CHECKING = False  # as type checkers know it; importing `typing` would take as long as reading an environment
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FEW = 64


def identity(info: str) -> tuple[str, str]:
    """Name (normalised) and version from METADATA; from the folder's name where METADATA cannot be read."""
    name, _, version = os.path.basename(info)[: -len(".dist-info")].partition("-")
    try:
        found = headers(os.path.join(info, "METADATA"))
    except OSError:
        found = {}  # damaged; RECORD names METADATA, so this is found and said there
    return normal(found.get("name", [name])[0]), found.get("version", [version])[0]


def read_record(info: str, *, is_installed: bool = True) -> list[list[str]] | None:
    """Rows (path, hash, size) of RECORD without byte-compiled files; None when it is not there or not whole.

    uv writes it in place and last, so a kill can leave the beginning of one; it ends each row that it wrote.
    """
    try:
        with open(os.path.join(info, "RECORD"), newline="", encoding="utf-8") as file:
            text = file.read()
        rows = list(record_rows(text.splitlines()))
    except (OSError, UnicodeDecodeError):
        return None
    is_whole = bool(rows) and (text.endswith("\n") or not is_installed)
    if not is_whole or any(
        len(row) != 3 or not is_hash(row[1]) or not (row[2].isdigit() or not row[2]) for row in rows
    ):
        return None
    return [row for row in rows if not row[0].endswith(".pyc")]


def lock_names(path: str) -> set[str]:
    """The packages and sources that a lock names; none where it cannot be read. An older Python reads no TOML."""
    try:
        with open(path, encoding="utf-8") as file:
            return {normal(found) for found in re.findall(r'^name = "([^"]+)"$', file.read(), re.MULTILINE)}
    except OSError:
        return set()


def read_json(path: str) -> dict[str, Any]:
    """The document in a file, or {} when it is not there, torn or not as its seal says: such files only save time."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and is_sealed(value) else {}


def write_json(path: str, value: dict[str, Any]) -> None:
    """Writes a document as a whole or not at all, also where the power goes. Raises OSError."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def settle(path: str) -> None:
    """Waits until a file, or the names in a folder, are on the disk. Nothing where a file system cannot do that."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # what some network file systems answer for a folder
            raise
    finally:
        os.close(file)


def hashed(files: list[tuple[int, str, list[Any]]]) -> Iterator[tuple[str, str, list[Any]]]:
    """Path, hash and stamp of each file that can be read, on a few threads; the largest begin, so none is last."""
    if not files:
        return
    waiting = deque(sorted(files, reverse=True))

    def work() -> list[tuple[str, str, list[Any]]]:
        done: list[tuple[str, str, list[Any]]] = []
        while True:
            try:
                size, path, stamp = waiting.popleft()
            except IndexError:
                return done
            try:
                done.append((path, sha256(path, size), stamp))
            except OSError:
                continue  # it has no hash then, which is told as damage

    if len(files) <= FEW and sum(size for size, *_ in files) <= CHUNK:
        yield from work()
        return
    from concurrent.futures import ThreadPoolExecutor  # 20 ms to load, more than a few small files take

    workers = min(4, os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for future in [pool.submit(work) for _ in range(workers)]:
            yield from future.result()
