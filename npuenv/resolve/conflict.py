"""Explains why nothing fits, and suggests changed requests, nearest first. Each is resolved before it is offered.

Every candidate clashes with at least one rule. A set of rules that hits every candidate is a reason. The smallest such
set is reported: without any one of its rules some candidate is not hit.

A request with many pins, such as a complete `pip freeze`, is reduced first: each pin can be used or dropped, which
gives more candidates than can be evaluated. `clashing_pins` reduces the pins to a minimal set that clashes by itself;
that set is explained. `fitting_pins` is the suggestion: the request without the blocking pins, none of which can be
added back.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv.core.messages import Message
from npuenv.matrix.release_stacks import recipe_named
from npuenv.resolve.request import checked, says_something
from npuenv.resolve.search import (
    OF_ALL_STACKS,
    blocking_pins,
    by_preference,
    clash_key,
    evaluate,
    find_without,
    first_fit,
    fitting,
    is_asked_for,
    with_broader,
)
from npuenv.resolve.stack import verified_by
from npuenv.resolve.types import OPTIONS, Clash, Conflict, Request, WayOut, command_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.search import Evaluated
    from npuenv.resolve.types import Candidate


# Up to this many rules the smallest set is searched for; beyond that, any set from which no rule can be dropped.
_SEARCH_DEPTH = 5
_MOST_SOURCES = 3
_MOST_STACKS = 6
# Preference among the smallest sets: the user's own request (0), then a stated pairing (1), then a bound (2), then what
# a stack was published for (3), then a statement about many stacks (4).
_RANKS = {"resolve.requires": 2, "resolve.limit": 2, "resolve.stack-package": 3, "resolve.stack-lacks": 3}
_RANKS |= dict.fromkeys(OF_ALL_STACKS, 4)


def why_not(request: Request, matrix: Matrix) -> Conflict:
    """The conflict of a request in normal form that no candidate meets."""
    requested, others = by_preference(request, matrix)
    if len(request.pins) <= _MAX_PINS:
        evaluated = list(evaluate(requested, request, matrix))
        ways = _ways_out(evaluated, others, request, matrix)
        return Conflict(request, _smallest_reason(evaluated, others, request, matrix), ways)
    few = clashing_pins(requested, request, matrix)
    enough = fitting_pins(requested, request, matrix)
    ways = () if enough is None else _without_pins(request, enough, matrix)
    return Conflict(request, _smallest_reason(list(evaluate(requested, few, matrix)), others, few, matrix), ways)


def _smallest_reason(
    evaluated: Sequence[Evaluated], others: Sequence[Recipe], request: Request, matrix: Matrix
) -> tuple[Clash, ...]:
    """The smallest set of clashes that hits every candidate.

    `evaluated` are the candidates of the requested stacks, `others` the remaining stacks. Of the latter only candidates
    that the reason found so far does not hit are added, until there is none.
    """
    clashes: dict[str, list[Clash]] = {}
    sets = {_record(each, request, clashes) for each in evaluated}
    chosen = _best_reason(sets, clashes)
    while (missed := find_without(chosen, others, request, matrix)) is not None:
        sets.add(_record(missed, request, clashes))
        chosen = _best_reason(sets, clashes)
    ordered = sorted(chosen, key=lambda key: (clashes[key][0].rule != "request", key))
    recipes = [*(candidate.recipe for candidate, _ in evaluated), *others]
    return tuple(_merged(clashes[key], request, recipes) for key in ordered)


def _record(evaluated: Evaluated, request: Request, clashes: dict[str, list[Clash]]) -> frozenset[str]:
    """The keys of a candidate's clashes; adds each clash to `clashes` under its key."""
    candidate, found = evaluated
    keys = []
    for clash in itertools.chain.from_iterable(with_broader(each, candidate, request) for each in found):
        keys.append(clash_key(clash))
        clashes.setdefault(keys[-1], []).append(clash)
    return frozenset(keys)


def _best_reason(sets: set[frozenset[str]], clashes: Mapping[str, Sequence[Clash]]) -> frozenset[str]:
    firsts = {key: found[0] for key, found in clashes.items()}
    ranks = {key: 0 if one.rule == "request" else _RANKS.get(one.says.key, 1) for key, one in firsts.items()}
    return smallest_hitting_set(sets, ranks)


def _merged(clashes: Sequence[Clash], request: Request, recipes: Sequence[Recipe]) -> Clash:
    """The clashes of one key merged into one: that of the requested stack, or one for all the stacks concerned."""
    first = next((clash for clash in clashes if clash.rule == request.stack), clashes[0])
    if first.says.args.get("field") == "as_of":
        return _with_earliest_release(first, request, recipes)
    if first.says.key not in OF_ALL_STACKS or first.rule == request.stack:
        return first
    framework = str(first.says.args["framework"])
    stacks = tuple(dict.fromkeys(clash.rule for clash in clashes))
    is_all = {recipe.id for recipe in recipes if recipe.framework == framework} <= set(stacks)
    if len(stacks) == 1:
        return first
    has = sorted({value for clash in clashes for value in _listed(clash.says.args.get("has", ()))})
    args = {**first.says.args, "has": tuple(has), "stacks": _shortened(stacks, _MOST_STACKS)}
    says = Message(first.says.key.replace(".stack-", ".stacks-" if is_all else ".some-"), args)
    sources = tuple(dict.fromkeys(clash.source for clash in clashes))
    return Clash(f"frameworks.{framework}", says, "; ".join(_shortened(sources, _MOST_SOURCES)))


