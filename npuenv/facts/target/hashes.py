"""Compares every installed file with the SHA-256 that its distribution recorded, and prints one marked JSON line."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from npuenv.facts.target.records import EXAMPLES_AT_MOST, Distribution, Folder, normal

if TYPE_CHECKING:
    from collections.abc import Iterator

ENOUGH_S = 90.0  # a slow network disk: what was read until then is the answer
CHUNK = 1 << 20


def recorded(distribution: Distribution) -> Iterator[tuple[str, str]]:
    """Path and digest of each file with one, compiled files and those of other tools left out."""
    for line in (distribution.record or "").splitlines():
        path, mark, rest = line.rpartition(",sha256=")
        if mark and not path.endswith(".pyc"):
            yield path.strip('"').replace('""', '"'), rest.partition(",")[0]


def digest(path: str) -> str:
    """As RECORD writes it: URL-safe base64 without padding."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            chunk = file.read(CHUNK)
            if not chunk:
                return base64.urlsafe_b64encode(found.digest()).rstrip(b"=").decode("ascii")
            found.update(chunk)


def answer(path: list[str]) -> dict[str, object]:
    started, looked, is_complete = time.monotonic(), 0, True
    altered: dict[str, list[str]] = {}
    unreadable: list[str] = []
    owned: dict[str, list[tuple[str, str, str]]] = {}
    for folder in path:
        for distribution in Folder(folder).distributions():
            for file, wanted in recorded(distribution):
                place = os.path.normpath(os.path.join(folder, file))
                owned.setdefault(place, []).append((normal(distribution.name), file, wanted))
    for place, claims in owned.items():
        if time.monotonic() - started > ENOUGH_S:
            is_complete = False
            break
        try:
            has = digest(place)
        except FileNotFoundError:
            continue  # missing files are told apart by the inventory
        except OSError:
            unreadable.append(place)
            continue
        looked += 1
        # With two owners either content is right; which of them won is a question of its own.
        if all(has != wanted for _, _, wanted in claims):
            for name, file, _ in claims:
                altered.setdefault(name, []).append(file)
    return {
        "looked": looked,
        "is_complete": is_complete,
        "altered": [row(name, files) for name, files in sorted(altered.items())],
        "unreadable": sorted(unreadable)[:EXAMPLES_AT_MOST],
    }


def row(name: str, files: list[str]) -> dict[str, object]:
    native = sorted(file for file in files if file.endswith(".so") or ".so." in file)
    examples = (native + sorted(set(files) - set(native)))[:EXAMPLES_AT_MOST]
    return {"owner": name, "count": len(files), "native": len(native), "examples": examples}


entries: dict[str, str] = {}
for entry in sys.path:
    if entry and os.path.isdir(entry):
        entries.setdefault(os.path.realpath(entry), entry)
print("\nNPUENV-ANSWER " + json.dumps(answer(list(entries.values())), sort_keys=True))
