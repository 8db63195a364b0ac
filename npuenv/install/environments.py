"""The environments on this machine: found, measured, taken away.

Those of the data folder are found by looking; of those elsewhere the data folder keeps a list of places.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.core.errors import BadInput, StepFailed
from npuenv.core.messages import Message
from npuenv.facts.manifest import DAMAGED, MARKER, SCHEMA, Described, describe, text_hash
from npuenv.host.writing import claimed, settle, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npuenv.host.base import Host
    from npuenv.install.locations import Target
    from npuenv.lock.file import Lock
    from npuenv.resolve.types import Stack

CURRENT, PREVIOUS = "current", "previous"


def points_to(link: Path) -> str:
    """The last part of where a link points; "" where there is no link."""
    return Path(os.readlink(link)).name if link.is_symlink() else ""


def previous_of(home: Path) -> Path:
    """The environment that a rollback would return to. Raises BadInput where there is none."""
    name = points_to(home / PREVIOUS)
    if not name or name == points_to(home / CURRENT) or not (home / name).is_dir():
        raise BadInput(Message("store.no-previous", {"path": str(home)}), Message("store.no-previous-hint"))
    return home / name


def roll_back(home: Path) -> tuple[Path, Path]:
    """Exchanges current and previous; gives back the environment now in force and the one that was.

    A stop between the two renames leaves `current` where a rollback wants it. Raises BadInput, StepFailed.
    """
    before, now = home / points_to(home / CURRENT), previous_of(home)
    try:
        _point(home / CURRENT, now)
        if before != home:  # no current link at all: nothing to go back to
            _point(home / PREVIOUS, before)
    except OSError as error:
        said = {"path": str(home), "why": error.strerror or str(error)}
        raise StepFailed(Message("store.not-switched", said)) from error
    return now, before


def _point(link: Path, root: Path) -> None:
    new = link.with_name(f"{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(root)
    new.replace(link)
    settle(link.parent)


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


def manifest_text(
    stack: Stack,
    lock: Lock,
    *,
    kind: str,
    origin: str,
    steps: Sequence[str],
    request: Mapping[str, Any],
    supplied: Mapping[str, str],
    files: Mapping[str, str],
) -> str:
    """The manifest that the last step writes. The same plan gives the same text: no clock, no host.

    `files`: path below the environment -> text of what the plan itself writes there and puts back when it is lost.
    `supplied`: by name, what a source is that came from no repository: `sha256:HEX`, `tree:HEX` or `folder PATH`.
    """
    sources = [{"name": each.name, "ref": each.ref, "how": each.how} for each in stack.git_sources]
    document = {
        "schema": SCHEMA,
        "npuenv": __version__,
        "stack": stack.name,
        "framework": stack.framework,
        "platform": lock.platform,
        "lock": lock.hash,
        "kind": kind,
        "origin": origin,
        "steps": list(steps),
        "sources": [{**each, "from": supplied[each["name"]]} if each["name"] in supplied else each for each in sources],
        "request": dict(request),
        "files": {path: text_hash(text) for path, text in files.items()},
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


# Begins the name that an environment has while it is being deleted: never taken for one again.
_DYING = ".removing-"
_OWN = ".npuenv"
_RUNNING = f"{_OWN}/running"  # its lock is held while anything is done to the environment


@dataclass(frozen=True, slots=True)
class Kept:
    """An environment and its place among those of its stack."""

    described: Described
    role: str  # current | previous | "" | elsewhere: in a folder of the user's choice


def environments(host: Host, data: Path) -> tuple[Kept, ...]:
    """Every environment, by stack and then place. Folders that are none are passed over."""
    found = [*_managed(host, data), *_elsewhere(host, data)]
    return tuple(sorted(found, key=lambda kept: (kept.described.stack, kept.described.root)))


def find(host: Host, data: Path, word: str) -> Kept:
    """The environment that a word means: a folder, a stack's name (its current one), or STACK/HASH.

    A link means what it points to. Raises BadInput for a word that means none, with those there are.
    """
    everything = environments(host, data)
    as_folder = os.path.realpath(word) if os.sep in word or word in (".", "..") else None
    for kept in everything:
        own = kept.described
        is_folder = as_folder == os.path.realpath(own.root)
        if is_folder or word == f"{own.stack}/{own.lock}" or (word == own.stack and kept.role == CURRENT):
            return kept
    alone = [kept for kept in everything if kept.described.stack == word]
    if len(alone) == 1:
        return alone[0]
    if as_folder is not None and (own_here := describe(host, as_folder)) is not None:
        return Kept(own_here, "elsewhere")
    known = tuple(_name(kept) for kept in everything) or (Message("store.none"),)
    raise BadInput(Message("store.no-such", {"word": word, "known": known}), Message("store.no-such-hint"))


def _name(kept: Kept) -> str:
    own = kept.described
    return own.root if kept.role == "elsewhere" else f"{own.stack}/{own.lock}"


def is_complete(host: Host, target: Target, lock: Lock) -> bool:
    """True when the environment says that it was finished with this lock."""
    own = describe(host, target.root)
    return own is not None and own.status == "complete" and own.lock == lock.hash


def remember(root: Path, data: Path) -> None:
    """Notes an environment outside the data folder, so that it is listed. Raises OSError."""
    if not root.is_relative_to(data):
        _write_places(data, [*dict.fromkeys([*_places(data), str(root)])])


def size_mib(root: Path) -> int:
    """What the files of a folder take on disk; hard-linked ones count once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with suppress(FileNotFoundError):
                found = os.lstat(os.path.join(folder, name))
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    total += found.st_blocks * 512
    return total >> 20


