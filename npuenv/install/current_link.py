"""Which of a stack's environments is in force: two links beside them, replaced by rename. Start from `roll_back`.

Putting a new environment in force is the inspector's `switch`, which also works from a script.
"""

from __future__ import annotations

import os
from pathlib import Path

from npuenv.core.errors import BadInput, StepFailed
from npuenv.core.messages import Message
from npuenv.host.writing import settle

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
