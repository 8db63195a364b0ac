"""What to change so that something fits: changed requests, nearest first, each one resolved before it is offered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.matrix import Matrix
from npuenv.resolve.names import says_something
from npuenv.resolve.release_stacks import all_recipes
from npuenv.resolve.rules import OPTIONS
from npuenv.resolve.search import judged as judge
from npuenv.resolve.types import Clash, Conflict, Request, Stack, WayOut

if TYPE_CHECKING:
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.candidate import Candidate
    from npuenv.resolve.search import Judged

Solve = Callable[[Request, Matrix], "Stack | Conflict"]

_MOST = 4
_ENOUGH = 2  # with so many among the stacks that were asked for, other stacks are not looked at
# How far a change is from what was asked: a dropped pin is nearest; what stands in the rack is not changed at all if
# anything else helps.
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
_STRANGER = 3  # on top of another stack: of another framework


def ways_out(
    judged: Sequence[Judged], others: Sequence[Recipe], request: Request, matrix: Matrix, solve: Solve
) -> tuple[WayOut, ...]:
    """Up to four changed requests that resolve; one that only adds to the changes of another is left out."""
    found = tuple(itertools.islice(_resolved(judged, request, matrix, solve), _MOST))
    if len(found) >= _ENOUGH:
        return found
    known = [_given_up(objected) for candidate, objected in judged if _is_way(candidate, objected, request, matrix)]
    everything = [*judged, *judge(others, request, matrix, known)]
    return tuple(itertools.islice(_resolved(everything, request, matrix, solve), _MOST))


def without_pins(request: Request, changed: Request, matrix: Matrix, solve: Solve) -> tuple[WayOut, ...]:
    """The way out that leaves out the pins which `changed` no longer has; none where nothing changed or fits."""
    fields = frozenset(f"pin.{name}" for name in request.pins.keys() - changed.pins.keys())
    solved = solve(changed, matrix)
    if not fields or not isinstance(solved, Stack):
        return ()
    return (WayOut(_says(request, changed, fields, solved), changed, command(changed)),)


def _resolved(judged: Sequence[Judged], request: Request, matrix: Matrix, solve: Solve) -> Iterator[WayOut]:
    offers: dict[frozenset[str], tuple[int, int, Request]] = {}
    for place, (candidate, objected) in enumerate(judged):
        if not _is_way(candidate, objected, request, matrix):
            continue
        fields = _given_up(objected)
        cost = sum(_cost(field) for field in fields) + (_STRANGER if _is_stranger(candidate, request, matrix) else 0)
        if not says_something(_relaxed(request, candidate, fields, matrix)):
            fields |= {"framework"}  # the pins were all there was to go by
        if fields not in offers or cost < offers[fields][0]:
            offers[fields] = (cost, place, _relaxed(request, candidate, fields, matrix))
    given: list[frozenset[str]] = []
    for fields, (_, _, changed) in sorted(offers.items(), key=lambda item: item[1][:2]):
        if any(before <= fields for before in given):
            continue
        solved = solve(changed, matrix)
        if isinstance(solved, Stack):
            given.append(fields)
            yield WayOut(_says(request, changed, fields, solved), changed, command(changed))


def _is_way(candidate: Candidate, objected: Sequence[Clash], request: Request, matrix: Matrix) -> bool:
    """Whether only the user's own wishes speak against a candidate."""
    return all(each.rule == "request" for each in objected) and _is_of_the_kind(candidate, request, matrix)


def _given_up(objected: Sequence[Clash]) -> frozenset[str]:
    return frozenset(str(each.says.args["field"]) for each in objected)


def _cost(field: str) -> int:
    return _COST[field.split(".")[0]]


def _is_stranger(candidate: Candidate, request: Request, matrix: Matrix) -> bool:
    """Whether another stack than the one asked for is of another framework too."""
    wanted = next((each for each in all_recipes(matrix) if each.id == request.stack), None)
    return wanted is not None and candidate.recipe.framework != wanted.framework


def _is_of_the_kind(candidate: Candidate, request: Request, matrix: Matrix) -> bool:
    """Whether a candidate is what the user is after: an NPU is not served by a CPU stack, nor the reverse."""
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
    """A sentence for a way out: each change, and what it leads to."""
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
    """The command line that asks for a request."""
    words = ["npuenv", "resolve", *((request.stack,) if request.stack else ())]
    for field, option in OPTIONS.items():
        value = getattr(request, field)
        if field == "framework" and request.release is not None:
            value = f"{value}=={request.release}"
        if value is not None and field != "release":
            words += [option, value]
    if request.is_newest:
        words.append("--newest")
    for name, version in sorted(request.pins.items()):
        words += ["--pin", f"{name}=={version}"]
    return tuple(words)
