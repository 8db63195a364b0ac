"""One distribution as its folder tells it, and the folders of a path. Part of the programs `inventory` and `hashes`.

Read from the folders themselves, not through importlib.metadata: damaged metadata must neither stop nor hide the rest,
and a few hundred e-mail headers would cost more than the whole answer.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys

from npuenv.facts.target.dist_info import headers, is_hash, record_rows, requirements

TYPE_CHECKING = False  # as in the first part
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

EXAMPLES_AT_MOST = 5
LIBRARIES_AT_MOST = 64  # torch for CUDA has 20, and what fails to load names one of them


def read(path: str) -> str | None:
    """The text of a file; None where there is none. Raises OSError where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


class Distribution:
    """One dist-info or egg-info: what it says of itself, and what is wrong with it."""

    def __init__(self, folder: str, entry: str) -> None:
        self.folder, self.entry = folder, entry
        self.place = os.path.join(folder, entry)
        self.trouble: list[str] = []
        stem = entry.rsplit(".", 1)[0]
        self.name, _, self.version = stem.partition("-")
        self.version = self.version.split("-py")[0]
        self.requires: list[str] = []
        self.requires_python = ""
        self.installer = ((self.text("INSTALLER") if self.is_wheel else None) or "").strip()
        self.is_of_others = self.installer in ("debian", "rpm") or is_of_others(folder)
        self._read_metadata()
        self.record = self._read_record()
        if self.is_of_others:
            self.trouble, self.record = [], ""

    @property
    def is_wheel(self) -> bool:
        return self.entry.endswith(".dist-info")

    @property
    def is_installed(self) -> bool:
        """False for an egg-info elsewhere: what a build leaves in a checkout that stands on PYTHONPATH."""
        return self.is_wheel or self.folder.endswith(("site-packages", "dist-packages"))

    def text(self, name: str) -> str | None:
        try:
            return read(os.path.join(self.place, name))
        except OSError as error:
            self.trouble.append(f"{name}: {error.strerror}")
            return None

    def _read_metadata(self) -> None:
        name = "METADATA" if self.is_wheel else "PKG-INFO" if os.path.isdir(self.place) else ""
        try:
            found = headers(os.path.join(self.place, name))
        except (FileNotFoundError, NotADirectoryError):
            if not self.trouble:
                self.trouble.append("no METADATA" if self.is_wheel else "no PKG-INFO")
            return
        except OSError as error:
            self.trouble.append(f"{name}: {error.strerror}")
            return
        if not found.get("name") or not found.get("version"):
            self.trouble.append("METADATA without a name or a version")
        self.name = (found.get("name") or [self.name])[0] or self.name
        self.version = (found.get("version") or [self.version])[0] or self.version
        self.requires = requirements(found)
        self.requires_python = (found.get("requires-python") or [""])[0]

    def _read_record(self) -> str:
        """The text of RECORD; "" where it cannot be read. System packagers leave it out, pip and uv never do."""
        text = self.text("RECORD") if self.is_wheel else None
        is_of_pip = self.is_wheel and self.installer in ("pip", "uv")
        if text is None:
            if is_of_pip and not self.trouble:
                self.trouble.append("no RECORD")
            return ""
        if is_of_pip and ("\0" in text or "," not in text):
            self.trouble.append("RECORD names no file")
            return ""
        if is_of_pip and not text.endswith("\n"):
            self.trouble.append("RECORD breaks off")  # both end each line that they write
        else:
            rest = (line for line in text.splitlines() if ",sha256=" not in line)
            if any(not is_hash(row[1]) for row in record_rows(rest) if len(row) == 3):
                self.trouble.append("RECORD has something else in place of a hash")
        return text

    def files(self) -> Iterator[tuple[str, str, str]]:
        """Path, hash and size as RECORD names them, each "" where it gives none; no compiled files."""
        for row in record_rows(self.record.splitlines()):
            path, digest, size = row if len(row) == 3 else (row[0], "", "")
            if not path.endswith(".pyc") and "__pycache__/" not in path:
                yield path, digest, size

    def origin(self) -> dict[str, Any]:
        """Where it was installed from, when that is no index; {} else."""
        text = self.text("direct_url.json") if self.is_wheel else None
        try:
            found = json.loads(text) if text else {}
            url = re.sub(r"//[^/@]*@", "//", str(found.get("url", "")))
            commit = str((found.get("vcs_info") or {}).get("commit_id", ""))
            is_editable = bool((found.get("dir_info") or {}).get("editable"))
        except (ValueError, AttributeError, RecursionError):
            self.trouble.append("direct_url.json cannot be read")
            return {}
        return {"url": url, "commit": commit, "is_editable": is_editable} if url else {}

    def foreign_tag(self) -> str:
        """The tag of the wheel it came from when no tag of it fits this interpreter; "" else."""
        text = self.text("WHEEL") if self.is_wheel and not self.is_of_others else None
        tags = [line[4:].strip() for line in (text or "").splitlines() if line.startswith("Tag:")]
        return tags[0] if tags and not any(fits(tag) for tag in tags) else ""


