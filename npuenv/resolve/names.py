"""Whether the names in a request exist. A misspelt one is an error with the nearest accepted name, never ignored."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv import versions
from npuenv.errors import BadInput
from npuenv.messages import Message
from npuenv.resolve.candidate import packages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.types import Request

FRAMEWORKS = ("verl", "roll", "vllm-ascend", "cpu")
ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "aarch64", "amd64": "x86_64", "arm64": "aarch64"}
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
# Systems that are named in recipes and images, and those users ask about.
_MORE_SYSTEMS = ("ubuntu20.04", "ubuntu24.04", "debian12", "openeuler22.03", "openeuler24.03")
_OWN_OPTION = {"cann": "--cann", "python": "--python", "driver": "--driver"}


def checked(request: Request, matrix: Matrix) -> Request:
    """The request in normal form. Raises: BadInput for a name or version that does not exist, with the nearest one."""
    said = (request.stack, request.framework, request.hardware, request.cann)
    if not any(said):
        raise BadInput(Message("resolve.nothing-asked"), Message("resolve.hint-accepted", {"has": stack_names(matrix)}))
    request = replace(
        request,
        stack=_one_of(request.stack, stack_names(matrix), "stack"),
        framework=_one_of(request.framework, FRAMEWORKS, "framework"),
        hardware=_hardware(request.hardware, matrix),
        arch=ARCHITECTURES.get(_one_of(request.arch, ARCHITECTURES, "arch") or ""),
        python=_one_of(_python(request.python), PYTHONS, "python"),
        pins={versions.normalised(name): version.strip() for name, version in request.pins.items()},
    )
    if request.os is not None:
        systems = {name for row in matrix.images for name in row.os} | set(_MORE_SYSTEMS)
        request = replace(request, os=_one_of(request.os, sorted(systems), "os"))
    if request.driver is not None:
        versions.driver(request.driver)
    _check_cann(request, matrix)
    _check_pins(request, matrix)
    return request


def stack_names(matrix: Matrix) -> tuple[str, ...]:
    """The names of the stacks, in the table's order."""
    return tuple(recipe.id for recipe in matrix.recipes)


def _one_of(name: str | None, accepted: Iterable[str], what: str) -> str | None:
    """The accepted name that equals the given one without case. Raises: BadInput."""
    if name is None:
        return None
    names = tuple(accepted)
    found = next((each for each in names if each.casefold() == name.strip().casefold()), None)
    if found is None:
        raise _unknown(name, names, what)
    return found


def _unknown(name: str, names: Iterable[str], what: str) -> BadInput:
    accepted = tuple(names)
    by_fold = {each.casefold(): each for each in accepted}
    near = difflib.get_close_matches(name.casefold(), list(by_fold), n=1, cutoff=0.6)
    message = Message("resolve.unknown", {"what": Message(f"resolve.what-{what}"), "name": name})
    if near:
        return BadInput(message, Message("resolve.hint-near", {"near": by_fold[near[0]], "has": accepted}))
    return BadInput(message, Message("resolve.hint-accepted", {"has": accepted}))


def _hardware(name: str | None, matrix: Matrix) -> str | None:
    """A generation by its own name or by a chip's: `910B3` is a2. Raises: BadInput."""
    if name is None:
        return None
    row = matrix.hardware_row(name.strip().casefold()) or matrix.hardware_of_chip(name)
    accepted = tuple(each.id for each in matrix.hardware if each.accepted)
    if row is None:
        raise _unknown(name, accepted, "hardware")
    if not row.accepted:
        message = Message("resolve.hardware-not-accepted", {"name": name, "title": row.title})
        raise BadInput(message, Message("resolve.hint-accepted", {"has": accepted}))
    return row.id


def _python(text: str | None) -> str | None:
    """`3.11.14` is 3.11 here: patch releases make no difference to wheels."""
    return ".".join(text.strip().split(".")[:2]) if text is not None else None


def _check_cann(request: Request, matrix: Matrix) -> None:
    if request.cann is None:
        return
    versions.cann(request.cann)
    if matrix.cann_row(request.cann) is None:
        raise _unknown(request.cann, [row.version for row in matrix.cann], "cann")


def _check_pins(request: Request, matrix: Matrix) -> None:
    """Every pinned package must be one that some stack the request can mean speaks of."""
    known = {name for recipe in _meant(request, matrix) for name in packages(recipe)}
    unsupported = {row.package for row in matrix.unsupported if row.package}
    for name, version in request.pins.items():
        if name in _OWN_OPTION:
            raise BadInput(Message("resolve.pin-has-option", {"name": name, "option": _OWN_OPTION[name]}))
        versions.python_version(version)
        if name not in known | unsupported:
            raise _unknown(name, sorted(known), "package")


def _meant(request: Request, matrix: Matrix) -> list[Recipe]:
    return [
        recipe
        for recipe in matrix.recipes
        if request.stack in (None, recipe.id) and request.framework in (None, recipe.framework)
    ] or list(matrix.recipes)
