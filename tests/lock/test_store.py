"""Which lock on a shelf is taken for a stack, and why one that is not complete is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import NothingFits
from npuenv.core.messages import Message, say
from npuenv.facts.pip import PipSettings
from npuenv.host.local import LocalHost
from npuenv.lock.checking import require_complete
from npuenv.lock.export import fill_command
from npuenv.lock.file import Lock, LockedPackage, LockedSource, Missing, Proof
from npuenv.lock.inputs import inputs_of
from npuenv.lock.store import as_locked, find_lock, put_lock
from npuenv.lock.uv import Resolver
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import GitSource, Pin, Platform, Reason, Request, Stack

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
    monkeypatch.setattr("npuenv.lock.store.shipped_folder", lambda: shipped)
    return own, shipped


def test_an_own_lock_stands_before_the_shipped_one(shelves: tuple[Path, Path]) -> None:
    own, shipped = shelves
    assert find_lock(STACK, own) is None
    put_lock(LOCK, shipped)
    assert find_lock(STACK, own) == LOCK
    mine = replace(LOCK, made_with="npuenv 2, uv 3")
    put_lock(mine, own)
    assert find_lock(STACK, own) == mine


def test_a_complete_lock_stands_before_one_that_lacks_something(shelves: tuple[Path, Path]) -> None:
    """`lock --all` writes partial ones on a machine that does not reach an index."""
    own, shipped = shelves
    lacking = replace(LOCK, missing=(Missing("base", "1.0", "index-out-of-reach", "special"),))
    put_lock(lacking, own)
    assert find_lock(STACK, own) == lacking
    put_lock(replace(LOCK, inputs="c" * 64), shipped)
    assert find_lock(STACK, own) == lacking
    put_lock(LOCK, shipped)
    assert find_lock(STACK, own) == LOCK


def test_what_is_built_is_taken_from_where_the_lock_has_it() -> None:
    two = GitSource("two", "https://b", "v1", False, commit="89abcdef01")
    now = (GitSource("one", "https://a", "v2", False, {"SOC": "x"}, commit="0123456789"), two)
    locked = (
        LockedSource("one", "https://c", "v1", True, "editable"),
        LockedSource("two", "https://b", "v1", False, "install"),
    )
    stack = as_locked(replace(STACK, git_sources=now), replace(LOCK, sources=locked))
    # What was recorded about another place is not true of this one.
    assert stack.git_sources == (GitSource("one", "https://c", "v1", True, {"SOC": "x"}, "editable"), two)


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


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_completes_a_partial_lock_is_said_for_its_platform_and_request(lang: str) -> None:
    resolver = Resolver(LocalHost(), "uv", PipSettings(), {})
    missing = (Missing("torch", "9.1", "index-out-of-reach", "special"),)
    lock = replace(LOCK, stack="tiny", platform="aarch64-cp312-glibc2.28", missing=missing)
    full = Request(hardware="310p", cann="8.5.0", pins={"numpy": "1.26.4"}, is_newest=True)
    plain = "npuenv lock tiny --fill --arch aarch64 --python 3.12"
    wanted = f"{plain} --hardware 310p --cann 8.5.0 --newest --pin numpy==1.26.4"
    for request, line in ((None, plain), (Request(stack="tiny", arch="aarch64"), plain), (full, wanted)):
        with pytest.raises(NothingFits) as caught:
            require_complete(lock, resolver, request)
        assert caught.value.hint is not None
        command = say(caught.value.hint, lang).split("`")[1]
        assert sorted(command.split()) == sorted(line.split()) and command.startswith("npuenv lock tiny --fill ")


@pytest.mark.parametrize("platform", ["aarch64-cp310-glibc2.28", "x86_64-cp314-glibc2.28"])
def test_the_command_that_fills_asks_for_the_lock_it_was_made_for(platform: str) -> None:
    from npuenv.cli.lock import command

    words = fill_command(replace(LOCK, stack="cpu", platform=platform)).split()
    assert words[:2] == ["npuenv", "lock"]
    options = command.make_context("lock", words[2:]).params
    asked = Request(stack=options["stack"], arch=options["arch"], python=options["python"])
    stack = resolve(asked, load_matrix())
    assert isinstance(stack, Stack) and (stack.name, stack.platform.tag) == ("cpu", platform) and options["fill"]


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
