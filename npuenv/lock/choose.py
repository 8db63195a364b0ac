"""Chooses the stack of a request; of several that fit, one whose lock is complete."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.lock.file import COMPLETE
from npuenv.lock.store import shipped_folder
from npuenv.resolve import resolve
from npuenv.resolve.candidate import by_preference, is_candidate_release
from npuenv.resolve.names import checked
from npuenv.resolve.types import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from npuenv.matrix import Matrix
    from npuenv.resolve.types import Conflict, Request

_STATUS = re.compile(r'^status = "(\w+)"$', re.MULTILINE)
_STANDINGS = ("measured-here", "published", "recommended", "compatible", "satisfiable")
# An older stack has other features: the first ROLL guide describes no training run of 2026.
_AT_MOST = timedelta(days=183)
_HEAD = 2048  # characters: the status is among the first lines of a lock


def choose_stack(request: Request, matrix: Matrix, local_folder: Path) -> Stack | Conflict:
    """Like `resolve`, but if no stack is named, one with a complete lock is preferred to one with a partial lock.

    The other stack must be for the same use and hardware, have at least the same confidence level, and be about as
    young. `local_folder`: that of the locks made on this machine. The notes of the result name the stack that was
    passed over.
    """
    first = resolve(request, matrix)
    if not isinstance(first, Stack) or request.stack is not None:
        return first
    if request.is_newest:
        return _beside(first, resolve(replace(request, is_newest=False), matrix), "resolve.note-newest")
    if _status(first, local_folder) in (None, COMPLETE):
        return first
    for stack in _others(request, matrix):
        if _serves_as_well(stack, first) and _status(stack, local_folder) == COMPLETE:
            return _beside(stack, first, "resolve.note-complete-lock")
    return first


def _others(request: Request, matrix: Matrix) -> Iterator[Stack]:
    for recipe in by_preference(checked(request, matrix), matrix)[0]:
        if is_candidate_release(recipe):
            continue
        result = resolve(replace(request, stack=recipe.id), matrix)
        if isinstance(result, Stack):
            yield result


def _serves_as_well(stack: Stack, first: Stack) -> bool:
    is_alike = (stack.framework, stack.platform.hardware) == (first.framework, first.platform.hardware)
    is_of_its_time = date.fromisoformat(stack.date) >= date.fromisoformat(first.date) - _AT_MOST
    return is_alike and is_of_its_time and _STANDINGS.index(stack.verified_by) <= _STANDINGS.index(first.verified_by)


def _beside(stack: Stack, other: Stack | Conflict, key: str) -> Stack:
    """The stack with a note that names the one that was passed over."""
    if not isinstance(other, Stack) or other.name == stack.name:
        return stack
    return replace(stack, notes=(Message(key, {"stack": stack.name, "other": other.name}), *stack.notes))


def _status(stack: Stack, local_folder: Path) -> str | None:
    """The best status among the stack's locks; None if there is no lock."""
    name = f"{stack.name}.{stack.platform.tag}.toml"
    found = set()
    for folder in (local_folder, shipped_folder()):
        if (folder / name).is_file():
            with (folder / name).open(encoding="utf-8", errors="replace") as lock:
                found.update(_STATUS.findall(lock.read(_HEAD)))
    return COMPLETE if COMPLETE in found else next(iter(found), None)
