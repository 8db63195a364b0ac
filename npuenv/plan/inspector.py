"""A program that runs inside an environment, with its Python, and tells whether every file is what its wheel said.

It is copied into the environment as it stands, so it uses nothing but the standard library and imports nothing of ours.

    python inspector.py state  ROOT                      one JSON document about everything
    python inspector.py check  ROOT NAME[==VERSION]...   exit 0 when these are there and whole
    python inspector.py mend   ROOT                      takes out what is damaged, so that it can be installed again
    python inspector.py verify ROOT LOCK [--import NAME==VERSION] NAME[==VERSION]...

A file counts as whole when size and sha256 agree with RECORD. Hashing happens once: a file whose size and time have not
changed since it was hashed is not hashed again (`.npuenv/stamps.json`).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

FOREIGN = ("nvidia-", "cuda-")  # packages of another accelerator; wanted only where the lock names them


def main(argv: list[str]) -> int:
    """The exit code: 0 whole, 1 not, 2 wrong usage."""
    if len(argv) < 2 or argv[0] not in ("state", "check", "mend", "verify"):
        print("usage: inspector.py state|check|mend|verify ROOT ...")
        return 2
    inspection = Inspection(argv[1])
    if argv[0] == "state":
        print(json.dumps(inspection.as_json(), sort_keys=True))
        return 0
    if argv[0] == "check":
        return report(deviations(inspection, argv[2:]))
    return mend(inspection) if argv[0] == "mend" else verify(inspection, argv[2], argv[3:])


class Inspection:
    """What lies in the environment: distributions, damage, files with two owners."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.own = os.path.join(self.root, ".npuenv")
        self.site = sysconfig.get_paths()["purelib"]
        self.versions: dict[str, str] = {}  # name -> version
        self.damaged: dict[str, str] = {}  # name -> what is wrong with the first damaged file
        self.places: dict[str, str] = {}  # name -> the full path of that file
        self.folders: dict[str, str] = {}  # name -> its dist-info folder
        self.owners: dict[str, dict[str, str]] = {}  # path -> name -> the hash that its RECORD gives
        self.num_files = 0
        self.num_hashed = 0
        self.stamps = read_json(os.path.join(self.own, "stamps.json"))
        self.new_stamps: dict[str, Any] = {}
        for entry in sorted(os.listdir(self.site)):
            if entry.endswith(".dist-info"):
                self.read(os.path.join(self.site, entry))
        self.name_rivals()
        if self.new_stamps != self.stamps:
            self.save("stamps.json", self.new_stamps)

    def read(self, info: str) -> None:
        """Takes one distribution in. Without a readable RECORD nobody knows its files: damaged."""
        name, version = identity(info)
        self.versions[name] = version
        self.folders[name] = info
        rows = read_record(info)
        if not rows:
            self.damaged[name] = "RECORD is not there"
        for path, digest, size in rows:
            full = os.path.normpath(os.path.join(self.site, path))
            self.owners.setdefault(full, {})[name] = digest
            problem = self.problem(full, digest, size)
            if problem and name not in self.damaged:
                self.damaged[name] = path + " " + problem
                self.places[name] = full

    def problem(self, path: str, digest: str, size: str) -> str | None:
        """What is wrong with one file, or None."""
        self.num_files += 1
        try:
            found = os.stat(path)
        except OSError as error:
            return "is not there" if isinstance(error, FileNotFoundError) else str(error.strerror)
        if size and found.st_size != int(size):
            return f"has {found.st_size} bytes instead of {size}"
        if not digest.startswith("sha256="):
            return None
        stamp = [found.st_size, found.st_mtime_ns, digest]
        if self.stamps.get(path) != stamp:
            self.num_hashed += 1
            if sha256(path) != digest:
                return "has another content"
        self.new_stamps[path] = stamp
        return None

    def name_rivals(self) -> None:
        """Says of a damaged file which other distribution wants it with another content, if one does.

        The same content in both is common and harmless: the `__init__.py` of a shared namespace.
        """
        for name, path in self.places.items():
            rivals = [other for other, digest in self.owners[path].items() if digest != self.owners[path][name]]
            if rivals:
                self.damaged[name] += ", it belongs to " + " and ".join(sorted([name, *rivals]))

    def as_json(self) -> dict[str, Any]:
        verified = read_json(os.path.join(self.own, "verified.json")).get("lock", "")
        return {
            "dists": self.versions,
            "damaged": self.damaged,
            "files": self.num_files,
            "hashed": self.num_hashed,
            "verified": "" if self.damaged else verified,
        }

    def withdraw(self) -> None:
        """Takes back that the environment is verified and complete, until it is verified again."""
        if os.path.exists(os.path.join(self.own, "verified.json")):
            os.remove(os.path.join(self.own, "verified.json"))
        marker = os.path.join(self.root, "npuenv-env.json")
        if os.path.exists(marker):
            with open(marker + ".new", "w", encoding="utf-8") as file:
                file.write(json.dumps({**read_json(marker), "status": "building"}, sort_keys=True) + "\n")
            os.replace(marker + ".new", marker)

    def save(self, name: str, value: dict[str, Any]) -> None:
        path = os.path.join(self.own, name)
        try:
            with open(path + ".new", "w", encoding="utf-8") as file:
                json.dump(value, file, sort_keys=True)
            os.replace(path + ".new", path)
        except OSError:
            # A read-only environment can still be inspected; it is only hashed again next time.
            return


