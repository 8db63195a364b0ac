"""Requests with more pins than ways can be looked at: a whole environment, frozen."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuenv.lock.file import read_lock
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.conflict import clashing_pins, fitting_pins, with_pins
from npuenv.resolve.search import by_preference, first_fit
from npuenv.resolve.types import Conflict, Request, Stack

MATRIX = load_matrix()
LOCKS = Path(__file__).parents[2] / "lockfiles"


def frozen(stack: str) -> dict[str, str]:
    lock = read_lock(LOCKS / f"{stack}.aarch64-cp311-glibc2.28.toml")
    return {package.name: package.version for package in lock.packages}


def asking(pins: dict[str, str], **wishes: str) -> Request:
    """A request with the pins of a file."""
    return Request(pins=pins, origins={name: f"freeze.txt:{at}" for at, name in enumerate(pins, 1)}, **wishes)  # type: ignore[arg-type]


@pytest.mark.parametrize("stack", ["verl-0.7.1-cann8.5.0", "vllm-ascend-0.18.0", "roll-guide-cann8.3.RC1"])
def test_a_whole_environment_finds_the_stack_it_was_made_from(stack: str) -> None:
    found = resolve(asking(frozen(stack), hardware="a2", arch="aarch64"), MATRIX)
    assert isinstance(found, Stack)
    heart = {name: pin.version for name in ("torch-npu", "triton-ascend") if (pin := found.pin(name))}
    assert heart.items() <= frozen(stack).items()


@pytest.mark.slow
def test_one_clash_of_many_is_explained_and_the_way_out_leaves_out_no_more_than_needed() -> None:
    request = asking(frozen("verl-0.7.1-cann8.5.0"), stack="verl-cann9.1.0")
    conflict = resolve(request, MATRIX)
    assert isinstance(conflict, Conflict)
    assert len(conflict.clashes) <= 4
    (way,) = conflict.ways_out
    assert isinstance(resolve(way.request, MATRIX), Stack)
    left_out = request.pins.keys() - way.request.pins.keys()
    assert {"torch", "torch-npu", "triton-ascend"} <= left_out
    assert len(left_out) < 20
    for name in sorted(left_out)[::3]:
        one_more = with_pins(request, {*way.request.pins, name})
        assert not isinstance(resolve(one_more, MATRIX), Stack), name


def test_the_clashing_pins_do_and_none_of_them_can_be_spared() -> None:
    request = asking(frozen("verl-0.7.1-cann8.5.0"), stack="verl-cann9.1.0")
    asked, _ = by_preference(request, MATRIX)
    few = clashing_pins(asked, request, MATRIX)
    assert few.pins
    assert first_fit(asked, few, MATRIX) is None
    for name in few.pins:
        assert first_fit(asked, with_pins(request, few.pins.keys() - {name}), MATRIX) is not None


def test_where_the_pins_are_not_to_blame_none_is_named() -> None:
    plain = {f"plain-{number}": "1.0" for number in range(20)}
    request = Request(stack="verl-950", pins=plain)
    conflict = resolve(request, MATRIX)
    assert isinstance(conflict, Conflict)
    assert [clash.says.args.get("field") for clash in conflict.clashes if clash.rule == "request"] == ["stack"]
    assert conflict.ways_out == ()
    asked, _ = by_preference(request, MATRIX)
    assert fitting_pins(asked, request, MATRIX) is None
