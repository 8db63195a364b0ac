"""Compares every installed file with the SHA-256 that its distribution recorded, and prints one marked JSON line."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from npuenv.facts.target.records import EXAMPLES_AT_MOST, Distribution, Folder, Tally, normal

if TYPE_CHECKING:
    from collections.abc import Iterator

ENOUGH_S = 90.0  # a slow network disk: what was read until then is the answer
CHUNK = 1 << 20


def recorded(distribution: Distribution) -> Iterator[tuple[str, str, str]]:
    """Path, digest and size of each file with a digest, compiled files and those of other tools left out."""
    for line in (distribution.record or "").splitlines():
        path, mark, rest = line.rpartition(",sha256=")
        if mark and not path.endswith(".pyc"):
            wanted, _, size = rest.partition(",")
            yield path.strip('"').replace('""', '"'), wanted, size


def digest(path: str) -> str:
    """As RECORD writes it: URL-safe base64 without padding."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            chunk = file.read(CHUNK)
            if not chunk:
                return base64.urlsafe_b64encode(found.digest()).rstrip(b"=").decode("ascii")
            found.update(chunk)


def is_told(place: str, claims: list[tuple[str, str, str, str]]) -> bool:
    """Whether the inventory tells already that a file is not as recorded, by its size. Raises OSError."""
    size = claims[0][3]
    return len(claims) == 1 and size.isdigit() and os.stat(place).st_size != int(size)


def answer(path: list[str]) -> dict[str, object]:
    started, looked, is_complete = time.monotonic(), 0, True
    altered = Tally()
    unreadable: list[str] = []
    owned: dict[str, list[tuple[str, str, str, str]]] = {}
    for folder in path:
        for distribution in Folder(folder).distributions():
            for file, wanted, size in recorded(distribution):
                place = os.path.normpath(os.path.join(folder, file))
                owned.setdefault(place, []).append((normal(distribution.name), file, wanted, size))
    for place, claims in owned.items():
        if time.monotonic() - started > ENOUGH_S:
            is_complete = False
            break
        try:
            has = "" if is_told(place, claims) else digest(place)
        except FileNotFoundError:
            continue  # missing files are told apart by the inventory
        except OSError:
            unreadable.append(place)
            continue
        looked += 1
        if not has:
            continue
        # With two owners either content is right; which of them won is a question of its own.
        if all(has != wanted for _, _, wanted, _ in claims):
            for name, file, _, _ in claims:
                altered.add(name, file)
    return {
        "looked": looked,
        "is_complete": is_complete,
        "altered": altered.rows(),
        "unreadable": sorted(unreadable)[:EXAMPLES_AT_MOST],
    }


entries: dict[str, str] = {}
for entry in sys.path:
    if entry and os.path.isdir(entry):
        entries.setdefault(os.path.realpath(entry), entry)
print("\nNPUENV-ANSWER " + json.dumps(answer(list(entries.values())), sort_keys=True))
