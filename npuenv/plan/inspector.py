"""A program that runs inside an environment, with its Python, and tells whether every file is what its wheel said.

It is copied into the environment as it stands, so all of it is in this one file, uses nothing but the standard library
and imports nothing of ours.

    python inspector.py state  ROOT                           one JSON document about everything
    python inspector.py check  ROOT NAME[==VERSION]...        exit 0 when these are there, each file with its size
    python inspector.py mend   ROOT [--uv UV]                 takes out what is damaged, so that it can go in again
    python inspector.py verify ROOT LOCK [--import MODULE[==VERSION]]... NAME[==VERSION]...
    python inspector.py switch ROOT LINK                      LINK leads to ROOT, `previous` beside it to where it led

--over LATER=EARLIER: what both packages own belongs to LATER. --rehash: trust no earlier look. --limit: seconds an
import may take. A file counts as whole when size and sha256 agree with RECORD. A file is hashed once: while size and
times stay the same it is not hashed again (`.npuenv/stamps.json`).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator  # noqa: UP035  (also runs where an old Python is the target)
from urllib.parse import unquote, urlsplit

FOREIGN = ("nvidia-", "cuda-")  # packages of another accelerator; wanted only where the lock names them
TORN = re.compile(r"\.tmp\w{6}")  # how uv calls a file that it has not finished writing
NOBODYS = ("_virtualenv.py", "_virtualenv.pth", "distutils-precedence.pth")  # made with the environment
MAX_NOTES = 20
CHUNK = 1 << 20
PROBE = """
import importlib, sys
from importlib import metadata
module = importlib.import_module(sys.argv[1])
try:
    version = getattr(module, "__version__", None) or metadata.version(sys.argv[1])
except metadata.PackageNotFoundError:
    version = ""
