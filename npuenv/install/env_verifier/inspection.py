"""What lies in the environment: `Inspection`."""

from __future__ import annotations

import hashlib
import os
import sysconfig

from npuenv.facts.target.dist_info import Disk, located, normal, source_folder
from npuenv.install.env_verifier.files import hashed, identity, lock_names, read_json, read_record, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Inspection:
    """What lies in the environment: distributions, their files, damage, files with two owners."""

    def __init__(self, root: str, over: list[str], *, only_locked: bool = False) -> None:
        self.root = os.path.abspath(root)
        self.own = os.path.join(self.root, ".npuenv")
        self.site = sysconfig.get_paths()["purelib"]
        self.over = {tuple(pair.split("=", 1)) for pair in over}  # (later, earlier)
        self.versions: dict[str, str] = {}  # name -> version
        self.damaged: dict[str, str] = {}  # name -> what is wrong with its first damaged file
        self.strange: dict[
            str, str
        ] = {}  # the same for packages that the lock does not name: nobody could put them back
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
            self.save("stamps.json", new_stamps)

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

    def save(self, name: str, value: dict[str, Any]) -> None:
        try:
            write_json(os.path.join(self.own, name), value)
        except OSError:
            # A read-only environment can still be inspected; it is only hashed again next time.
            return


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
