"""The environments on this machine: where they lie, what is in their folders, listing, rollback and removal.

Those in the data folder are found by listing it; for environments elsewhere the data folder has a list of their paths.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.errors import BadInput, StepFailed
from npuenv.core.messages import Message
from npuenv.facts.manifest import DAMAGED, MARKER, Described, describe
from npuenv.host.writing import claimed, settle, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npuenv.host import Host
    from npuenv.lock.file import Lock


CURRENT, PREVIOUS = "current", "previous"
# Prefix of an environment's name while it is being deleted. Such a folder is never listed.
_DYING = ".removing-"
_OWN = ".npuenv"
_RUNNING = f"{_OWN}/running"  # its lock is held during any operation on the environment


class EnvironmentPlace(NamedTuple):
    """An environment's folder, and the link to a stack's current one (None in a folder of the user's choice)."""

    root: str
    link: str | None = None
    kind: str = "venv"  # venv | conda | existing: an environment that the user already had

    @property
    def python(self) -> str:
        return posixpath.join(self.root, "bin/python")

    def own(self, *parts: str) -> str:
        """A path below the folder of the installation's own files."""
        return posixpath.join(self.root, ".npuenv", *parts)


def data_folder(environ: Mapping[str, str]) -> str:
    """The default folder of environments."""
    return _own_folder(environ, "XDG_DATA_HOME", ".local/share")


def state_folder(environ: Mapping[str, str]) -> str:
    """The folder of records of runs."""
    return _own_folder(environ, "XDG_STATE_HOME", ".local/state")


def _own_folder(environ: Mapping[str, str], variable: str, usual: str) -> str:
    """npuenv's folder in one of the user's. XDG requires that a relative path is ignored.

    Raises: BadInput if HOME names no folder: nobody would look below the root or the working folder.
    """
    base = environ.get(variable, "")
    if not posixpath.isabs(base):
        home = environ["HOME"] if "HOME" in environ else os.path.expanduser("~")
        if not posixpath.isabs(home):
            hint = Message("store.no-home-hint", {"variable": variable})
            raise BadInput(Message("store.no-home", {"home": home}), hint)
        base = posixpath.join(home, usual)
    return posixpath.join(base, "npuenv")


def default_environment(stack: str, environ: Mapping[str, str] | None = None) -> Path:
    """The environment of a stack that was finished last; the path need not exist."""
    return Path(data_folder(os.environ if environ is None else environ), "envs", stack, "current")


def target_for(lock: Lock, environ: Mapping[str, str], chosen: str | None = None) -> EnvironmentPlace:
    """The folder of a lock's environment: `chosen` itself, or `<data>/envs/STACK/<lock hash>` with a `current` link."""
    if chosen is not None:
        return EnvironmentPlace(posixpath.normpath(chosen))
    home = posixpath.join(data_folder(environ), "envs", lock.stack)
    return EnvironmentPlace(posixpath.join(home, lock.hash), posixpath.join(home, "current"))


def points_to(link: Path) -> str:
    """The last part of a link's target; "" if there is no link."""
    return Path(os.readlink(link)).name if link.is_symlink() else ""


def previous_of(home: Path) -> Path:
    """The environment that a rollback would return to. Raises: BadInput if there is none."""
    name = points_to(home / PREVIOUS)
    if not name or name == points_to(home / CURRENT) or not (home / name).is_dir():
        raise BadInput(Message("store.no-previous", {"path": str(home)}), Message("store.no-previous-hint"))
    return home / name


def roll_back(home: Path) -> tuple[Path, Path]:
    """Exchanges current and previous; returns the environment that is now active and the former one.

    An interruption between the two renames leaves `current` where a rollback wants it. Raises: BadInput, StepFailed.
    """
    before, now = home / points_to(home / CURRENT), previous_of(home)
    try:
        _point(home / CURRENT, now)
        if before != home:  # no current link: nothing to return to
            _point(home / PREVIOUS, before)
    except OSError as error:
        args = {"path": str(home), "why": error.strerror or str(error)}
        raise StepFailed(Message("store.not-switched", args)) from error
    return now, before


def _point(link: Path, root: Path) -> None:
    new = link.with_name(f"{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(root)
    new.replace(link)
    settle(link.parent)


class EnvironmentEntry(NamedTuple):
    """An environment and its role among those of its stack."""

    described: Described
    role: str  # current | previous | "" | elsewhere: in a folder of the user's choice


def environments(host: Host, data: Path) -> tuple[EnvironmentEntry, ...]:
    """Every environment, by stack and then role. Other folders are skipped."""
    others = (describe(host, location) for location in _places(data))
    found = [*_managed(host, data), *(EnvironmentEntry(own, "elsewhere") for own in others if own is not None)]
    return tuple(sorted(found, key=lambda entry: (entry.described.stack, entry.described.root)))


def find(host: Host, data: Path, word: str) -> EnvironmentEntry:
    """The environment for a name: a folder, a stack's name (its current one), or STACK/HASH.

    A link means its target. Raises: BadInput for an unknown name, with the known ones.
    """
    everything = environments(host, data)
    as_folder = os.path.realpath(word) if os.sep in word or word in (".", "..") else None
    for entry in everything:
        own = entry.described
        is_folder = as_folder == os.path.realpath(own.root)
        if is_folder or word == f"{own.stack}/{own.lock}" or (word == own.stack and entry.role == CURRENT):
            return entry
    alone = [entry for entry in everything if entry.described.stack == word]
    if len(alone) == 1:
        return alone[0]
    if as_folder is not None and (own_here := describe(host, as_folder)) is not None:
        return EnvironmentEntry(own_here, "elsewhere")
    known = tuple(_name(entry) for entry in everything) or (Message("store.none"),)
    raise BadInput(Message("store.no-such", {"word": word, "known": known}), Message("store.no-such-hint"))


def _name(entry: EnvironmentEntry) -> str:
    own = entry.described
    return own.root if entry.role == "elsewhere" else f"{own.stack}/{own.lock}"


def is_complete(host: Host, target: EnvironmentPlace, lock: Lock) -> bool:
    """Whether the environment's marker says that its installation with this lock was finished."""
    own = describe(host, target.root)
    return own is not None and own.status == "complete" and own.lock == lock.hash


def remember(root: Path, data: Path) -> None:
    """Records an environment outside the data folder, so that it is listed. Raises: OSError."""
    if not root.is_relative_to(data):
        _write_places(data, [*dict.fromkeys([*_places(data), str(root)])])


def size_mib(root: Path) -> int:
    """The disk space of a folder's files; hard-linked ones count once."""
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


def remove(entry: EnvironmentEntry, data: Path) -> None:
    """Deletes an environment. It is renamed first, so that an interruption leaves no partial one under its name.

    Raises: BadInput if an installation works on it or if it is not known to be npuenv's own folder, StepFailed for
    system errors.
    """
    # the folder, not a link to it: a rename would move only the link
    root = Path(os.path.realpath(entry.described.root))
    if entry.described.kind == "existing":
        raise BadInput(Message("store.not-ours", {"path": str(root)}), Message("store.not-ours-hint"))
    is_managed = root.parent.parent == Path(os.path.realpath(data / "envs"))
    if entry.described.status == DAMAGED and not (entry.described.kind or is_managed):
        args = {"path": str(root), "file": MARKER, "stack": entry.described.stack}
        raise BadInput(Message("store.unproven", args), Message("store.unproven-hint", args))
    with claimed(str(root / _RUNNING)) as is_mine:
        if not is_mine:
            raise BadInput(Message("store.in-use", {"path": str(root)}))
        dying = _dying(root)
        # Remains of an interrupted removal of the same name would block the rename.
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
    """Everything unused: remains of removals, and environments that are neither current nor previous."""
    idle = [entry for entry in _managed(host, data) if not entry.role]
    return (*remains(data), *(Path(entry.described.root) for entry in idle))


def remains(data: Path) -> tuple[Path, ...]:
    """Remains of interrupted removals: folders, and links that earlier versions renamed instead of the folder.

    In the data folder every such name is npuenv's own. Beside an environment elsewhere a folder counts only if its
    marker says so, or if it is empty.
    """
    homes = [home for home in sorted((data / "envs").glob("*")) if home.is_dir()]
    inside = [path for home in homes for path in sorted(home.glob(f"{_DYING}*"))]
    locations = [Path(text) for location in _places(data) for text in (location, os.path.realpath(location))]
    beside = [path for location in locations if location.name and _is_ours(path := _dying(location))]
    return tuple(dict.fromkeys((*inside, *beside)))


def clear(dying: Path, data: Path) -> bool:
    """Deletes one of `remains`; False if another process is using it. Raises: StepFailed for system errors."""
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
    """Deletes a folder; its lock and then its marker go last, so that until then it stays locked and identifiable."""
    last = [dying / _OWN, dying / MARKER]
    for path in (*(path for path in dying.iterdir() if path not in last), *last):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with suppress(FileNotFoundError):  # once the lock is gone, another process may have finished the deletion
        dying.rmdir()


def _not_removed(location: Path, error: OSError) -> StepFailed:
    args = {"path": str(error.filename or location), "why": error.strerror or str(error)}
    return StepFailed(Message("store.not-removed", args), Message("store.not-removed-hint"))


def _managed(host: Host, data: Path) -> Iterator[EnvironmentEntry]:
    for home in sorted((data / "envs").glob("*")):
        roles = {points_to(home / name): name for name in (PREVIOUS, CURRENT)}
        for root in sorted(home.glob("*")):
            if root.is_symlink() or root.name.startswith(_DYING):
                continue
            own = describe(host, str(root))
            if own is not None:
                yield EnvironmentEntry(own, roles.get(root.name, ""))


def _places(data: Path) -> list[str]:
    try:
        return (data / "environments.txt").read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return []


def _write_places(data: Path, locations: list[str]) -> None:
    if locations != _places(data):
        write_whole(str(data / "environments.txt"), "".join(f"{location}\n" for location in locations))


def _forget_place(root: Path, data: Path) -> None:
    missing = os.path.realpath(root)
    _write_places(data, [location for location in _places(data) if os.path.realpath(location) != missing])


def _forget_links(root: Path) -> None:
    for name in (CURRENT, PREVIOUS):
        link = root.parent / name
        if link.is_symlink() and points_to(link) == root.name:
            link.unlink()