print("\\n%s" % version)
"""


def main(argv: list[str]) -> int:
    """The exit code: 0 whole, 1 not, 2 wrong usage."""
    verbs = ("state", "check", "mend", "verify", "switch")
    if len(argv) < 2 + (argv[:1] in (["switch"], ["verify"])) or argv[0] not in verbs:
        print("usage: inspector.py state|check|mend|verify|switch ROOT ...")
        return 2
    options: dict[str, list[str]] = {"--import": [], "--over": [], "--uv": [], "--limit": [], "--rehash": [], "": []}
    words = iter(argv[2:])
    for word in words:
        key = word if word in options else ""
        options[key].append(next(words, "") if key and key != "--rehash" else word)
    if argv[0] == "switch":
        return switch(argv[1], argv[2])
    inspection = Inspection(argv[1], options["--over"])
    if argv[0] == "check":
        inspection.read(options[""])
        return report(deviations(inspection, options[""]))
    inspection.read()
    inspection.examine(is_fresh=bool(options["--rehash"]))
    if argv[0] == "state":
        print(json.dumps(inspection.as_json(), sort_keys=True))
        return 0
    return mend(inspection, options["--uv"]) if argv[0] == "mend" else verify(inspection, options)


class Inspection:
    """What lies in the environment: distributions, their files, damage, files with two owners."""

    def __init__(self, root: str, over: list[str]) -> None:
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
        self.num_hashed = 0

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
            full = self.site + "/" + path
            if ".." in path or path.startswith("/"):
                full = os.path.normpath(os.path.join(self.site, path))
            self.owners.setdefault(full, {})[name] = digest
            problem = self.size_problem(full, size)
            if problem:
                self.misfits.append((name, full, problem))
        self.read_source(name, info)

    def size_problem(self, path: str, size: str) -> str:
        """What presence and size tell against a file; "" when nothing. Keeps its stamp."""
        if path not in self.stamps:
            try:
                found = os.stat(path)
            except OSError as error:
                return "is not there" if isinstance(error, FileNotFoundError) else str(error.strerror)
            self.stamps[path] = [found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        found_size = self.stamps[path][0]
        return f"has {found_size} bytes instead of {size}" if size and found_size != int(size) else ""

    def read_source(self, name: str, info: str) -> None:
        """An editable package is as whole as the folder that it points to."""
        direct = read_json(os.path.join(info, "direct_url.json"))
        if not direct.get("dir_info", {}).get("editable"):
            return
        folder = unquote(urlsplit(direct.get("url", "")).path)
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
        for name in sorted(self.damaged):
            if named and name not in named and not self.rivals.get(name):
                self.strange[name] = self.damaged.pop(name)

    def as_json(self) -> dict[str, Any]:
        verified = read_json(os.path.join(self.own, "verified.json")).get("lock", "")
        is_changed = bool(self.damaged) or self.is_put_in_since()
        return {
            "dists": self.versions,
            "damaged": self.damaged,
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
            write_json(marker, {**read_json(marker), "status": "building"})

    def save(self, name: str, value: dict[str, Any]) -> None:
        try:
            write_json(os.path.join(self.own, name), value)
        except OSError:
            # A read-only environment can still be inspected; it is only hashed again next time.
            return


def mend(inspection: Inspection, uv: list[str]) -> int:
    """Takes damaged distributions out: files first, dist-info last, so that a half-done removal is seen again.

    Where two packages quarrel over a file both go, and the plan puts in those that it wants, in its order. What uv
    keeps of them is looked at first: a damaged copy there would come back with every installation.
    """
    out = sorted(set(inspection.damaged).union(*inspection.rivals.values()) if inspection.damaged else ())
    if out:
        inspection.withdraw()
    if out and uv and distrust(uv[0], out):
        return 1
    for name in out:
        print(f"taking out {name}: {inspection.damaged.get(name, 'another package owns a file of it too')}")
        info = inspection.folders[name]
        for path, names in inspection.owners.items():
            is_ours = path.startswith(inspection.root + os.sep) and not path.startswith(info + os.sep)
            is_needed = any(other not in out for other in names)
            if name in names and is_ours and not is_needed and os.path.lexists(path):
                os.remove(path)
                remove_byte_code(path)
        shutil.rmtree(info)
    if out:
        for path in unowned(inspection):
            remove_if_torn(path)
    return 0


def distrust(uv: str, names: list[str]) -> int:
    """Throws the packages that lie altered in uv's cache out of it; what it keeps is unpacked and never looked at."""
    cache = subprocess.run([uv, "cache", "dir"], stdout=subprocess.PIPE, text=True).stdout.strip()
    for name, problem in sorted(altered_in_cache(cache, names).items()):
        print(f"the cache holds {name} altered ({problem}): it is thrown away there", flush=True)
        code = subprocess.run([uv, "cache", "clean", name]).returncode
        if code != 0:
            return code
    return 0


def altered_in_cache(cache: str, names: list[str]) -> dict[str, str]:
    """Name -> problem for the packages of which uv keeps an unpacked wheel that is not whole.

    Source: uv 0.13.8 keeps each unpacked wheel in a folder of its own, `archive-v0/<id>/`.
    """
    found: dict[str, str] = {}
    buckets = [os.path.join(cache, entry) for entry in list_folder(cache) if entry.startswith("archive-v")]
    for folder in (os.path.join(bucket, entry) for bucket in buckets for entry in list_folder(bucket)):
        for entry in list_folder(folder):
            name = normal(entry.partition("-")[0])
            if entry.endswith(".dist-info") and name in names and name not in found:
                problem = archive_problem(folder, os.path.join(folder, entry))
                if problem:
                    found[name] = problem
    return found


