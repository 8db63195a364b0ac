"""What a stack asks of the resolver, line by line; no uv is run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuenv.core.messages import Message
from npuenv.lock.conflict import pulled_in_by, unwanted
from npuenv.lock.file import STACK, LockedPackage, Proof
from npuenv.lock.inputs import CONSTRAIN, EXCLUDE, REPLACE, REQUIRE, InputLine, inputs_of
from npuenv.resolve.types import GitSource, Override, Pin, Platform, Reason, Stack

REASON = Reason(Message("plan.why-rest"), (), ("row",))
DAY = "2025-06-30"


def stack(*requirements: str, built: tuple[str, ...] = (), pins: tuple[Pin, ...] = (), date: str = "") -> Stack:
    """A stack whose component `comp` asks for `built`."""
    sources = (GitSource("comp", "https://host/comp", "v1", False, requires=built),)
    return Stack(
        "tiny", "verl", Platform("aarch64", "3.11"), pins, requirements, (), sources, (), {}, None, None, None, (),
        "published", ("page",), date=date,
    )  # fmt: skip


def pin(name: str, version: str, index: str | None = None) -> Pin:
    return Pin(name, version, REASON, REASON, "identity", index)


@pytest.mark.parametrize(
    ("text", "names"),
    [("base==1.0", ("base",)), ("base===1.0", ("base",)), ("base==1.*", ()), ("base>=1,<2", ()), ("base", ())],
)
def test_only_a_version_that_is_stated_in_full_may_be_of_any_age(text: str, names: tuple[str, ...]) -> None:
    assert inputs_of(stack(text, date=DAY)).any_age == names


def test_what_a_built_component_pins_is_not_free_of_the_day() -> None:
    assert inputs_of(stack("base", built=("base==1.0",), date=DAY)).any_age == ()


def test_floors_are_for_stacks_without_a_day_and_below_their_own_pins() -> None:
    floor = "datasets>=3"
    assert floor in inputs_of(stack()).of(CONSTRAIN)
    assert inputs_of(stack(date=DAY)).of(CONSTRAIN) == []
    assert floor not in inputs_of(stack(pins=(pin("datasets", "2.14.4"),))).of(CONSTRAIN)


def test_what_a_component_asks_of_a_pinned_package_is_its_extras_alone() -> None:
    asked = inputs_of(stack(built=("Base[fast,all]<2", "more<3"), pins=(pin("base", "1.0"),)))
    assert asked.of(REQUIRE) == ["base==1.0", "Base[all,fast]", "more<3"]
    assert [line.source for line in asked.lines if line.is_dependency] == ["comp 1 (Requires-Dist)"] * 2


def test_what_is_excluded_or_built_itself_is_not_asked_for_by_a_component() -> None:
    given = stack("upper", built=("Gone>=1", "comp>=2", "base"))
    given = replace(given, overrides=(Override("comp", "exclude", "gone", REASON),))
    asked = inputs_of(given)
    assert (asked.of(REQUIRE), asked.of(EXCLUDE)) == (["upper", "base"], ["gone"])


def test_a_pin_with_a_local_part_stands_above_what_components_ask() -> None:
    asked = inputs_of(stack(built=("torch==2.8.0",), pins=(pin("torch", "2.8.0+cpu"), pin("other", "1.0"))))
    assert asked.of(REPLACE) == ["torch==2.8.0+cpu"]


def test_what_may_be_of_any_age_and_what_a_stand_in_declares_count_for_the_digest() -> None:
    asked = inputs_of(stack("base", pins=(pin("torch", "2.8.0+cpu", "pytorch-cpu"),), date=DAY))
    assert replace(asked, any_age=("base", "torch")).digest != asked.digest
    assert replace(asked, labels=(("torch", "other"),)).digest != asked.digest
    (stand_in,) = (line for line in asked.canonical().splitlines() if line.startswith("stand-in torch "))
    assert "sympy>=1.13.3" in stand_in
    unknown = inputs_of(stack(pins=(pin("nobody-knows", "1.0", "pytorch-cpu"),)))
    assert "stand-in nobody-knows ?" in unknown.canonical().splitlines()


CUDA = LockedPackage("nvidia-cublas-cu12", "12.8", (), None, ("other-cu12", STACK))


@pytest.mark.parametrize("is_dependency", [False, True])
def test_only_the_recipe_itself_may_choose_a_cuda_package(is_dependency: bool) -> None:
    line = InputLine(REQUIRE, "nvidia-cublas-cu12>=12", "somebody", is_dependency)
    asked = replace(inputs_of(stack()), lines=(line,))
    bad = unwanted((CUDA,), asked)
    assert bad == ((CUDA,) if is_dependency else ())
    assert pulled_in_by(bad, (CUDA,), asked) == (
        (Proof("nvidia-cublas-cu12==12.8", "somebody"),) if is_dependency else ()
    )
