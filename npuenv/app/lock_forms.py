"""What becomes of a lock: its text in one of the forms, what departs from it, the ways out of an impossible one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.app.locks import packages_below
from npuenv.core.errors import ExitCode
from npuenv.lock import make
from npuenv.lock.consistent import find_inconsistencies
from npuenv.lock.export import PYLOCK, files_by_hash, pylock_toml, requirements_txt
from npuenv.lock.file import write_lock
from npuenv.lock.sbom import cyclonedx, installed_licences
from npuenv.lock.store import put_text
from npuenv.lock.uv_project import write_uv_project

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.lock.consistent import Inconsistency
    from npuenv.lock.file import Lock
    from npuenv.lock.request import LockedRequest
    from npuenv.resolve.types import Stack

_MOST_WAYS_OUT = 3


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
    return InstalledComparison(find_inconsistencies(packages_below(folder), stack, lock))


def ways_out(found: LockedRequest) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Requirements that each alone make an impossible set resolve, with the sources of those that they override."""
    return make.ways_out(found.stack, found.lock, found.resolver)[:_MOST_WAYS_OUT]


def lock_text(found: LockedRequest, form: str, folder: Path | None, out: Path | None = None) -> tuple[str, str]:
    """File name and text of a lock: toml, requirements, pylock or cyclonedx. Raises BadInput.

    `folder`: what the form reads besides the lock. `out`: where the text goes, from which pylock names its files.
    """
    lock = found.lock
    if form == "cyclonedx":
        licences = installed_licences(packages_below(folder)) if folder else {}
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