def remove(kept: Kept, data: Path) -> None:
    """Deletes an environment: out of sight first, by one rename, so that a stop in between leaves no half one.

    Raises BadInput where an installation works on it or where it is not known to be npuenv's own folder, StepFailed
    for the system.
    """
    root = Path(os.path.realpath(kept.described.root))  # not a link to it, which a rename would take away alone
    if kept.described.kind == "existing":
        raise BadInput(Message("store.not-ours", {"path": str(root)}), Message("store.not-ours-hint"))
    is_managed = root.parent.parent == Path(os.path.realpath(data / "envs"))
    if kept.described.status == DAMAGED and not (kept.described.kind or is_managed):
        said = {"path": str(root), "file": MARKER, "stack": kept.described.stack}
        raise BadInput(Message("store.unproven", said), Message("store.unproven-hint", said))
    with claimed(str(root / _RUNNING)) as is_mine:
        if not is_mine:
            raise BadInput(Message("store.in-use", {"path": str(root)}))
        dying = _dying(root)
        # What a removal of the same name left, where it was interrupted, is in the way.
        if os.path.lexists(dying) and (is_managed or _is_ours(dying)) and not clear(dying, data):
            raise BadInput(Message("store.in-use", {"path": str(dying)}))
        try:
            _forget_links(root)
            root.rename(dying)
            _delete(dying)
            _forget_place(root, data)
        except OSError as error:
            raise _not_removed(root, error) from error


def left_over(host: Host, data: Path) -> tuple[Path, ...]:
    """What nobody needs any more: remains of removals, and environments neither current nor previous."""
    idle = [kept for kept in _managed(host, data) if not kept.role]
    return (*remains(data), *(Path(kept.described.root) for kept in idle))


def remains(data: Path) -> tuple[Path, ...]:
    """What interrupted removals left: folders, and links that earlier versions renamed in place of the folder.

    In the data folder everything of such a name is npuenv's own. Beside an environment elsewhere a folder is only where
    it says so itself, or holds nothing.
    """
    homes = [home for home in sorted((data / "envs").glob("*")) if home.is_dir()]
    inside = [path for home in homes for path in sorted(home.glob(f"{_DYING}*"))]
    places = [Path(form) for place in _places(data) for form in (place, os.path.realpath(place))]
    beside = [path for place in places if place.name and _is_ours(path := _dying(place))]
    return tuple(dict.fromkeys((*inside, *beside)))


def clear(dying: Path, data: Path) -> bool:
    """Deletes one of `remains`; False where another process is at it. Raises StepFailed for the system."""
    root = dying.with_name(dying.name.removeprefix(_DYING))
    try:
        if dying.is_dir() and not dying.is_symlink():
            with claimed(str(dying / _RUNNING)) as is_mine:
                if not is_mine:
                    return False
                _delete(dying)
        else:
            dying.unlink(missing_ok=True)
        if not os.path.lexists(root):
            _forget_place(root, data)
    except OSError as error:
        raise _not_removed(dying, error) from error
    return True


def _dying(root: Path) -> Path:
    return root.with_name(f"{_DYING}{root.name}")


def _is_ours(dying: Path) -> bool:
    if os.path.islink(dying) or os.path.isfile(dying / MARKER):
        return True
    return os.path.isdir(dying) and os.access(dying, os.R_OK) and not os.listdir(dying)


def _delete(dying: Path) -> None:
    """Deletes a folder; its lock and then its marker go last, so that until then it is held and known to be ours."""
    last = [dying / _OWN, dying / MARKER]
    for path in (*(path for path in dying.iterdir() if path not in last), *last):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with suppress(FileNotFoundError):  # gone with its lock, another process may have ended it
        dying.rmdir()


def _not_removed(place: Path, error: OSError) -> StepFailed:
    said = {"path": str(error.filename or place), "why": error.strerror or str(error)}
    return StepFailed(Message("store.not-removed", said), Message("store.not-removed-hint"))


def _managed(host: Host, data: Path) -> Iterator[Kept]:
    for home in sorted((data / "envs").glob("*")):
        roles = {points_to(home / name): name for name in (PREVIOUS, CURRENT)}
        for root in sorted(home.glob("*")):
            if root.is_symlink() or root.name.startswith(_DYING):
                continue
            own = describe(host, str(root))
            if own is not None:
                yield Kept(own, roles.get(root.name, ""))


def _elsewhere(host: Host, data: Path) -> Iterator[Kept]:
    for place in _places(data):
        own = describe(host, place)
        if own is not None:
            yield Kept(own, "elsewhere")


def _places(data: Path) -> list[str]:
    try:
        return (data / "environments.txt").read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return []


def _write_places(data: Path, places: list[str]) -> None:
    if places != _places(data):
        write_whole(str(data / "environments.txt"), "".join(f"{place}\n" for place in places))


def _forget_place(root: Path, data: Path) -> None:
    gone = os.path.realpath(root)
    _write_places(data, [place for place in _places(data) if os.path.realpath(place) != gone])


def _forget_links(root: Path) -> None:
    for name in (CURRENT, PREVIOUS):
        link = root.parent / name
        if link.is_symlink() and points_to(link) == root.name:
            link.unlink()