def archive_problem(folder: str, info: str) -> str:
    """What is wrong with the first damaged file of an unpacked wheel; "" when it is whole."""
    rows = read_record(info, is_installed=False)
    if rows is None:
        return "RECORD is not there, or not whole"
    path = ""
    try:
        for path, digest, _ in rows:
            if digest.startswith("sha256=") and sha256(os.path.join(folder, path)) != digest:
                return f"{path} has another content"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def verify(inspection: Inspection, options: dict[str, list[str]]) -> int:
    """The last word on an installation; on success it is kept, so that the next look is a quick one."""
    lock, wanted = options[""][0], options[""][1:]
    named = {word.partition("==")[0] for word in wanted}
    others = sorted(set(inspection.versions) - named)
    found = deviations(inspection, wanted + [name for name in others if name in inspection.damaged])
    found += [f"{name} belongs to another accelerator" for name in others if name.startswith(FOREIGN)]
    limit_s = float((options["--limit"] or ["180"])[0])
    with ThreadPoolExecutor(max_workers=2) as pool:
        for problems in pool.map(lambda word: failed_import(word, limit_s), options["--import"] if not found else []):
            found += problems
    print_notes(inspection, others)
    strangers = foreign_pth(inspection)[:MAX_NOTES]
    counts = {"files": len(inspection.owners), "packages": len(inspection.versions), "hashed": inspection.num_hashed}
    print("{files} files of {packages} packages, {hashed} hashed now".format(**counts))
    if not found:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = {"lock": lock, "at": at, "tree": inspection.tree(), "strangers": strangers, **counts}
        try:
            write_json(os.path.join(inspection.own, "verified.json"), text)
        except OSError as error:
            found = [f"{error.filename}: {error.strerror}"]
    return report(found)


def print_notes(inspection: Inspection, others: list[str]) -> None:
    """What is here beyond the lock, without being wrong: packages, altered sources, files of nobody."""
    notes = [f"{name} is here and not in the lock" for name in others]
    notes += [f"{name} is damaged: {problem}" for name, problem in sorted(inspection.strange.items())]
    for name, info in sorted(inspection.folders.items()):
        direct = read_json(os.path.join(info, "direct_url.json"))
        folder = unquote(urlsplit(direct.get("url", "")).path)
        if direct.get("dir_info", {}).get("editable") and is_altered_checkout(folder):
            notes.append(f"the sources of {name} in {folder} are not those that were fetched")
    free = [path for path in unowned(inspection) if not remove_if_torn(path)]
    notes += [f"{os.path.relpath(path, inspection.root)} belongs to no package" for path in free[:MAX_NOTES]]
    if len(free) > MAX_NOTES:
        notes.append(f"{len(free) - MAX_NOTES} more files belong to no package")
    for note in notes:
        print("note: " + note)


