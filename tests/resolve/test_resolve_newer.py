"""Why this release of a framework."""

from __future__ import annotations

import pytest

from npuenv.matrix import load_matrix
from npuenv.resolve import newer_release, resolve
from npuenv.resolve.types import Request, Stack

MATRIX = load_matrix()


@pytest.mark.parametrize(
    ("request_", "key"),
    [
        (Request(framework="verl", cann="8.5.0"), "resolve.newer-release-clashes"),
        (Request(stack="verl-0.7.1-cann8.5.0"), "resolve.newer-release-fits"),
        (Request(stack="verl-cann9.1.0"), "resolve.newer-release-fits"),
        (Request(stack="verl-0.9.1-cann9.1.0"), None),
        (Request(stack="roll-cann9.1.0"), None),
        (Request(stack="cpu"), None),
    ],
)
def test_a_newer_release_is_named_with_what_speaks_against_it(request_: Request, key: str | None) -> None:
    stack = resolve(request_, MATRIX)
    assert isinstance(stack, Stack)
    found = newer_release(stack, request_, MATRIX)
    assert (found and found.key) == key
    if found is not None:
        assert found.args["newer"] != found.args["release"]


def test_a_day_before_the_newer_release_is_what_speaks_against_it() -> None:
    request = Request(stack="verl-0.7.0-cann8.3.RC1", as_of="2026-02-01")
    stack = resolve(request, MATRIX)
    assert isinstance(stack, Stack)
    found = newer_release(stack, request, MATRIX)
    why = found.args["why"] if found else ()
    assert isinstance(why, tuple) and [each.key for each in why] == ["resolve.asked-day"]