def mend(inspection: Inspection) -> int:
    """Takes damaged distributions out: files first, dist-info last, so that a half-done removal is seen again."""
    if inspection.damaged:
        inspection.withdraw()
    for name, problem in sorted(inspection.damaged.items()):
        print(f"taking out {name}: {problem}")
        info = inspection.folders[name]
        for path, names in inspection.owners.items():
            is_ours = path.startswith(inspection.root + os.sep) and not path.startswith(info + os.sep)
            is_needed = any(other not in inspection.damaged for other in names)
            if name in names and is_ours and not is_needed and os.path.lexists(path):
                os.remove(path)
        shutil.rmtree(info)
    if inspection.damaged:
        remove_torn(inspection)
    return 0


def remove_torn(inspection: Inspection) -> None:
    """Removes what a killed uv leaves of a file it was copying: `.tmp` and six characters, owned by nobody."""
    for folder, _, names in os.walk(inspection.site):
        for name in names:
            path = os.path.join(folder, name)
            if re.fullmatch(r"\.tmp\w{6}", name) and path not in inspection.owners:
                os.remove(path)


def verify(inspection: Inspection, lock: str, words: list[str]) -> int:
    """The last word on an installation; on success its lock's hash is kept, so that the next look is a quick one."""
    options: dict[str, list[str]] = {"--import": [], "": []}
    rest = iter(words)
    for word in rest:
        options[word if word in options else ""].append(next(rest) if word in options else word)
    wanted = options[""]
    found = deviations(inspection, wanted)
    named = {word.partition("==")[0] for word in wanted}
    found += [
        f"{n} belongs to another accelerator" for n in inspection.versions if n.startswith(FOREIGN) and n not in named
    ]
    found += [problem for word in options["--import"] for problem in failed_import(word)]
    for name in sorted(set(inspection.versions) - named):
        print(f"note: {name} is here and not in the lock")
    counts = (inspection.num_files, len(inspection.versions), inspection.num_hashed)
    print("{} files of {} packages, {} hashed now".format(*counts))
    if not found:
        inspection.save("verified.json", {"lock": lock})
    return report(found)


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


def failed_import(word: str) -> list[str]:
    """What goes wrong when a module is imported in a child with nothing of another accelerator loaded by itself."""
    name, _, version = word.partition("==")
    code = f"import {name}; print({name}.__version__)"
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    ran = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, env=env)
    lines = (ran.stdout if ran.returncode == 0 else ran.stderr).strip().splitlines()
    last = lines[-1] if lines else f"exit {ran.returncode}"
    if ran.returncode != 0:
        return [f"import {name} fails: {last}"]
    # The default index's aarch64 torch 2.8.0 calls itself 2.8.0+cpu.
    found = last if "+" in version else last.partition("+")[0]
    return [] if found == version else [f"{name} calls itself {last} instead of {version}"]


def report(found: list[str]) -> int:
    for problem in found:
        print("problem: " + problem)
    return 1 if found else 0


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
    return re.sub(r"[-_.]+", "-", name).lower(), version


def read_record(info: str) -> list[list[str]]:
    """Rows (path, hash, size) of RECORD without byte-compiled files; empty when it cannot be read."""
    try:
        with open(os.path.join(info, "RECORD"), newline="", encoding="utf-8") as file:
            return [row for row in csv.reader(file) if len(row) == 3 and not row[0].endswith(".pyc")]
    except (OSError, UnicodeDecodeError, csv.Error):
        return []


def read_json(path: str) -> dict[str, Any]:
    """The document in a file, or {} when it is not there or torn: such files only save time."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def sha256(path: str) -> str:
    """As RECORD writes it: `sha256=` and urlsafe base64 without padding."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
