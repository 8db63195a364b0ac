"""Explains why nothing fits.

Every candidate clashes with at least one rule. A set of rules that hits every candidate is a reason. The smallest such
set is reported: without any one of its rules some candidate is not hit.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.resolve.candidate import is_asked_for
from npuenv.resolve.clash_identity import OF_ALL_STACKS, broader, clash_key
from npuenv.resolve.search import find_without
from npuenv.resolve.suggestions import ways_out
from npuenv.resolve.types import Clash, Conflict, Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.search import Evaluated
    from npuenv.resolve.suggestions import Solve

# Up to this many rules the smallest set is searched for; beyond that, any set from which no rule can be dropped.
_SEARCH_DEPTH = 5
_MOST_SOURCES = 3
_MOST_STACKS = 6
# Preference among the smallest sets: the user's own request (0), then a stated pairing (1), then a bound (2), then what
# a stack was published for (3), then a statement about many stacks (4).
_RANKS = {"resolve.requires": 2, "resolve.limit": 2, "resolve.stack-package": 3, "resolve.stack-lacks": 3}
_RANKS |= dict.fromkeys(OF_ALL_STACKS, 4)


def explain(
    evaluated: Sequence[Evaluated], others: Sequence[Recipe], request: Request, matrix: Matrix, solve: Solve
) -> Conflict:
    """The conflict of a request that no candidate meets.

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
    ways = ways_out(evaluated, others, request, matrix, solve)
    recipes = [*(candidate.recipe for candidate, _ in evaluated), *others]
    return Conflict(request, tuple(_merged(clashes[key], request, recipes) for key in ordered), ways)


def _record(evaluated: Evaluated, request: Request, clashes: dict[str, list[Clash]]) -> frozenset[str]:
    """The keys of a candidate's clashes; adds each clash to `clashes` under its key."""
    candidate, found = evaluated
    more = (broader(each, candidate, request) for each in found)
    keys: list[str] = []
    for clash in (*found, *filter(None, more)):
        keys.append(clash_key(clash))
        clashes.setdefault(keys[-1], []).append(clash)
    return frozenset(keys)


def _best_reason(sets: set[frozenset[str]], clashes: Mapping[str, Sequence[Clash]]) -> frozenset[str]:
    return smallest_hitting_set(sets, {key: _rank(found[0]) for key, found in clashes.items()})


def _rank(clash: Clash) -> int:
    return 0 if clash.rule == "request" else _RANKS.get(clash.says.key, 1)


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
