"""Suggested changes to a request that nothing meets, nearest first. Each is resolved before it is offered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.matrix import Matrix
from npuenv.matrix.release_stacks import all_recipes
from npuenv.resolve.names import says_something
from npuenv.resolve.rules import OPTIONS
from npuenv.resolve.search import evaluate
from npuenv.resolve.types import Clash, Conflict, Request, Stack, WayOut

if TYPE_CHECKING:
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.candidate import Candidate
    from npuenv.resolve.search import Evaluated

Solve = Callable[[Request, Matrix], "Stack | Conflict"]

_MAX_SUGGESTIONS = 4
_ENOUGH = 2  # with so many suggestions among the requested stacks, other stacks are not tried
# How far a change is from the request: a dropped pin is nearest, another hardware farthest.
_COST = {
    "pin": 1,
    "python": 2,
    "cann": 3,
    "driver": 4,
    "os": 10,
    "stack": 5,
    "release": 6,
    "as_of": 6,
    "hardware": 20,
    "arch": 20,
    "framework": 9,
}
_OTHER_FRAMEWORK = 3  # in addition to the cost of another stack


def ways_out(
    evaluated: Sequence[Evaluated], others: Sequence[Recipe], request: Request, matrix: Matrix, solve: Solve
) -> tuple[WayOut, ...]:
    """Up to four changed requests that resolve; one that only adds to the changes of another is left out."""
    found = tuple(itertools.islice(_resolved(evaluated, request, matrix, solve), _MAX_SUGGESTIONS))
    if len(found) >= _ENOUGH:
        return found
    sufficient = [
        _relaxed_fields(clashes)
        for candidate, clashes in evaluated
        if _is_relaxation(candidate, clashes, request, matrix)
    ]
    everything = [*evaluated, *evaluate(others, request, matrix, sufficient)]
    return tuple(itertools.islice(_resolved(everything, request, matrix, solve), _MAX_SUGGESTIONS))


def without_pins(request: Request, changed: Request, matrix: Matrix, solve: Solve) -> tuple[WayOut, ...]:
    """The suggestion to drop the pins that `changed` lacks; empty if there are none or `changed` does not resolve."""
    fields = frozenset(f"pin.{name}" for name in request.pins.keys() - changed.pins.keys())
    solved = solve(changed, matrix)
    if not fields or not isinstance(solved, Stack):
        return ()
    return (WayOut(_says(request, changed, fields, solved), changed, command(changed)),)


def _resolved(evaluated: Sequence[Evaluated], request: Request, matrix: Matrix, solve: Solve) -> Iterator[WayOut]:
    offers: dict[frozenset[str], tuple[int, int, Request]] = {}
    for position, (candidate, clashes) in enumerate(evaluated):
        if not _is_relaxation(candidate, clashes, request, matrix):
            continue
        fields = _relaxed_fields(clashes)
        cost = sum(_cost(field) for field in fields) + (
            _OTHER_FRAMEWORK if _is_other_framework(candidate, request, matrix) else 0
        )
        if not says_something(_relaxed(request, candidate, fields, matrix)):
            fields |= {"framework"}  # the request named only pins
        if fields not in offers or cost < offers[fields][0]:
            offers[fields] = (cost, position, _relaxed(request, candidate, fields, matrix))
    offered: list[frozenset[str]] = []
    for fields, (_, _, changed) in sorted(offers.items(), key=lambda item: item[1][:2]):
        if any(before <= fields for before in offered):
            continue
        solved = solve(changed, matrix)
        if isinstance(solved, Stack):
            offered.append(fields)
            yield WayOut(_says(request, changed, fields, solved), changed, command(changed))


def _is_relaxation(candidate: Candidate, clashes: Sequence[Clash], request: Request, matrix: Matrix) -> bool:
    """Whether a candidate clashes only with the request, not with the matrix."""
    return all(each.rule == "request" for each in clashes) and _has_requested_device(candidate, request, matrix)


def _relaxed_fields(clashes: Sequence[Clash]) -> frozenset[str]:
    return frozenset(str(each.says.args["field"]) for each in clashes)


def _cost(field: str) -> int:
    return _COST[field.split(".")[0]]


def _is_other_framework(candidate: Candidate, request: Request, matrix: Matrix) -> bool:
    """Whether a candidate is of another framework than the requested stack."""
    wanted = next((each for each in all_recipes(matrix) if each.id == request.stack), None)
    return wanted is not None and candidate.recipe.framework != wanted.framework


def _has_requested_device(candidate: Candidate, request: Request, matrix: Matrix) -> bool:
    """Whether a candidate is for the kind of device requested: a CPU stack does not serve an NPU, nor the reverse."""
    wanted = next((each for each in all_recipes(matrix) if each.id == request.stack), None)
    kinds = set()
    if wanted is not None:
        kinds.add(bool(wanted.hardware))
    if request.framework is not None:
        kinds.add(request.framework != "cpu")
    if not kinds and (request.hardware or request.cann or request.driver):
        kinds.add(True)
    return not kinds or bool(candidate.recipe.hardware) in kinds


def _relaxed(request: Request, candidate: Candidate, fields: frozenset[str], matrix: Matrix) -> Request:
    """The request with the given fields set to what the candidate has; a pin is dropped."""
    pins = {name: version for name, version in request.pins.items() if f"pin.{name}" not in fields}
    changed = replace(request, pins=pins)
    for field in sorted(fields):
        if field == "stack":
            changed = replace(changed, stack=candidate.recipe.id)
        elif field == "framework":
            changed = replace(changed, framework=candidate.recipe.framework, release=None)
        elif field == "release":
            changed = replace(changed, release=candidate.recipe.release)
        elif field == "as_of":
            changed = replace(changed, as_of=candidate.recipe.date)
        elif field == "driver":
            changed = replace(changed, driver=_driver_floor(candidate, matrix))
        elif field in OPTIONS:
            changed = replace(changed, **{field: getattr(candidate, field)})
    return changed


def _driver_floor(candidate: Candidate, matrix: Matrix) -> str | None:
    row = matrix.cann_row(candidate.cann or "")
    return row.driver_since or None if row else None


def _says(request: Request, changed: Request, fields: frozenset[str], solved: Stack) -> Message:
    """The sentence of a suggestion: each change, and the stack that results."""
    parts = tuple(_part(request, changed, field) for field in sorted(fields, key=lambda field: (_cost(field), field)))
    return Message("resolve.way-out", {"changes": parts, "stack": solved.name, "verified": solved.verified_by})


def _part(request: Request, changed: Request, field: str) -> Message:
    if field.startswith("pin."):
        name = field.removeprefix("pin.")
        return Message("resolve.drop-pin", {"option": f"--pin {name}=={request.pins[name]}"})
    new = getattr(changed, field)
    if field == "driver":
        return Message("resolve.update-driver", {"driver": new})
    if field == "stack":
        return Message("resolve.take-stack", {"stack": new})
    if field == "release":
        new = f"{changed.framework}=={new}"
    return Message("resolve.take-option", {"option": f"{OPTIONS[field]} {new}"})


def command(request: Request) -> tuple[str, ...]:
    """The command line for a request."""
    args = ["npuenv", "resolve", *((request.stack,) if request.stack else ())]
    for field, option in OPTIONS.items():
        value = getattr(request, field)
        if field == "framework" and request.release is not None:
            value = f"{value}=={request.release}"
        if value is not None and field != "release":
            args += [option, value]
    if request.is_newest:
        args.append("--newest")
    for name, version in sorted(request.pins.items()):
        args += ["--pin", f"{name}=={version}"]
    return tuple(args)
