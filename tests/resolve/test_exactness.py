"""The search leaves out most ways to meet a request: here it is held against one that looks at all of them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.documents import load_toml
from npuenv.matrix import load_matrix
from npuenv.matrix.release_stacks import all_recipes
from npuenv.resolve import resolve
from npuenv.resolve.conflict import smallest_hitting_set
from npuenv.resolve.request import checked
from npuenv.resolve.rules import matrix_conflicts, unmet_requests
from npuenv.resolve.search import by_preference, candidate_of, choices, clash_key, clash_keys
from npuenv.resolve.types import Candidate, Conflict, Request, Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

MATRIX = load_matrix()
CASES = {
    path.stem: Request(**load_toml(path)["request"])
    for path in sorted((Path(__file__).parent / "cases").glob("conflict-*.toml"))
}
MORE = {
    "a wish for a framework alone": Request(framework="roll", pins={"triton-ascend": "3.2.0rc2"}),
    "three things at once": Request(framework="verl", pins={"numpy": "2.1.0"}, python="3.12", cann="8.5.0"),
    "a pin and nothing else": Request(pins={"torch-npu": "2.14.0"}),
    "a day": Request(stack="roll-cann9.1.0", as_of="2026-01-01"),
    "a CPU stack of an NPU framework": Request(stack="cpu", framework="verl"),
}
UNSOLVABLE = {**CASES, **MORE}
# Looking at every way is slow by nature: some of each kind of request are always tried, the others repeat them.
CONFLICTS = [
    name if at % 24 == 0 else pytest.param(name, marks=[pytest.mark.slow, *([pytest.mark.long] if at % 6 else [])])
    for at, name in enumerate([*MORE, *CASES])
]
SEEDS = [
    *range(24, 27),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 24)),
    *(pytest.param(seed, marks=[pytest.mark.slow, pytest.mark.long]) for seed in (*range(12), *range(27, 100))),
]


class EveryWay:
    """All combinations of all choices of all recipes, each evaluated on first use."""

    def __init__(self, request: Request) -> None:
        self.request = checked(request, MATRIX)
        self.ways: list[tuple[Candidate, frozenset[str]]] = []
        for recipe in itertools.chain(*by_preference(self.request, MATRIX)):
            open_to = choices(recipe, self.request)
            for values in itertools.product(*open_to.values()):
                candidate = candidate_of(recipe, dict(zip(open_to, values, strict=True)), MATRIX)
                wishes = frozenset(clash_key(each) for each in unmet_requests(candidate, self.request))
                self.ways.append((candidate, wishes))
        self._rows: dict[int, frozenset[str]] = {}

    def rows(self, at: int) -> frozenset[str]:
        if at not in self._rows:
            candidate = self.ways[at][0]
            found = matrix_conflicts(candidate, MATRIX)
            self._rows[at] = frozenset(key for each in found for key in clash_keys(each, candidate, self.request))
        return self._rows[at]

    def not_hit_by(self, keys: frozenset[str]) -> Iterator[int]:
        """The places of the ways that none of the given rules speaks against."""
        for at, (_, wishes) in enumerate(self.ways):
            if wishes.isdisjoint(keys) and self.rows(at).isdisjoint(keys):
                yield at

    def smallest_reason(self) -> frozenset[str]:
        """A smallest set of rules that hits every way: grown from ways that the set so far misses."""
        sets: set[frozenset[str]] = set()
        reason: frozenset[str] = frozenset()
        while (missed := next(self.not_hit_by(reason), None)) is not None:
            sets.add(self.ways[missed][1] | self.rows(missed))
            reason = smallest_hitting_set(sets)
        return reason


@pytest.mark.parametrize("name", CONFLICTS)
def test_clashes_speak_against_every_way_none_can_be_dropped_and_every_way_out_resolves(name: str) -> None:
    conflict = resolve(UNSOLVABLE[name], MATRIX)
    assert isinstance(conflict, Conflict)
    clashes_hit_every_way_and_no_fewer_would(conflict, EveryWay(UNSOLVABLE[name]))
    ways_out_resolve_and_change_something_that_no_nearer_one_gives_up(conflict, checked(UNSOLVABLE[name], MATRIX))


def clashes_hit_every_way_and_no_fewer_would(conflict: Conflict, ways: EveryWay) -> None:
    reason = frozenset(clash_key(clash) for clash in conflict.clashes)
    assert next(ways.not_hit_by(reason), None) is None
    for key in reason:
        assert next(ways.not_hit_by(reason - {key}), None) is not None, key
    smallest = ways.smallest_reason()
    assert len(reason) == len(smallest) or len(smallest) > 5


def ways_out_resolve_and_change_something_that_no_nearer_one_gives_up(conflict: Conflict, wanted: Request) -> None:
    fields = ("stack", "framework", "release", "as_of", "hardware", "os", "arch", "python", "cann", "driver")
    changes: list[set[str]] = []
    assert conflict.ways_out
    for way in conflict.ways_out:
        changed = {field for field in fields if getattr(way.request, field) != getattr(wanted, field)}
        changed |= wanted.pins.keys() - way.request.pins.keys()
        changed -= {"release"} if "framework" in changed else set()  # it belongs to the framework
        assert changed
        assert not [nearer for nearer in changes if nearer <= changed]
        changes.append(changed)
        assert isinstance(resolve(way.request, MATRIX), Stack)
        assert way.command[:2] == ("npuenv", "resolve")


_WISHES: dict[str, tuple[str, ...]] = {
    "framework": ("verl", "roll", "vllm-ascend", "torch-npu", "cpu", "verl==0.7.1", "vllm-ascend==0.13.0"),
    "hardware": ("310p", "a2", "a3", "950"),
    "os": ("ubuntu22.04", "openeuler24.03", "ubuntu20.04"),
    "arch": ("aarch64", "x86_64"),
    "python": ("3.9", "3.10", "3.11", "3.12", "3.13"),
    "cann": ("8.1.RC1", "8.3.RC1", "8.5.0", "8.5.1", "9.0.0", "9.1.0"),
    "driver": ("24.1", "25.0", "25.2", "26.0.RC1"),
    "as_of": ("2025-06-30", "2026-01-31", "2026-08-01"),
}
_PINS = {
    "torch": ("2.7.1", "2.8.0", "2.9.0", "2.13.0"),
    "torch-npu": ("2.7.1", "2.8.0.post1", "2.8.0.post2", "2.9.0", "2.10.0.post4", "2.14.0"),
    "numpy": ("1.26.4", "2.1.0"),
    "transformers": ("4.57.6", "5.5.4"),
    "triton-ascend": ("3.2.0", "3.2.2"),
    "vllm": ("0.11.0", "0.13.0"),
    "ray": ("2.41.0", "2.48.0"),
    "black": ("25.1.0",),
}


def random_request(seed: int) -> Request:
    draw = random.Random(seed)
    fields: dict[str, Any] = {
        name: draw.choice(_WISHES[name]) for name in draw.sample(sorted(_WISHES), draw.randint(1, 3))
    }
    pins = {name: draw.choice(_PINS[name]) for name in draw.sample(sorted(_PINS), draw.randint(0, 2))}
    if not {"framework", "hardware", "cann"} & fields.keys() and not pins:
        fields["framework"] = draw.choice(_WISHES["framework"])
    return Request(pins=pins, is_newest=draw.random() < 0.2, **fields)


def test_random_requests_are_of_both_kinds_and_of_every_field() -> None:
    requests = [random_request(seed) for seed in range(100)]
    stacks = sum(isinstance(resolve(each, MATRIX), Stack) for each in requests[::10])
    assert 2 <= stacks <= 8
    for field in _WISHES:
        assert any(getattr(each, field) for each in requests)


@pytest.mark.parametrize("seed", SEEDS)
def test_search_gives_what_a_look_at_every_way_gives(seed: int) -> None:
    request = random_request(seed)
    answer = resolve(request, MATRIX)
    ways = EveryWay(request)
    fitting = [ways.ways[at][0] for at, (_, wishes) in enumerate(ways.ways) if not wishes and not ways.rows(at)]
    if isinstance(answer, Stack):
        assert answer.name == fitting[0].recipe.id
        place = answer.platform
        same = [each for each in fitting if each.recipe.id == answer.name]
        found = [(each.arch, each.python, each.hardware, each.os) for each in same]
        assert (place.arch, place.python, place.hardware, place.os) in found
        return
    assert fitting == []
    reason = frozenset(clash_key(clash) for clash in answer.clashes)
    assert next(ways.not_hit_by(reason), None) is None
    smallest = ways.smallest_reason()
    assert len(reason) == len(smallest) or len(smallest) > 5


def test_recipe_that_says_too_little_is_never_an_answer() -> None:
    lacking = [recipe for recipe in all_recipes(MATRIX) if recipe.lacks]
    assert lacking
    for recipe in lacking:
        open_to = choices(recipe, Request())
        for values in itertools.product(*open_to.values()):
            candidate = candidate_of(recipe, dict(zip(open_to, values, strict=True)), MATRIX)
            assert "resolve.stack-lacks" in {clash.says.key for clash in matrix_conflicts(candidate, MATRIX)}
        conflict = resolve(Request(stack=recipe.id), MATRIX)
        assert isinstance(conflict, Conflict)
        assert recipe.id in {clash.rule for clash in conflict.clashes}
