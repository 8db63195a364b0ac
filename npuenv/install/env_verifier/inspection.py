"""What lies in the environment: `Inspection` with what wheels' records say of their files, and files of no record."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import sysconfig
from collections import deque

from npuenv.core.seal import is_sealed
from npuenv.facts.target.dist_info import (
    CHUNK,
    Disk,
    headers,
    is_hash,
    list_folder,
    located,
    normal,
    record_rows,
    sha256,
    source_folder,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


FEW = 64


class Inspection:
    """What lies in the environment: distributions, their files, damage, files with two owners."""

    def __init__(self, root: str, over: list[str], *, only_locked: bool = False) -> None:
        self.root = os.path.abspath(root)
        self.own = os.path.join(self.root, ".npuenv")
        self.site = sysconfig.get_paths()["purelib"]
        self.over = {tuple(pair.split("=", 1)) for pair in over}  # (later, earlier)
        self.versions: dict[str, str] = {}  # name -> version
        self.damaged: dict[str, str] = {}  # name -> what is wrong with its first damaged file
        self.strange: dict[str, str] = {}  # the same for packages that no lock names: nobody could put them back
        self.rivals: dict[str, set[str]] = {}  # damaged name -> the packages that want that file otherwise
        self.folders: dict[str, str] = {}  # name -> its dist-info folder
        self.owners: dict[str, dict[str, str]] = {}  # path -> name -> the hash that its RECORD gives
        self.stamps: dict[str, list[Any]] = {}  # path -> size and times; only of files that are there
        self.digests: dict[str, str] = {}  # path -> the hash that it has
        self.misfits: list[tuple[str, str, str]] = []  # name, path, what presence and size tell against it
        self.disk = Disk()
        self.num_hashed = 0
        self.only_locked = only_locked
        self.left_alone: set[str] = set()  # packages that stay as they are, damaged or not

    def read(self, wanted: list[str] | None = None) -> None:
        """Takes in all distributions, or those wanted; looks at presence and sizes, opens nothing but RECORD.

        Beside those wanted come the packages that may own files of theirs.
        """
        names = None if wanted is None else {word.partition("==")[0] for word in wanted}
        names = names and names | {later for later, earlier in self.over if earlier in names}
        for entry in sorted(os.listdir(self.site)):
            if entry.endswith(".dist-info") and (names is None or normal(entry.partition("-")[0]) in names):
                self._read_one(os.path.join(self.site, entry))
        for name, path, problem in self.misfits:  # now that every owner is known
            if name not in self.damaged and not self.is_given_up(path, name):
                self.damage(name, path, problem)

    def _read_one(self, info: str) -> None:
        """One distribution. Without a whole RECORD nobody knows its files: damaged."""
        name, version = identity(info)
        if name in self.folders:
            self.damaged[name] = os.path.basename(info) + " is here and " + os.path.basename(self.folders[name])
        self.versions[name] = version
        self.folders[name] = info
        rows = read_record(info)
        if rows is None:
            self.damaged[name] = "RECORD is not there, or not whole"
        for path, digest, size in rows or ():
            full = located(self.site, path)
            self.owners.setdefault(full, {})[name] = digest
            problem = self.size_problem(full, size)
            if problem:
                self.misfits.append((name, full, problem))
        self.read_source(name, info)

    def size_problem(self, path: str, size: str) -> str:
        """What presence and size tell against a file; "" when nothing. Keeps its stamp."""
        if path not in self.stamps:
            try:
                stamp = self.disk.stamp(path)
                link = self.disk.link(path, self.site)
                if stamp is not None and link:
                    return f"leads out of the package, by the link {link} to {os.readlink(link)}"
            except OSError as error:
                return str(error.strerror)
            if stamp is None:  # also a link that leads nowhere
                return "is not there"
            self.stamps[path] = list(stamp)  # as read_json gives it
        found_size = self.stamps[path][0]
        return f"has {found_size} bytes instead of {size}" if size and found_size != int(size) else ""

    def read_source(self, name: str, info: str) -> None:
        """An editable package is as whole as the folder that it points to."""
        direct = read_json(os.path.join(info, "direct_url.json"))
        if not direct.get("dir_info", {}).get("editable"):
            return
        folder = source_folder(direct)
        if name not in self.damaged and not os.path.isdir(folder):
            self.damaged[name] = f"its folder {folder} is not there"

    def is_given_up(self, path: str, name: str) -> bool:
        """True when the plan says that this file of `name` belongs to another package that owns it too."""
        return any((other, name) in self.over for other in self.owners[path])

    def damage(self, name: str, path: str, problem: str) -> None:
        """Says what is wrong with a package's file, and which other package wants it with another content, if any.

        The same content in both is common and harmless: the `__init__.py` of a shared namespace.
        """
        claims = self.owners[path]
        rivals = {other for other, digest in claims.items() if digest != claims[name]}
        said = ", it belongs to " + " and ".join(sorted({name, *rivals})) if rivals else ""
        self.damaged[name] = f"{os.path.relpath(path, self.site)} {problem}{said}"
        self.rivals[name] = {other for other in rivals if (name, other) not in self.over}

    def examine(self, *, is_fresh: bool) -> None:
        """Compares every file's hash with what its owners say; hashes what has changed since it was last looked at."""
        stamps = {} if is_fresh else read_json(os.path.join(self.own, "stamps.json"))
        new_stamps: dict[str, list[Any]] = {}
        to_hash: list[tuple[int, str, list[Any]]] = []
        for path, stamp in self.stamps.items():
            known = stamps.get(path)
            if known and known[:3] == stamp:
                new_stamps[path] = known
            else:
                to_hash.append((stamp[0], path, stamp))
        for path, digest, stamp in hashed(to_hash):
            new_stamps[path] = [*stamp, digest]
        self.num_hashed = len(to_hash)
        self.digests = {path: stamp[3] for path, stamp in new_stamps.items()}
        self.compare()
        self.set_strangers_apart()
        if to_hash or len(new_stamps) != len(stamps):
            with contextlib.suppress(OSError):  # of a read-only environment all is hashed again next time
                write_json(os.path.join(self.own, "stamps.json"), new_stamps)

    def compare(self) -> None:
        for path, claims in self.owners.items():
            found = self.digests.get(path)
            for name, digest in claims.items():
                is_other = digest.startswith("sha256=") and digest != found
                if is_other and name not in self.damaged and not self.is_given_up(path, name):
                    self.damage(name, path, "has another content" if found else "cannot be read")

    def set_strangers_apart(self) -> None:
        """A package that the user added is none of ours to mend, unless it quarrels with one over a file."""
        named = lock_names(os.path.join(self.own, "lock.toml"))
        if self.only_locked:
            self.left_alone = set(self.versions) - named
            for name in self.left_alone & set(self.damaged):
                self.strange[name] = self.damaged.pop(name)
        for name in sorted(self.damaged):
            if named and name not in named and not self.rivals.get(name):
                self.strange[name] = self.damaged.pop(name)

    def going_out(self) -> list[str]:
        """What mending takes out: the damaged packages, and those that quarrel with one of them over a file."""
        damaged = set(self.damaged)
        return sorted(damaged.union(*self.rivals.values()) - self.left_alone if damaged else ())

    def as_json(self) -> dict[str, Any]:
        path = os.path.join(self.own, "verified.json")
        found = {} if os.path.islink(path) else read_json(path)
        verified = found.get("lock", "") if "at" in found else ""  # other documents name a lock too, but no time
        is_changed = bool(self.damaged) or self.is_put_in_since()
        return {
            "dists": self.versions,
            "damaged": self.damaged,
            "out": self.going_out(),
            "files": len(self.owners),
            "hashed": self.num_hashed,
            "verified": "" if is_changed else verified,
        }

    def is_put_in_since(self) -> bool:
        """True when a package of the lock went in after the last verification, whose word is not about that."""
        try:
            at = os.stat(os.path.join(self.own, "verified.json")).st_mtime_ns
        except OSError:
            return False
        named = lock_names(os.path.join(self.own, "lock.toml"))
        records = (folder + "/RECORD" for name, folder in self.folders.items() if name in named)
        return any(self.stamps[path][1] > at for path in records if path in self.stamps)

    def tree(self) -> str:
        """One hash over path and content of every file that a distribution owns."""
        start = len(self.root) + 1
        lines = [f"{path[start:]} {self.digests[path]}\n" for path in sorted(self.digests)]
        return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()

    def withdraw(self) -> None:
        """Takes back that the environment is verified and complete, until it is verified again."""
        if os.path.exists(os.path.join(self.own, "verified.json")):
            os.remove(os.path.join(self.own, "verified.json"))
        marker = os.path.join(self.root, "npuenv-env.json")
        if os.path.exists(marker):
            found = {**read_json(marker), "status": "building"}
            write_json(marker, {name: found[name] for name in found if name not in ("manifest", "seal")})


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


