"""Which lock on a shelf is taken for a stack, and why one that is not complete is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.errors import NothingFits
from npuenv.facts.pip import PipSettings
from npuenv.host.local import LocalHost
from npuenv.lock import Lock, LockedPackage, Missing, Proof
from npuenv.lock.ask import Resolver
from npuenv.lock.inputs import inputs_of
from npuenv.lock.refuse import require_complete
from npuenv.lock.shelf import find_lock, put_lock
from npuenv.messages import Message, say
from npuenv.resolve.types import Pin, Platform, Reason, Stack

if TYPE_CHECKING:
    from pathlib import Path

REASON = Reason(Message("plan.why-rest"), (), ("row",))
STACK = Stack(
    "tiny", "cpu", Platform("x86_64", "3.11"), (Pin("base", "1.0", REASON, REASON, "identity"),), ("upper",), (), (),
    (), {}, None, None, None, (), "published", ("page",),
)  # fmt: skip
LOCK = Lock(
    "tiny",
    STACK.platform.tag,
    "npuenv 1, uv 2",
    (LockedPackage("base", "1.0", ("a" * 64,)), LockedPackage("upper", "1.0", ("b" * 64,))),
    inputs=inputs_of(STACK).digest,
)


@pytest.fixture
def shelves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder of own locks and that of the shipped ones, both empty."""
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    monkeypatch.setattr("npuenv.lock.shelf.shipped_folder", lambda: shipped)
    return own, shipped


def test_an_own_lock_stands_before_the_shipped_one(shelves: tuple[Path, Path]) -> None:
    own, shipped = shelves
    assert find_lock(STACK, own) is None
    put_lock(LOCK, shipped)
    assert find_lock(STACK, own) == LOCK
    mine = replace(LOCK, made_with="npuenv 2, uv 3")
    put_lock(mine, own)
    assert find_lock(STACK, own) == mine


def test_a_lock_that_answers_another_question_is_passed_over(shelves: tuple[Path, Path]) -> None:
    own, shipped = shelves
    put_lock(replace(LOCK, inputs="c" * 64), own)
    assert find_lock(STACK, own) is None
    put_lock(LOCK, shipped)
    assert find_lock(STACK, own) == LOCK
    put_lock(replace(LOCK, inputs=""), own)  # one that does not say what was asked counts by its pins
    assert find_lock(STACK, own) == replace(LOCK, inputs="")


def test_a_lock_with_another_version_than_the_stack_pins_is_passed_over(shelves: tuple[Path, Path]) -> None:
    own, _ = shelves
    other = LockedPackage("base", "1.1", ("a" * 64,))
    put_lock(replace(LOCK, packages=(other, LOCK.packages[1]), inputs=""), own)
    assert find_lock(STACK, own) is None


def test_an_impossible_lock_is_refused_with_what_clashes_and_not_as_a_partial_one() -> None:
    resolver = Resolver(LocalHost(), "uv", PipSettings(), {})
    proof = (Proof("base==1.0", "row"), Proof("base>=2", "upper 1.0 (Requires-Dist)"))
    missing = (Missing("*", "", "does-not-resolve", detail="Because of base."),)
    lock = replace(LOCK, packages=(), missing=missing, proof=proof)
    with pytest.raises(NothingFits) as caught:
        require_complete(lock, resolver)
    text = say(caught.value.message)
    assert caught.value.message.key == "lock.impossible"
    assert "base==1.0" in text and "base>=2" in text and "upper 1.0 (Requires-Dist)" in text
    with pytest.raises(NothingFits) as caught:
        require_complete(replace(lock, proof=()), resolver)
    assert "Because of base." in say(caught.value.message)
    require_complete(LOCK, resolver)
