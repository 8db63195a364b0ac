"""Whether launch files can be rendered for a release, and whether it goes with the stack that was named.

A commit is no version: ROLL's are known by name, and the newest release stands for verl's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import known_releases, nearest_release
from npuenv.preflight.releases import short_name
from npuenv.render.launch.roll_recipe import release_of

if TYPE_CHECKING:
    from npuenv.matrix.rows import Recipe

_COMMIT = re.compile(r"[0-9a-f]{7,40}|main")


def judged_as(framework: str, release: str) -> Message | None:
    """What to tell about a release that is not known itself, but lies near one that is; None for a known one.

    Raises: BadInput for a name that is neither a version nor a commit, and for a version older than all known ones or
    of another major number than the newest.
    Example: verl 0.9.1 -> None; 0.10.0 -> "judged as 0.9.1"; 9.9 -> BadInput
    """
    name = short_name(release)
    if framework == "roll" and not versions.is_release(name):
        return None
    known = _known(framework)
    if name in known:
        return None
    if _COMMIT.fullmatch(name):
        newest = form_of(framework, name)
        return Message("launch.judged-as", {"framework": framework, "release": name, "nearest": newest})
    nearest = nearest_release(framework, name)
    args: dict[str, object] = {"framework": framework, "release": name, "nearest": nearest or "-", "known": known}
    if nearest is None or versions.python_version(name).major != versions.python_version(known[-1]).major:
        raise BadInput(Message("launch.no-release", args), Message("launch.no-release-hint", args))
    return Message("launch.judged-as", args)


def form_of(framework: str, release: str) -> str:
    """The release whose form launch files get: a version itself, and the newest one for a commit of verl."""
    name = short_name(release)
    return known_releases(framework)[-1] if _COMMIT.fullmatch(name) else name


def refuse_contradiction(row: Recipe, framework: str | None, release: str | None) -> None:
    """Refuses a framework or a release that is not the stack's, `row` being the stack's row.

    Two names for one form of ROLL's launch files do not contradict each other. Raises: BadInput.
    """
    args: dict[str, object] = {"stack": row.id, "framework": row.framework, "holds": row.release}
    hint = Message("launch.not-the-stack-hint", args)
    if framework is not None and framework != row.framework:
        raise BadInput(Message("launch.not-the-stack", {**args, "asked": framework}), hint)
    if release is None or _is_same(row, release):
        return
    raise BadInput(Message("launch.not-the-stack", {**args, "asked": f"{row.framework} {release}"}), hint)


def _is_same(row: Recipe, release: str) -> bool:
    if row.framework == "roll":
        rows = load_matrix().roll_releases
        return release_of(release, rows) == release_of(row.release, rows)
    holds, asked = short_name(row.release), short_name(release)
    return holds == asked or not versions.is_release(holds)


def _known(framework: str) -> tuple[str, ...]:
    """The versions that keys were recorded for, that renamed one, or that a stack has, oldest first."""
    rows = (row for row in load_matrix().recipes if row.framework == framework)
    stacks = (row.release for row in rows if versions.is_release(row.release))
    renamed = (row.since for row in load_matrix().launch_keys if row.since and framework == "verl")
    return tuple(sorted({*known_releases(framework), *stacks, *renamed}, key=versions.python_version))