def _with_earliest_release(clash: Clash, request: Request, recipes: Sequence[Recipe]) -> Clash:
    """The clash with `--as-of`: everything requested is younger, with the earliest stack and its date."""
    younger = [each for each in recipes if is_asked_for(each, replace(request, as_of=None))]
    younger = [each for each in younger if each.date > (request.as_of or "")]
    if not younger:
        return clash
    first = min(younger, key=lambda each: each.date)
    says = Message("resolve.asked-day", {**clash.says.args, "stack": first.id, "date": first.date})
    return replace(clash, says=says)


def _shortened(texts: tuple[str, ...], most: int) -> tuple[str, ...]:
    """The first `most` texts, then the total count."""
    return texts if len(texts) <= most else (*texts[:most], f"… ({len(texts)})")


def _listed(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def smallest_hitting_set(sets: set[frozenset[str]], rank: Mapping[str, int] | None = None) -> frozenset[str]:
    """The smallest set of rules that has a member in each of the given sets. Ties go to rules of a lower rank
    (without `rank` all are equal), then to the alphabetically first.

    Beyond five rules: a set from which none can be dropped, not necessarily the smallest.
    """
    needed: list[frozenset[str]] = []
    for each in sorted(sets, key=lambda one: (len(one), sorted(one))):
        if not any(smaller <= each for smaller in needed):
            needed.append(each)
    ranks = rank or {}
    ordered = [sorted(each, key=lambda key: (ranks.get(key, 0), key)) for each in needed]
    for size in range(1, _SEARCH_DEPTH + 1):
        found = _hit(list(zip(needed, ordered, strict=True)), size, ())
        if found is not None:
            return frozenset(found)
    return _greedy(needed)


def _hit(
    needed: Sequence[tuple[frozenset[str], list[str]]], size: int, so_far: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Rules that hit the given sets, at most `size` of them, or None. Each set comes with its rules in order."""
    unhit = [each for each in needed if each[0].isdisjoint(so_far)]
    if not unhit:
        return so_far
    left = size - len(so_far)
    apart: set[str] = set()
    for members, _ in unhit:  # sets that share no rule need one each
        if apart.isdisjoint(members):
            apart |= members
            left -= 1
    if left < 0:
        return None
    for key in unhit[0][1]:
        found = _hit(unhit, size, (*so_far, key))
        if found is not None:
            return found
    return None


def _greedy(needed: Sequence[frozenset[str]]) -> frozenset[str]:
    chosen: list[str] = []
    left = list(needed)
    while left:
        counts = Counter(itertools.chain.from_iterable(left))
        best = min(counts, key=lambda key: (-counts[key], key))
        chosen.append(best)
        left = [each for each in left if best not in each]
    for key in tuple(chosen):
        others = set(chosen) - {key}
        if all(each & others for each in needed):
            chosen.remove(key)
    return frozenset(chosen)


_MAX_PINS = 6  # with no more pins than this all combinations are evaluated


def with_pins(request: Request, names: Iterable[str]) -> Request:
    """The request with only the named pins."""
    keep = set(names)
    return replace(request, pins={name: version for name, version in request.pins.items() if name in keep})


def clashing_pins(recipes: Sequence[Recipe], request: Request, matrix: Matrix) -> Request:
    """The request with a minimal set of clashing pins: without any one of them it fits. (QuickXplain, Junker 2004.)"""

    def fits(names: Sequence[str]) -> bool:
        return first_fit(recipes, with_pins(request, names), matrix) is not None

    def shrink(fixed: list[str], is_new: bool, rest: list[str]) -> list[str]:
        if is_new and not fits(fixed):
            return []
        if len(rest) == 1:
            return rest
        half = len(rest) // 2
        first, second = rest[:half], rest[half:]
        of_second = shrink([*fixed, *first], bool(first), second)
        return [*shrink([*fixed, *of_second], bool(of_second), first), *of_second]

    names = sorted(request.pins)
    return with_pins(request, [] if not fits([]) else shrink([], False, names))


def fitting_pins(recipes: Sequence[Recipe], request: Request, matrix: Matrix) -> Request | None:
    """The request without its blocking pins, none of which can be added back; None if that is not enough."""
    dropped: list[str] = []
    remaining = set(request.pins)
    while first_fit(recipes, with_pins(request, remaining), matrix) is None:
        found = blocking_pins(recipes, with_pins(request, remaining), matrix) & remaining
        if not found:
            return None
        dropped += sorted(found)
        remaining -= found
    for name in dropped:
        if first_fit(recipes, with_pins(request, {*remaining, name}), matrix) is not None:
            remaining.add(name)
    return with_pins(request, remaining)


_MAX_SUGGESTIONS = 4
_ENOUGH = 2  # with so many suggestions among the requested stacks, other stacks are not tried
# How far a change is from the request: a dropped pin is nearest, another hardware farthest.
_COST = {"pin": 1, "python": 2, "cann": 3, "driver": 4, "stack": 5, "release": 6, "as_of": 6, "framework": 9, "os": 10}
_COST |= {"hardware": 20, "arch": 20}
_OTHER_FRAMEWORK = 3  # in addition to the cost of another stack


def _ways_out(
    evaluated: Sequence[Evaluated], others: Sequence[Recipe], request: Request, matrix: Matrix
) -> tuple[WayOut, ...]:
    """Up to four changed requests that resolve; one that only adds to the changes of another is left out."""
    found = tuple(itertools.islice(_resolved(evaluated, request, matrix), _MAX_SUGGESTIONS))
    if len(found) >= _ENOUGH:
        return found
    sufficient = [fields for _, fields in _relaxations(evaluated, request, matrix)]
    everything = [*evaluated, *evaluate(others, request, matrix, sufficient)]
    return tuple(itertools.islice(_resolved(everything, request, matrix), _MAX_SUGGESTIONS))


def _without_pins(request: Request, changed: Request, matrix: Matrix) -> tuple[WayOut, ...]:
    """The suggestion to drop the pins that `changed` lacks; empty if there are none or `changed` does not resolve."""
    fields = frozenset(f"pin.{name}" for name in request.pins.keys() - changed.pins.keys())
    way = _way_out(request, changed, fields, matrix)
    return (way,) if fields and way else ()


def _resolved(evaluated: Sequence[Evaluated], request: Request, matrix: Matrix) -> Iterator[WayOut]:
    wanted = recipe_named(request.stack, matrix) if request.stack else None
    offers: dict[frozenset[str], tuple[int, int, Request]] = {}
    for position, (candidate, fields) in enumerate(_relaxations(evaluated, request, matrix)):
        is_other = wanted is not None and candidate.recipe.framework != wanted.framework
        cost = sum(_cost(field) for field in fields) + (_OTHER_FRAMEWORK if is_other else 0)
        changed = _relaxed(request, candidate, fields, matrix)
        if not says_something(changed):
            fields |= {"framework"}  # the request named only pins
            changed = _relaxed(request, candidate, fields, matrix)
        if fields not in offers or cost < offers[fields][0]:
            offers[fields] = (cost, position, changed)
    offered: list[frozenset[str]] = []
    for fields, (_, _, changed) in sorted(offers.items(), key=lambda item: item[1][:2]):
        if any(before <= fields for before in offered):
            continue
        if (way := _way_out(request, changed, fields, matrix)) is not None:
            offered.append(fields)
            yield way


def _relaxations(
    evaluated: Sequence[Evaluated], request: Request, matrix: Matrix
) -> Iterator[tuple[Candidate, frozenset[str]]]:
    """The candidates that clash only with the request, not with the matrix, each with the fields it does not meet."""
    for candidate, clashes in evaluated:
        if all(each.rule == "request" for each in clashes) and _has_requested_device(candidate, request, matrix):
            yield candidate, frozenset(str(each.says.args["field"]) for each in clashes)


def _cost(field: str) -> int:
    return _COST[field.split(".")[0]]


def _has_requested_device(candidate: Candidate, request: Request, matrix: Matrix) -> bool:
    """Whether a candidate is for the kind of device requested: a CPU stack does not serve an NPU, nor the reverse."""
    wanted = recipe_named(request.stack, matrix) if request.stack else None
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
    recipe, cann = candidate.recipe, matrix.cann_row(candidate.cann) if candidate.cann else None
    has: dict[str, str | None] = {"stack": recipe.id, "framework": recipe.framework, "release": recipe.release}
    has |= {name: getattr(candidate, name) for name in ("hardware", "os", "arch", "python", "cann")}
    has |= {"as_of": recipe.date, "driver": (cann and cann.driver_since) or None}
    changes: dict[str, Any] = {"release": None} if "framework" in fields else {}
    changes |= {field: has[field] for field in fields if field in has}
    pins = {name: version for name, version in request.pins.items() if f"pin.{name}" not in fields}
    return replace(request, pins=pins, **changes)


def _way_out(request: Request, changed: Request, fields: frozenset[str], matrix: Matrix) -> WayOut | None:
    """The suggestion with the changes of the fields and the stack that results; None if `changed` does not resolve."""
    candidate = fitting(checked(changed, matrix), matrix)
    if candidate is None:
        return None
    changes = tuple(_change(request, changed, field) for field in sorted(fields, key=lambda one: (_cost(one), one)))
    args = {"changes": changes, "stack": candidate.recipe.id, "verified": verified_by(candidate)}
    return WayOut(Message("resolve.way-out", args), changed, command_for(changed))


def _change(request: Request, changed: Request, field: str) -> Message:
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
