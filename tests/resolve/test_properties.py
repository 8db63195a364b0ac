"""What holds for every stack and every conflict, whatever the tables say."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest

from npuenv.core import versions
from npuenv.matrix import Matrix, load_matrix
from npuenv.matrix.release_stacks import all_recipes, pairing
from npuenv.resolve import published, published_requests, resolve, search
from npuenv.resolve.conflict import smallest_hitting_set
from npuenv.resolve.request import checked
from npuenv.resolve.rules import driver_is_too_old, matrix_conflicts
from npuenv.resolve.search import candidate_of, choices
from npuenv.resolve.types import Candidate, Clash, Conflict, Pin, Request, Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

MATRIX = load_matrix()
UNSOLVABLE = [
    Request(stack="verl-cann9.1.0", driver="25.0"),
    Request(stack="verl-0.7.1-cann8.5.0", pins={"torch": "2.9.0"}),
    Request(stack="verl-0.7.1-cann8.5.0", python="3.12", arch="x86_64"),
    Request(stack="cpu", python="3.9"),
    Request(framework="verl", python="3.13"),
    Request(framework="verl", hardware="950"),
    Request(framework="verl", cann="8.1.RC1"),
    Request(framework="roll", pins={"triton-ascend": "3.2.2"}),
    Request(
        framework="verl", pins={"numpy": "2.1.0", "tensordict": "0.9.0"}, python="3.12", cann="8.5.0", driver="24.1"
    ),
    Request(framework="verl", hardware="310p"),
    Request(framework="vllm-ascend==0.9.1", hardware="a3"),
    Request(stack="roll-cann9.1.0", as_of="2026-01-01"),
    Request(stack="cpu", framework="verl"),
]


def every_way(request: Request) -> Iterator[Candidate]:
    """The slow and obvious search: each recipe with each combination of choices."""
    for recipe in all_recipes(MATRIX):
        open_to = choices(recipe, request)
        for values in itertools.product(*open_to.values()):
            yield candidate_of(recipe, dict(zip(open_to, values, strict=True)), MATRIX)


def named(stack: Stack) -> str:
    return f"{stack.name}-{stack.platform.hardware}-{stack.platform.arch}"


def stack_at(name: str, hardware: str, arch: str) -> Stack:
    stack = resolve(Request(stack=name, hardware=hardware, arch=arch), MATRIX)
    assert isinstance(stack, Stack)
    return stack


def conflict_of(request: Request) -> Conflict:
    conflict = resolve(request, MATRIX)
    assert isinstance(conflict, Conflict)
    return conflict


def every_pin_says_why_and_why_not_newer_with_sources(stack: Stack) -> None:
    assert stack.sources
    for pin in stack.pins:
        for reason in (pin.because, pin.why_not_newer):
            assert reason.rules, (pin.name, reason)
            assert all(reason.sources), (pin.name, reason)
            assert reason.sources, (pin.name, reason)
    assert all(each.because.sources for each in stack.overrides)


def torch_npu_pin_agrees_with_its_row(stack: Stack) -> None:
    pin, torch, cann = stack.pin("torch-npu"), stack.pin("torch"), stack.pin("cann")
    if stack.platform.hardware is None:
        assert pin is None
        return
    assert pin and torch and cann
    row = MATRIX.torch_npu_row(pin.version)
    assert row is not None
    arch = stack.platform.arch
    if row.index == "default":
        assert stack.platform.python in row.pythons(arch)
        assert versions.accepts(row.torch_requirement(arch), torch.version)
    # Only a vllm-ascend release's own image may have a pair that no table names.
    expected = "image-practice" if stack.framework == "vllm-ascend" else None
    assert (pairing(row, cann.version, MATRIX) or expected) == pin.strength
    assert (torch.index == "pytorch-cpu") is (arch == "x86_64" or versions.accepts(">=2.11", row.torch))


def install_order_ends_with_triton_ascend_and_names_only_what_exists(stack: Stack) -> None:
    known = {versions.requirement_name(text) for text in stack.requirements} | {pin.name for pin in stack.pins}
    git = {source.name for source in stack.git_sources}
    for step in stack.order:
        expected = {"git": git, "pip": known}.get(step.does)
        assert expected is None or set(step.what) <= expected, step
    ids = [step.id for step in stack.order]
    assert len(set(ids)) == len(ids)
    assert {what for step in stack.order if step.does == "git" for what in step.what} == git
    if stack.pin("triton-ascend"):
        assert ids[-2:] == ["triton-leftovers", "triton-ascend"]
    if stack.pin("vllm-ascend"):
        assert ids.index("torch") < ids.index("vllm") < ids.index("vllm-ascend")


def builds_cannot_load_torch_npu_or_fetch_cuda(stack: Stack) -> None:
    for source in stack.git_sources:
        if source.name == "vllm":
            assert source.build_env["VLLM_TARGET_DEVICE"] == "empty"
            assert not [text for text in source.requires if text.startswith(("torch", "xformers", "flashinfer", "ray"))]
        if source.name == "vllm-ascend":
            assert source.build_env["COMPILE_CUSTOM_KERNELS"] == "1"
            row = MATRIX.hardware_row(stack.platform.hardware or "")
            assert row is not None
            assert source.build_env["SOC_VERSION"] in row.socs
        if source.name in ("vllm", "vllm-ascend"):
            assert source.build_env["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


def numpy_bound_is_a_constraint_never_an_override_of_numpy_itself(stack: Stack) -> None:
    does = {each.does for each in stack.overrides if versions.requirement_name(each.requirement) == "numpy"}
    assert does <= {"constrain"}
    pin = stack.pin("numpy")
    if stack.platform.hardware and pin and pin.version.startswith("1."):
        assert does == {"constrain"}


@pytest.mark.slow
def test_every_published_stack_keeps_every_rule() -> None:
    """One test: what takes its time is to resolve the stacks. The last one printed is the one at fault."""
    stacks = [answer for _, answer in published(MATRIX) if isinstance(answer, Stack)]
    assert len(stacks) > 300
    for stack in stacks:
        print(named(stack))
        every_pin_says_why_and_why_not_newer_with_sources(stack)
        torch_npu_pin_agrees_with_its_row(stack)
        install_order_ends_with_triton_ascend_and_names_only_what_exists(stack)
        builds_cannot_load_torch_npu_or_fetch_cuda(stack)
        numpy_bound_is_a_constraint_never_an_override_of_numpy_itself(stack)


def test_why_not_newer_of_torch_npu_is_read_from_the_next_row() -> None:
    pin = stack_at("verl-0.7.1-cann8.5.0", "a2", "x86_64").pin("torch-npu")
    row = MATRIX.torch_npu_row("2.8.0.post4")
    assert isinstance(pin, Pin)
    assert row is not None
    assert pin.why_not_newer.says.key == "resolve.newer-pairs"
    assert pin.why_not_newer.says.args == {"newer": "2.8.0.post4", "cann": row.cann}
    assert pin.why_not_newer.rules[0] == row.id


def test_request_in_parts_prefers_the_newest_cann_the_machine_allows() -> None:
    found = {driver: resolve(Request(framework="verl", driver=driver), MATRIX) for driver in ("25.5.2", "25.0", "24.1")}
    names = {driver: stack.name for driver, stack in found.items() if isinstance(stack, Stack)}
    assert names == {
        "25.5.2": "verl-cann9.1.0",
        "25.0": "verl-0.8.0-cann9.0.0",
        "24.1": "verl-0.7.0-cann8.3.RC1",
    }


@pytest.mark.slow
def test_same_request_gives_the_same_answer() -> None:
    again = Matrix(MATRIX.folder)
    for request in [*UNSOLVABLE[::3], *list(published_requests(MATRIX))[::40]]:
        assert resolve(request, MATRIX) == resolve(request, again)


def test_cpu_stack_is_no_way_out_for_somebody_with_an_npu() -> None:
    for request in (Request(framework="verl", hardware="950"), Request(stack="verl-cann9.1.0", driver="25.0")):
        assert conflict_of(request).ways_out
        for way in conflict_of(request).ways_out:
            stack = resolve(way.request, MATRIX)
            assert isinstance(stack, Stack)
            assert stack.platform.hardware is not None


def test_nearest_way_out_changes_least() -> None:
    request = Request(stack="verl-0.7.1-cann8.5.0", python="3.12", hardware="a2")
    first = conflict_of(request).ways_out[0]
    assert first.request == Request(stack="verl-0.7.1-cann8.5.0", python="3.11", hardware="a2")


@pytest.mark.parametrize(
    ("sets", "size"),
    [
        ([{"a"}], 1),
        ([{"a", "b"}, {"b", "c"}, {"c", "d"}], 2),
        ([{"a", "x"}, {"b", "x"}, {"c", "x"}], 1),
        ([{letter} for letter in "abcdefgh"], 8),
        ([{letter, "y" if letter < "e" else "z"} for letter in "abcdefgh"], 2),
    ],
)
def test_hitting_set_is_as_small_as_the_slow_search_finds(sets: list[set[str]], size: int) -> None:
    found = smallest_hitting_set({frozenset(each) for each in sets})
    assert len(found) == size
    letters = sorted(set().union(*sets))
    smaller = itertools.combinations(letters, size - 1)
    assert not [each for each in smaller if all(set(each) & one for one in sets)]
    assert all(found & each for each in sets)


def test_a_conflict_is_explained_without_judging_most_of_the_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(stack="verl-cann9.1.0", driver="25.0")
    ways: list[Candidate] = []

    def judge(candidate: Candidate, matrix: Matrix) -> Iterator[Clash]:
        ways.append(candidate)
        return matrix_conflicts(candidate, matrix)

    monkeypatch.setattr(search, "matrix_conflicts", judge)
    search.judged.cache_clear()
    assert conflict_of(request).clashes
    assert 0 < len(ways) < 600 < sum(1 for _ in every_way(request))


def test_stack_is_plain_data() -> None:
    stack = stack_at("roll-cann9.1.0", "a3", "aarch64")
    assert json.loads(json.dumps(dict(stack.env))) == dict(stack.env)
    assert all(isinstance(text, str) for text in stack.requirements)


def test_hitting_set_beyond_the_search_has_no_rule_to_spare() -> None:
    # One copy: a hits three sets and is picked first, then b, c and d are needed anyway and make a superfluous.
    copy = ("ab", "ac", "ad", "bp", "bq", "cr", "cs", "dt", "du")
    sets = {frozenset(letter + str(number) for letter in pair) for pair in copy for number in range(3)}
    found = smallest_hitting_set(sets)
    assert found == {letter + str(number) for letter in "bcd" for number in range(3)}


def test_index_that_cannot_be_listed_is_no_objection_but_no_index_is() -> None:
    recipe = next(each for each in MATRIX.recipes if each.id == "verl-0.7.1-cann8.5.0")
    first = next(each for each in every_way(Request(stack=recipe.id)) if each.recipe is recipe)
    keys = {
        version: {clash.says.key for clash in matrix_conflicts(first.with_version("torch-npu", version), MATRIX)}
        for version in ("2.8.0.post1", "2.8.0.post3")
    }
    assert "resolve.wheel-none" not in keys["2.8.0.post1"]
    assert "resolve.wheel-none" in keys["2.8.0.post3"]


def test_the_python_range_of_vllm_ascend_holds_by_itself() -> None:
    request = checked(Request(stack="verl-0.7.1-cann8.5.0", arch="aarch64", python="3.11"), MATRIX)
    good = next(each for each in every_way(request) if each.recipe.id == request.stack)
    assert "vllm-ascend.0.13.0" not in {clash.rule for clash in matrix_conflicts(good, MATRIX)}
    bad = good.with_version("python", "3.12")
    assert "vllm-ascend.0.13.0" in {clash.rule for clash in matrix_conflicts(bad, MATRIX)}


def test_the_driver_floor_does_not_hold_on_the_950_line() -> None:
    row = MATRIX.cann_row("9.1.0")
    assert row is not None
    assert driver_is_too_old(row, "25.1.RC1", "a2")
    assert not driver_is_too_old(row, "25.1.RC1", "950")
    assert not driver_is_too_old(row, "25.2.0", "a2")