def deviations(inspection: Inspection, wanted: list[str]) -> list[str]:
    """What keeps the wanted distributions from being there and whole."""
    found = []
    for word in wanted:
        name, _, version = word.partition("==")
        if name not in inspection.versions:
            found.append(f"{word} is not installed")
        elif version and inspection.versions[name] != version:
            found.append(f"{name} is version {inspection.versions[name]} instead of {version}")
        elif name in inspection.damaged:
            found.append(f"{name} is damaged: {inspection.damaged[name]}")
    return found


def report(found: list[str]) -> int:
    for problem in found:
        print("problem: " + problem)
    return 1 if found else 0


TORN = re.compile(r"\.tmp\w{6}")  # how uv calls a file that it has not finished writing
NOBODYS = ("_virtualenv.py", "_virtualenv.pth", "distutils-precedence.pth")  # made with the environment


def unowned(inspection: Inspection) -> Iterator[str]:
    """Files among the packages that no RECORD names, byte code left out; in `bin` and above only what a kill left."""
    for folder, _, names in os.walk(inspection.site):
        if os.path.basename(folder) != "__pycache__":
            for name in names:
                path = folder + "/" + name
                if path not in inspection.owners and name not in NOBODYS and not name.endswith(".pyc"):
                    yield path
    for folder in (inspection.root, os.path.join(inspection.root, "bin")):
        yield from (os.path.join(folder, name) for name in list_folder(folder) if TORN.fullmatch(name))


def foreign_pth(inspection: Inspection) -> list[str]:
    """Names of the `.pth` files that no package owns. Python runs the lines of such files whenever it starts."""
    names = [name for name in list_folder(inspection.site) if name.endswith(".pth") and name not in NOBODYS]
    return [name for name in names if inspection.site + "/" + name not in inspection.owners]


def remove_if_torn(path: str) -> bool:
    """True when the file or folder is what a killed uv leaves of one that it was writing; it is removed then."""
    is_torn = TORN.fullmatch(os.path.basename(path)) is not None
    if is_torn and os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path)
    elif is_torn:
        os.remove(path)
    return is_torn


def remove_byte_code(path: str) -> None:
    """Removes what Python compiled from a source file that is gone."""
    folder, name = os.path.split(path)
    cache = os.path.join(folder, "__pycache__")
    if name.endswith(".py"):
        for entry in list_folder(cache):
            if entry.startswith(name[:-2]):
                os.remove(os.path.join(cache, entry))
