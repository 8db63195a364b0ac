"""Why nothing fits.

Every candidate is objected to by at least one rule. A set of rules that hits every candidate is a reason; the smallest
such set is the one worth reading, and dropping any one of its rules leaves a candidate that the rest do not hit.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from npuenv.messages import Message
from npuenv.resolve.derived import all_recipes
from npuenv.resolve.rules import OF_ALL_STACKS, clash_key
from npuenv.resolve.search import avoiding
from npuenv.resolve.types import Clash, Conflict, Request
from npuenv.resolve.ways_out import ways_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.matrix import Matrix
    from npuenv.matrix.rows import Recipe
    from npuenv.resolve.search import Judged
    from npuenv.resolve.ways_out import Solve

# Up to this many rules the smallest set is searched for; beyond it a set that cannot be made smaller is good enough.
_SEARCH_DEPTH = 5
_MOST_SOURCES = 3


def explain(
    judged: Sequence[Judged], others: Sequence[Recipe], request: Request, matrix: Matrix, solve: Solve
) -> Conflict:
    """The conflict of a request none of whose candidates fits.

    `judged` are the candidates of the stacks that were asked for, `others` the remaining stacks: of those only such
    candidates are looked for that the reason found so far does not hit, until there is none.
    """
    clashes: dict[str, list[Clash]] = {}
    sets = {_noted(objected, clashes) for _, objected in judged}
    chosen = smallest_hitting_set(sets)
    while (missed := avoiding(chosen, others, request, matrix)) is not None:
        sets.add(_noted(missed[1], clashes))
        chosen = smallest_hitting_set(sets)
    ordered = sorted(chosen, key=lambda key: (clashes[key][0].rule != "request", key))
    ways = ways_out(judged, others, request, matrix, solve)
    return Conflict(request, tuple(_as_one(clashes[key], request, matrix) for key in ordered), ways)


def _noted(objected: Sequence[Clash], clashes: dict[str, list[Clash]]) -> frozenset[str]:
    """The keys of a candidate's clashes, each clash noted under its key."""
    keys = [clash_key(each) for each in objected]
    for key, clash in zip(keys, objected, strict=True):
        clashes.setdefault(key, []).append(clash)
    return frozenset(keys)


def _as_one(clashes: Sequence[Clash], request: Request, matrix: Matrix) -> Clash:
    """The clashes of one key as a single one: that of the stack asked for, or of a whole framework where all its stacks
    object alike.
    """
    first = next((clash for clash in clashes if clash.rule == request.stack), clashes[0])
    if first.says.key not in OF_ALL_STACKS or first.rule == request.stack:
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