def is_altered_checkout(folder: str) -> bool:
    """True when git says that tracked files differ from the commit; False also where git cannot say."""
    try:
        env = {**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
        argv = ["git", "-C", folder, "diff", "--quiet", "HEAD"]
        return subprocess.run(argv, env=env, stderr=subprocess.DEVNULL, timeout=60).returncode == 1
    except (OSError, subprocess.TimeoutExpired):
        return False  # a note only


def unowned(inspection: Inspection) -> Iterator[str]:
    """Files among the packages that no RECORD names, byte code left out; in `bin` only those that a kill left."""
    for folder, _, names in os.walk(inspection.site):
        if os.path.basename(folder) != "__pycache__":
            for name in names:
                path = folder + "/" + name
                if path not in inspection.owners and name not in NOBODYS and not name.endswith(".pyc"):
                    yield path
    scripts = os.path.join(inspection.root, "bin")
    yield from (os.path.join(scripts, name) for name in list_folder(scripts) if TORN.fullmatch(name))


def foreign_pth(inspection: Inspection) -> list[str]:
    """Names of the `.pth` files that no package owns. Python runs the lines of such files whenever it starts."""
    names = [name for name in list_folder(inspection.site) if name.endswith(".pth") and name not in NOBODYS]
    return [name for name in names if inspection.site + "/" + name not in inspection.owners]


def remove_if_torn(path: str) -> bool:
    """True when the file is what a killed uv leaves of one that it was writing; it is removed then."""
    is_torn = TORN.fullmatch(os.path.basename(path)) is not None
    if is_torn:
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


def failed_import(word: str, limit_s: float) -> list[str]:
    """What goes wrong when a module is imported in a child with nothing of another accelerator loaded by itself."""
    name, _, version = word.partition("==")
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", PROBE, name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return [f"import {name} did not end within {limit_s:g} s"]
    last = ((out if process.returncode == 0 else err).rstrip().splitlines() or [f"exit {process.returncode}"])[-1]
    if process.returncode != 0:
        return [f"import {name} fails: {last}"]
    # The default index's aarch64 torch 2.8.0 calls itself 2.8.0+cpu.
    found = last if "+" in version else last.partition("+")[0]
    return [] if not version or found == version else [f"{name} calls itself {last} instead of {version}"]


def switch(root: str, link: str) -> int:
    """Makes the link lead to the environment, by two renames; a stop between them leaves both links valid."""
    root, link = os.path.abspath(root), os.path.abspath(link)
    if os.path.lexists(link) and not os.path.islink(link):
        return report([f"{link} is there and is not a link"])
    before = os.readlink(link) if os.path.islink(link) else ""
    if before != root:
        if before and os.path.isdir(link):
            point(os.path.join(os.path.dirname(link), "previous"), before)
        point(link, root)
    return 0


def point(link: str, target: str) -> None:
    new = link + ".new"
    if os.path.lexists(new):
        os.remove(new)
    os.symlink(target, new)
    os.replace(new, link)


def report(found: list[str]) -> int:
    for problem in found:
        print("problem: " + problem)
    return 1 if found else 0


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def identity(info: str) -> tuple[str, str]:
    """Name (normalised) and version from METADATA; from the folder's name where METADATA cannot be read."""
    stem = os.path.basename(info)[: -len(".dist-info")]
    name, _, version = stem.partition("-")
    try:
        with open(os.path.join(info, "METADATA"), encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip():
                    break
                if line.startswith("Name:"):
                    name = line[5:].strip()
                elif line.startswith("Version:"):
                    version = line[8:].strip()
    except OSError:
        pass  # damaged; RECORD names METADATA, so this is found and said there
    return normal(name), version


def read_record(info: str, *, is_installed: bool = True) -> list[list[str]] | None:
    """Rows (path, hash, size) of RECORD without byte-compiled files; None when it is not there or not whole.

    uv writes it in place and last, so a kill can leave the beginning of one; it ends each row that it wrote.
    """
    try:
        with open(os.path.join(info, "RECORD"), newline="", encoding="utf-8") as file:
            text = file.read()
        rows = [row for row in csv.reader(text.splitlines()) if row]
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    is_whole = bool(rows) and (text.endswith("\n") or not is_installed)
    if not is_whole or any(len(row) != 3 or not (row[2].isdigit() or not row[2]) for row in rows):
        return None
    return [row for row in rows if not row[0].endswith(".pyc")]


def lock_names(path: str) -> set[str]:
    """The packages and sources that a lock names; none where it cannot be read. An older Python reads no TOML."""
    try:
        with open(path, encoding="utf-8") as file:
            return {normal(found) for found in re.findall(r'^name = "([^"]+)"$', file.read(), re.MULTILINE)}
    except OSError:
        return set()


def list_folder(path: str) -> list[str]:
    """Names in a folder; none where there is no such folder."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_json(path: str) -> dict[str, Any]:
    """The document in a file, or {} when it is not there or torn: such files only save time."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: str, value: dict[str, Any]) -> None:
    """Writes a document as a whole or not at all. Raises OSError."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")
    os.replace(path + ".new", path)


def hashed(files: list[tuple[int, str, list[Any]]]) -> Iterator[tuple[str, str, list[Any]]]:
    """Path, hash and stamp of each file that can be read, on a few threads; the largest begin, so none is last."""
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

    workers = min(4, os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for future in [pool.submit(work) for _ in range(workers)]:
            yield from future.result()


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
