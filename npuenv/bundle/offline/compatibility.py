"""Checks whether a bundle matches the user's request, and whether this npuenv still knows its stack.

A bundle holds one stack for one platform, in the versions of the tables that it was made with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.lock.store import answers
from npuenv.resolve import resolve
from npuenv.resolve.names import checked
from npuenv.resolve.release_stacks import recipe_named
from npuenv.resolve.types import Stack

if TYPE_CHECKING:
    from npuenv.bundle.offline.reader import Bundle
    from npuenv.lock.file import Lock
    from npuenv.matrix import Matrix
    from npuenv.resolve.types import Request


def as_bundled(bundle: Bundle) -> Request:
    """The request for exactly the stack of the bundle, independent of today's tables."""
    return replace(bundle.request, stack=bundle.stack, framework=None, release=None)


def require_known(bundle: Bundle, matrix: Matrix) -> None:
    """Raises BadInput if the tables of this npuenv give the stack other versions than the bundle holds.

    The bundle's `install.sh` runs the npuenv that made it.
    """
    try:
        found = resolve(as_bundled(bundle), matrix)
    except BadInput:  # a name that the tables no longer have
        found = None
    if not (isinstance(found, Stack) and answers(bundle.lock, found)):
        args = {"stack": bundle.stack, "npuenv": bundle.manifest.npuenv}
        raise BadInput(Message("bundle.other-tables", args), Message("bundle.other-tables-hint"))


def require_meant(requested: Request, bundle: Bundle, stack: Stack, matrix: Matrix) -> None:
    """Raises BadInput if the options beside the bundle do not match its content, or do not exist."""
    expected = checked(replace(requested, stack=requested.stack or bundle.stack), matrix)
    recipe = recipe_named(stack.name, matrix)
    cann = stack.pin("cann")
    pairs = {
        "STACK": (expected.stack, stack.name),
        "--for": (expected.framework, stack.framework),
        "--for ...==": (expected.release, recipe.release if recipe else None),
        "--arch": (expected.arch, stack.platform.arch),
        "--python": (expected.python, stack.platform.python),
        "--hardware": (expected.hardware, stack.platform.hardware),
        "--os": (expected.os, stack.platform.os),
        "--as-of": (expected.as_of, bundle.request.as_of),
        "--newest": ("on" if expected.is_newest else None, "on" if bundle.request.is_newest else None),
    }
    other = {option: wanted for option, (wanted, held) in pairs.items() if wanted is not None and wanted != held}
    if expected.cann and not (cann and versions.cann(expected.cann) == versions.cann(cann.version)):
        other["--cann"] = expected.cann
    other |= {f"--pin {name}==": each for name, each in expected.pins.items() if not _holds(bundle.lock, name, each)}
    for option, wanted in other.items():
        args = {"option": option, "wanted": wanted, "stack": stack.name, "platform": stack.platform.tag}
        raise BadInput(Message("install.bundle-other", args), Message("install.bundle-other-hint"))


def _holds(lock: Lock, name: str, version: str) -> bool:
    package = lock.package(name)
    return package is not None and versions.accepts(f"=={version}", package.version)
