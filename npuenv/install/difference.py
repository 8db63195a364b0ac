"""What changes between two locks of a stack. Start from `changes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.lock.file import Lock


@dataclass(frozen=True, slots=True)
class Change:
    """A package or source that is not the same in both; "" where one side does not have it."""

    name: str
    before: str
    after: str


def changes(before: Lock, after: Lock) -> tuple[Change, ...]:
    """By name. A package of the same version whose files changed is listed with its hash's first digits."""
    old, new = _versions(before), _versions(after)
    found = []
    for name in sorted(old.keys() | new.keys()):
        one, other = old.get(name, ("", "")), new.get(name, ("", ""))
        if one == other:
            continue
        has_same_version = one[0] == other[0]
        found.append(Change(name, *(" ".join(each) if has_same_version else each[0] for each in (one, other))))
    return tuple(found)


def _versions(lock: Lock) -> dict[str, tuple[str, str]]:
    """Name -> version and what tells two files of one version apart."""
    packages = {each.name: (each.version, ",".join(digest[:8] for digest in each.sha256)) for each in lock.packages}
    return {**packages, **{each.name: (each.ref, each.repo) for each in lock.sources}}
