"""Prints one marked JSON line about the interpreter that runs it and the distributions on its path."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES_AT_MOST = 5
# Files that many packages put at the same place and that overwrite nothing of worth.
HARMLESS = ("__pycache__/", "../", "tests/", "test/", "docs/", "examples/", "LICENSE", "README")


def owned(distribution: metadata.Distribution) -> Iterator[str]:
    """The files a distribution owns, as its RECORD names them; `distribution.files` would parse every hash."""
    for line in (distribution.read_text("RECORD") or "").splitlines():
        path = line.split(",", 1)[0].strip('"')
        if "__pycache__/" not in path and ".dist-info/" not in path and not path.startswith(HARMLESS):
            yield path


class Inventory:
    """Distributions by name: the first on the path counts, as it does for imports."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.twice: dict[str, list[str]] = {}
        self.owners: dict[tuple[str, str], str] = {}
        self.shared: dict[tuple[str, str], list[str]] = {}

    def add(self, distribution: metadata.Distribution) -> None:
        name = distribution.metadata["Name"]
        if not name:
            return
        key = name.lower().replace("_", "-").replace(".", "-")
        if key in self.versions:
            self.twice.setdefault(key, [self.versions[key]]).append(distribution.version)
            return
        self.versions[key] = distribution.version
        folder = str(distribution.locate_file(""))
        for path in owned(distribution):
            other = self.owners.setdefault((folder, path), key)
            if other != key:
                self.shared.setdefault((other, key), []).append(path)


def triton_backends() -> list[str]:
    """The backend folders of the triton that an import would find."""
    for entry in sys.path:
        folder = os.path.join(entry, "triton", "backends")
        if os.path.isdir(folder):
            names = [name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name))]
            return sorted(name for name in names if not name.startswith("_"))
    return []


def answer() -> dict[str, object]:
    inventory = Inventory()
    for distribution in metadata.distributions():
        inventory.add(distribution)
    return {
        "version": platform.python_version(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "is_conda": os.path.isdir(os.path.join(sys.prefix, "conda-meta")),
        "libc": " ".join(platform.libc_ver()),
        "distributions": dict(sorted(inventory.versions.items())),
        "installed_twice": dict(sorted(inventory.twice.items())),
        "shared_files": [
            {"owners": list(pair), "count": len(paths), "examples": sorted(paths)[:EXAMPLES_AT_MOST]}
            for pair, paths in sorted(inventory.shared.items())
        ],
        "triton_backends": triton_backends(),
    }


# "" on the path is the working folder: what lies there is not installed.
sys.path[:] = [entry for entry in sys.path if entry and os.path.isdir(entry)]
print("NPUENV-ANSWER " + json.dumps(answer(), sort_keys=True))
