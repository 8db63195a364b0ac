"""What `npuenv lock` does beyond finding one lock: its text in other forms, a comparison with a folder, the locks of
all published stacks (`lock_published`), and whether what locks name is still offered (`verify_locks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.app import resolution
from npuenv.app.progress import SILENT, Progress
from npuenv.app.resolution import LockOptions, this_resolver
from npuenv.core.errors import BadInput, CannotTell, ExitCode
from npuenv.core.messages import Message
from npuenv.lock import store
from npuenv.lock.checking import find_inconsistencies, verify_lock
from npuenv.lock.export import PYLOCK, files_by_hash, pylock_toml, requirements_txt
from npuenv.lock.file import PARTIAL, write_lock
from npuenv.lock.forms import cyclonedx, installed_licences, write_uv_project
from npuenv.lock.store import locks_named, put_text, shelf_locks
from npuenv.maintain.lock_all import GridRow, lock_all
from npuenv.matrix import load_matrix
from npuenv.report.shelf import is_lost, is_unasked, shelf_page, shelf_rows
from npuenv.resolve import published_requests, resolve
from npuenv.resolve.request import in_normal_form
from npuenv.resolve.types import Conflict, Request, Stack

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npuenv.lock.checking import Inconsistency
    from npuenv.lock.file import Lock
    from npuenv.lock.store import LockedRequest
    from npuenv.lock.uv import Resolver
    from npuenv.report.shelf import Checked, ShelfRow


@dataclass(frozen=True, slots=True)
class InstalledComparison:
    """What in a folder departs from a lock, or from what its packages require."""

    found: tuple[Inconsistency, ...]

    @property
    def num_unexplained(self) -> int:
        """Those that the stack does not bring about on purpose."""
        return sum(each.because is None for each in self.found)

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.PROBLEMS if self.num_unexplained else ExitCode.FINE


def compare_installed(folder: Path, stack: Stack, lock: Lock) -> InstalledComparison:
    """What in an environment, or a folder of packages, departs from the lock. Raises BadInput for no such folder."""
    return InstalledComparison(find_inconsistencies(_packages_below(folder), stack, lock))


def _packages_below(folder: Path) -> Path:
    """The packages of an environment; a folder that is none holds them itself. Raises BadInput for any other folder."""
    if not folder.is_dir():
        raise BadInput(Message("consistent.no-folder", {"path": str(folder)}))
    packages = min(folder.glob("lib/python3.*/site-packages"), default=folder)
    if packages == folder and not any(folder.glob("*.*-info")):
        raise BadInput(Message("consistent.no-packages", {"path": str(folder)}))
    return packages


def lock_text(found: LockedRequest, form: str, folder: Path | None, out: Path | None = None) -> tuple[str, str]:
    """File name and text of a lock: toml, requirements, pylock or cyclonedx. Raises BadInput.

    `folder`: what the form reads besides the lock. `out`: where the text goes, from which pylock names its files.
    """
    lock = found.lock
    if form == "cyclonedx":
        licences = installed_licences(_packages_below(folder)) if folder else {}
        return f"{lock.stack}.{lock.platform}.cdx.json", cyclonedx(lock, licences)
    if form == "requirements":
        return f"{lock.stack}.{lock.platform}.txt", requirements_txt(lock, found.resolver.indexes)
    if folder is not None:
        return PYLOCK, pylock_toml(lock, files_by_hash(folder, out))
    return lock.file_name, write_lock(lock)


def put_lock_form(found: LockedRequest, form: str, folder: Path | None, out: Path) -> Path:
    """Writes a lock into a folder, in one of the forms or as a project of uv; the file. Raises BadInput."""
    if form == "uv":
        return write_uv_project(found.lock, found.stack.platform, found.resolver, out)
    name, text = lock_text(found, form, folder, out)
    return put_text(text, out / name)


@dataclass(frozen=True, slots=True)
class PublishedLocks:
    """What the stacks that were chosen have."""

    rows: tuple[ShelfRow, ...]
    error: CannotTell | None  # why not all could be locked

    @property
    def exit_code(self) -> ExitCode:
        """UNKNOWN where a lock is partial, or could not be made."""
        is_open = self.error is not None or any(row.status == PARTIAL for row in self.rows)
        return ExitCode.UNKNOWN if is_open else ExitCode.FINE


@dataclass(frozen=True, slots=True)
class VerifiedLocks:
    """What became of everything that the locks name."""

    locks: tuple[Checked, ...]

    @property
    def exit_code(self) -> ExitCode:
        """PROBLEMS where something is no longer offered as it was, UNKNOWN where an index could not be asked."""
        rows = [row for _, of_lock in self.locks for row in of_lock]
        return ExitCode.PROBLEMS if is_lost(rows) else ExitCode.UNKNOWN if is_unasked(rows) else ExitCode.FINE


def lock_published(request: Request, options: LockOptions | None = None, progress: Progress = SILENT) -> PublishedLocks:
    """Locks the published stacks that a request leaves; what is there and still answers the same inputs stays.

    Stack, framework, hardware, architecture, Python and CANN choose. The page beside the locks is about all published
    stacks: it is written when none was left out. Raises BadInput where the request leaves none.
    """
    options = options or LockOptions()
    folder = options.out or resolution.own_locks()
    matrix = load_matrix()
    request = in_normal_form(request, matrix)
    every = tuple(published_requests(matrix))
    possible = [(each, resolve(each, matrix)) for each in every if _may_be_chosen(each, request)]
    chosen = [(each, result) for each, result in possible if _is_chosen(result, request)]
    if not chosen:
        raise BadInput(Message("lock.nothing-asked"))
    stacks = [result for _, result in chosen if isinstance(result, Stack)]
    resolver = this_resolver(progress, is_offline=options.is_offline)
    done, error = _lock_all(stacks, resolver, folder, options, progress)
    locks = shelf_locks(folder)
    if error is None and len(chosen) == len(every):
        put_text(shelf_page(shelf_rows(chosen, locks, done)), folder / "README.md")
    places = {(row.stack, row.platform) for row in done}
    rows = shelf_rows(chosen, [lock for lock in locks if (lock.stack, lock.platform) in places], done)
    return PublishedLocks(rows, error)


def _lock_all(
    stacks: Sequence[Stack], resolver: Resolver, folder: Path, options: LockOptions, progress: Progress
) -> tuple[list[GridRow], CannotTell | None]:
    """What is known of the stacks, and the error that kept the others from being asked."""
    done: list[GridRow] = []
    with progress.counting(len(stacks)) as tick:

        def add(row: GridRow) -> None:
            done.append(row)
            tick(f"{row.stack} {row.platform}")

        try:
            lock_all(stacks, resolver, folder, on_done=add, renew=options.renew, fill=options.fill)
        except CannotTell as error:
            return done, error
    return done, None


def _may_be_chosen(published: Request, request: Request) -> bool:
    """False for a published stack that is left out whatever it resolves to: to resolve all takes seconds."""
    pairs = [(request.stack, published.stack), (request.hardware, published.hardware), (request.arch, published.arch)]
    pairs += [(request.python, published.python)] if published.python else []
    return all(wanted in (None, there) for wanted, there in pairs)


def _is_chosen(result: Stack | Conflict, request: Request) -> bool:
    """Whether the request leaves what a published stack resolved to; of a conflict only its request is known."""
    if not isinstance(result, Stack):
        return not (request.framework or request.python or request.cann)
    cann = result.pin("cann")
    pairs = (
        (request.framework, result.framework),
        (request.python, result.platform.python),
        (request.cann, cann.version if cann else None),
    )
    return all(wanted in (None, there) for wanted, there in pairs)


def verify_locks(words: Sequence[str] = (), progress: Progress = SILENT) -> VerifiedLocks:
    """Asks the indexes for everything that locks name: those of files and stack names, without words the shipped ones.

    Raises BadInput for a word that is neither, and for a lock that was edited.
    """
    resolver = this_resolver(progress)
    locks = locks_named(words, (resolution.own_locks(), store.shipped_folder()))
    found = []
    with progress.counting(len(locks)) as tick:
        for lock in locks:
            found.append((lock, verify_lock(lock, resolver)))
            tick(lock.file_name)
    return VerifiedLocks(tuple(found))
