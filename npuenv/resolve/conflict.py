"""Why nothing fits, and what to change.

Every candidate is objected to by at least one rule. A set of rules that hits every candidate is a reason; the smallest
such set is the one worth reading, and dropping any one of its rules leaves a candidate that the rest do not hit.
A way out is a changed request that was itself resolved.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from npuenv.matrix import Matrix
from npuenv.messages import Message
from npuenv.resolve.candidate import Candidate
from npuenv.resolve.derived import all_recipes
from npuenv.resolve.rules import OPTIONS
from npuenv.resolve.types import Clash, Conflict, Request, Stack, WayOut

_MOST_WAYS_OUT = 4
# Up to this many rules the smallest set is searched for; beyond it a set that cannot be made smaller is good enough.
_SEARCH_DEPTH = 5
# How far a change is from what was asked: a dropped pin is nearest, another framework farthest.
_COST = {
    "pin": 1,
    "python": 2,
    "cann": 3,
    "driver": 4,
    "os": 4,
    "stack": 5,
    "release": 6,
    "as_of": 6,
    "hardware": 8,
    "arch": 8,
    "framework": 9,
}

# Objections of single stacks that together are one statement about their framework, and what it is about.
_OF_ALL_STACKS = {"resolve.stack-hardware": "hardware", "resolve.stack-arch": "arch", "resolve.stack-cann": "cann"}
_MOST_SOURCES = 3
_STRANGER = 3  # on top of another stack: of another framework

Solve = Callable[[Request, Matrix], "Stack | Conflict"]
Judged = tuple[Candidate, list[Clash]]  # a candidate with everything that speaks against it


def explain(judged: Sequence[Judged], request: Request, matrix: Matrix, solve: Solve) -> Conflict:
    """The conflict of a request none of whose candidates fits."""
    clashes: dict[str, list[Clash]] = {}
    sets: set[frozenset[str]] = set()
    for _, objected in judged:
        keys = [(clash_key(each), each) for each in objected]
        for key, clash in keys:
            clashes.setdefault(key, []).append(clash)
        sets.add(frozenset(key for key, _ in keys))
    chosen = smallest_hitting_set(sets)
    ordered = sorted(chosen, key=lambda key: (clashes[key][0].rule != "request", key))
    ways = tuple(itertools.islice(_ways_out(judged, request, matrix, solve), _MOST_WAYS_OUT))
    return Conflict(request, tuple(_as_one(clashes[key], request, matrix) for key in ordered), ways)


def clash_key(clash: Clash) -> str:
    """What makes two clashes the same rule: the row and what it demands, not the value it met.

    That no stack of a framework is published for some hardware is one rule, not one for each of its stacks.
    """
    kind = clash.says.key.replace(".stacks-", ".stack-")
    if kind in _OF_ALL_STACKS:
        return "|".join((kind, str(clash.says.args["framework"]), str(clash.says.args[_OF_ALL_STACKS[kind]])))
    demands = [str(clash.says.args.get(name, "")) for name in ("needs", "field", "package")]
    return "|".join((clash.rule, clash.says.key, clash.source, *demands))


def _as_one(clashes: Sequence[Clash], request: Request, matrix: Matrix) -> Clash:
    """The clashes of one key as a single one: that of the stack asked for, or of a whole framework where all its stacks
    object alike.
    """
    first = next((clash for clash in clashes if clash.rule == request.stack), clashes[0])
    if first.says.key not in _OF_ALL_STACKS or first.rule == request.stack:
        return first
    framework = str(first.says.args["framework"])
    by_rule = {clash.rule: clash for clash in clashes}
    if {recipe.id for recipe in all_recipes(matrix) if recipe.framework == framework} - by_rule.keys() or len(
        by_rule
    ) == 1:
        return first
    has = sorted({value for clash in clashes for value in _listed(clash.says.args["has"])})
    says = Message(first.says.key.replace(".stack-", ".stacks-"), {**first.says.args, "has": tuple(has)})
    sources = list(dict.fromkeys(clash.source for clash in clashes))
    more = f"; … ({len(sources)})" if len(sources) > _MOST_SOURCES else ""
    return Clash(f"frameworks.{framework}", says, "; ".join(sources[:_MOST_SOURCES]) + more)


def _listed(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def smallest_hitting_set(sets: set[frozenset[str]]) -> frozenset[str]:
    """The smallest set of rules that has a member in each of the given sets; ties go to the alphabetically first.

    Beyond five rules: a set from which none can be dropped, not necessarily the smallest.
    """
    needed: list[frozenset[str]] = []
    for each in sorted(sets, key=lambda one: (len(one), sorted(one))):
        if not any(smaller <= each for smaller in needed):
            needed.append(each)
    for size in range(1, _SEARCH_DEPTH + 1):
        found = _hit(needed, size, ())
        if found is not None:
            return frozenset(found)
    return _greedy(needed)


def _hit(needed: Sequence[frozenset[str]], size: int, so_far: tuple[str, ...]) -> tuple[str, ...] | None:
    unhit = next((each for each in needed if not each.intersection(so_far)), None)
    if unhit is None:
        return so_far
    if len(so_far) == size:
        return None
    for key in sorted(unhit):
        found = _hit(needed, size, (*so_far, key))
        if found is not None:
            return found
    return None


def _greedy(needed: Sequence[frozenset[str]]) -> frozenset[str]:
    chosen: list[str] = []
    left = list(needed)
    while left:
        counts: dict[str, int] = {}
        for key in itertools.chain.from_iterable(left):
            counts[key] = counts.get(key, 0) + 1
        best = min(counts, key=lambda key: (-counts[key], key))
        chosen.append(best)
        left = [each for each in left if best not in each]
    for key in tuple(chosen):
        others = set(chosen) - {key}
        if all(each & others for each in needed):
            chosen.remove(key)
    return frozenset(chosen)


def _ways_out(judged: Sequence[Judged], request: Request, matrix: Matrix, solve: Solve) -> Iterator[WayOut]:
    """Changed requests that resolve, nearest first; one that only adds to the changes of another is left out."""
    offers: dict[frozenset[str], tuple[int, int, Request]] = {}
    for place, (candidate, objected) in enumerate(judged):
        if any(each.rule != "request" for each in objected) or not _is_of_the_kind(candidate, request, matrix):
            continue
        fields = frozenset(str(each.says.args["field"]) for each in objected)
        cost = sum(_cost(field) for field in fields) + (_STRANGER if _is_stranger(candidate, request, matrix) else 0)
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