def is_native(path: str) -> bool:
    return path.split(" (")[0].endswith(".so") or ".so." in path


class Tally:
    """Counts per owner, with examples: all libraries, they matter most, then a few others, modules first."""

    def __init__(self) -> None:
        self.paths: dict[str, list[str]] = {}

    def add(self, owner: str, path: str) -> None:
        self.paths.setdefault(owner, []).append(path)

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for owner, paths in sorted(self.paths.items()):
            native = sorted(path for path in paths if is_native(path))
            others = sorted(set(paths) - set(native), key=lambda path: (".py" not in path, path))
            examples = native[:LIBRARIES_AT_MOST] + others[: max(0, EXAMPLES_AT_MOST - len(native))]
            rows.append({"owner": owner, "count": len(paths), "native": len(native), "examples": examples})
        return rows


def is_of_others(folder: str) -> bool:
    """Whether a folder is kept by the system's packager or by CANN, which puts its own on PYTHONPATH.

    They strip files and leave links behind; what they installed is the business of their own tools.
    """
    if folder.startswith("/usr/lib/python3/dist-packages") or "/Ascend/" in folder:
        return True
    homes = [os.environ.get(name) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")]
    return any(home and folder.startswith(home.rstrip("/") + "/") for home in homes)


def fits(tag: str) -> bool:
    """Whether a wheel with this tag runs here; only what is certain says no."""
    parts = [part.split(".") for part in tag.split("-")]  # "py2.py3-none-any" stands for two tags
    if len(parts) != 3:
        return True
    return any(fits_one(python, abi, system) for python in parts[0] for abi in parts[1] for system in parts[2])


def fits_one(python: str, abi: str, system: str) -> bool:
    machine = platform.machine()
    known = ("x86_64", "aarch64")
    if any(system.endswith(other) and other != machine for other in known) and machine in known:
        return False
    if "musllinux" in system and platform.libc_ver()[0] == "glibc":
        return False
    match = re.match(r"cp3(\d+)$", python)
    if match is None:
        return True
    minor = int(match.group(1))
    return minor <= sys.version_info[1] if abi in ("abi3", "none") else minor == sys.version_info[1]


class PathEntry:
    """One entry of the path."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.error = ""
        self.names: list[str] = []
        try:
            self.names = sorted(os.listdir(place))
        except OSError as error:
            self.error = error.strerror or str(error)

    def distributions(self) -> Iterator[Distribution]:
        for name in self.names:
            if name.endswith((".dist-info", ".egg-info")) and not name.startswith("~"):
                yield Distribution(self.place, name)

    def links(self) -> Iterator[dict[str, Any]]:
        """The .pth files that add folders, with those that are gone."""
        for name in self.names:
            if name.endswith((".pth", ".egg-link")):
                try:
                    lines = [line.strip() for line in (read(os.path.join(self.place, name)) or "").splitlines()]
                except OSError as error:
                    yield {"file": name, "adds": [], "gone": [], "error": error.strerror}
                    continue
                adds = [line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
                adds = [line for line in adds if os.path.isabs(line)]
                if adds:
                    gone = [line for line in adds if not os.path.exists(line)]
                    yield {"file": name, "adds": adds[:EXAMPLES_AT_MOST], "gone": gone[:EXAMPLES_AT_MOST], "error": ""}
