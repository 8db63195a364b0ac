"""Many locks at once, with the real uv on small wheels; nothing leaves the loopback address."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.messages import Message, say
from npuenv.lock.file import Missing, read_lock
from npuenv.lock.make import Solved
from npuenv.maintain.lock_all import RECORD, GridRow, lock_all
from npuenv.resolve.types import GitSource, Pin, Platform, Reason, Stack

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.slow

REASON = Reason(Message("plan.why-rest"), (), ("row",))


def stack(name: str, *requirements: str, hardware: str = "a2", pins: dict[str, str] | None = None) -> Stack:
    return Stack(
        name, "verl", Platform("aarch64", "3.11", hardware),
        tuple(Pin(each, version, REASON, REASON, "identity") for each, version in (pins or {}).items()),
        requirements, (), (), (), {}, None, None, None, (), "published", ("page",),
    )  # fmt: skip


class Watched:
    """A host that counts the programs it runs."""

    def __init__(self, host: Any) -> None:
        self.host, self.runs = host, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)

    def run(self, argv: Sequence[str], **options: Any) -> Any:
        self.runs += 1
        return self.host.run(argv, **options)


def lock(market: Any, folder: Path, stacks: Sequence[Stack], **options: Any) -> tuple[list[GridRow], int, Any]:
    """What `on_done` heard, how many programs ran, and what came back or was raised."""
    heard: list[GridRow] = []
    resolver = market.resolver()
    host = Watched(resolver.host)
    try:
        result: Any = lock_all(stacks, replace(resolver, host=host), folder, on_done=heard.append, **options)
    except CannotTell as error:
        result = error
    return heard, host.runs, result


@pytest.fixture
def shop(market: Any) -> Any:
    market.put("base", "1")
    market.put("base", "2")
    market.put("upper", "1", "base>=2")
    return market


GOOD = (stack("one", "upper"), stack("one", "upper", hardware="a3"), stack("two", "upper"), stack("three", "base<2"))
BAD = stack("bad", "base<2", "upper")


def test_every_stack_locks_or_is_proved_impossible(shop: Any, tmp_path: Path) -> None:
    _, _, rows = lock(shop, tmp_path, [*GOOD, BAD])
    said = [(row.stack, row.hardware, row.status, row.packages) for row in rows]
    assert said == [
        ("one", "a2", "complete", 2),
        ("one", "a3", "complete", 2),
        ("two", "a2", "complete", 2),
        ("three", "a2", "complete", 1),
        ("bad", "a2", "impossible", 0),
    ]
    assert {proof.requirement for proof in rows[4].proof} == {"base<2", "upper"}
    assert sorted(path.name for path in tmp_path.glob("*.toml")) == [
        "one.aarch64-cp311-glibc2.28.toml",
        "three.aarch64-cp311-glibc2.28.toml",
        "two.aarch64-cp311-glibc2.28.toml",
    ]


def test_the_same_python_layer_is_solved_once_under_every_name(shop: Any, tmp_path: Path) -> None:
    _, runs, rows = lock(shop, tmp_path, GOOD[:3])
    assert runs == 3  # uv's version, the resolution, who needs what
    assert [row.seconds > 0 for row in rows] == [True, False, False]
    one, two = (read_lock(tmp_path / f"{name}.aarch64-cp311-glibc2.28.toml") for name in ("one", "two"))
    assert (one.stack, two.stack) == ("one", "two")
    assert one.packages == two.packages and one.inputs == two.inputs != ""


def test_a_second_run_starts_no_program_even_for_the_impossible(shop: Any, tmp_path: Path) -> None:
    _, _, first = lock(shop, tmp_path, [*GOOD, BAD])
    heard, runs, second = lock(shop, tmp_path, [*GOOD, BAD], offline=True)
    assert runs == 0 and all(row.reused for row in heard)
    assert [replace(row, seconds=0.0, reused=False) for row in first] == [replace(row, reused=False) for row in second]


def test_renewing_asks_again(shop: Any, tmp_path: Path) -> None:
    lock(shop, tmp_path, [GOOD[0], BAD])
    _, runs, rows = lock(shop, tmp_path, [GOOD[0], BAD], renew=True)
    assert runs > 3 and not any(row.reused for row in rows)


def test_other_inputs_make_another_lock(shop: Any, tmp_path: Path) -> None:
    lock(shop, tmp_path, [GOOD[3]])
    _, runs, rows = lock(shop, tmp_path, [stack("three", "base")])
    assert runs == 3 and not rows[0].reused
    assert [p.version for p in read_lock(tmp_path / "three.aarch64-cp311-glibc2.28.toml").packages] == ["2"]


def test_another_tag_of_a_component_is_written_without_asking(shop: Any, tmp_path: Path) -> None:
    def built(ref: str) -> Stack:
        return replace(GOOD[3], git_sources=(GitSource("comp", "https://host/comp", ref, False),))

    lock(shop, tmp_path, [built("v1")])
    _, runs, rows = lock(shop, tmp_path, [built("v2")])
    assert runs == 0 and rows[0].reused
    assert read_lock(tmp_path / "three.aarch64-cp311-glibc2.28.toml").sources[0].ref == "v2"


def test_what_becomes_impossible_loses_its_lock_and_comes_back(shop: Any, tmp_path: Path) -> None:
    path = tmp_path / "three.aarch64-cp311-glibc2.28.toml"
    lock(shop, tmp_path, [GOOD[3]])
    assert path.is_file()
    lock(shop, tmp_path, [stack("three", "base>=3")])
    assert not path.exists() and list(json.loads((tmp_path / RECORD).read_text())) == [path.name]
    lock(shop, tmp_path, [GOOD[3]])
    assert path.is_file() and json.loads((tmp_path / RECORD).read_text()) == {}


def test_a_damaged_lock_or_record_is_made_anew(shop: Any, tmp_path: Path) -> None:
    lock(shop, tmp_path, [GOOD[3], BAD])
    (tmp_path / "three.aarch64-cp311-glibc2.28.toml").write_text("schema = 1\n")
    (tmp_path / RECORD).write_text("{")
    _, _, rows = lock(shop, tmp_path, [GOOD[3], BAD])
    assert [(row.status, row.reused) for row in rows] == [("complete", False), ("impossible", False)]


def test_ctrl_c_between_two_stacks_loses_nothing(shop: Any, tmp_path: Path) -> None:
    done: list[GridRow] = []

    def interrupt(row: GridRow) -> None:
        done.append(row)
        raise KeyboardInterrupt

    stacks = [stack(f"s{number}", "base", f"base!={number + 5}") for number in range(6)]
    with pytest.raises(KeyboardInterrupt):
        lock_all(stacks, shop.resolver(), tmp_path, on_done=interrupt)
    assert len(done) == 1
    kept = {path.name.split(".")[0] for path in tmp_path.glob("*.toml")}
    assert kept == {done[0].stack}
    _, _, rows = lock(shop, tmp_path, stacks)
    assert {row.stack for row in rows if row.reused} == kept
    assert {row.status for row in rows} == {"complete"}


def test_without_the_registry_what_is_there_is_given_and_the_rest_counted(
    shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock(shop, tmp_path, [GOOD[0], BAD])
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    heard, _, error = lock(shop, tmp_path, [GOOD[0], BAD, GOOD[3]])
    assert [(row.stack, row.status, row.reused) for row in heard] == [
        ("one", "complete", True),
        ("bad", "impossible", True),
    ]
    assert isinstance(error, CannotTell)
    assert error.message.key == "locking.unanswered"
    assert (error.message.args["count"], error.message.args["all"]) == (1, 3)


def solver(monkeypatch: pytest.MonkeyPatch, silent: set[str]) -> list[str]:
    """A stand-in for uv that has no answer for some stacks, one at a time. Gives the list of those it is asked for."""
    asked: list[str] = []

    def solve(stack: Stack, *_: object) -> Solved:
        asked.append(stack.name)
        if stack.name in silent:
            raise CannotTell(Message("lock.index-out-of-reach", {"why": stack.name}))
        return Solved((), ())

    monkeypatch.setattr("npuenv.maintain.lock_all.solve", solve)
    monkeypatch.setattr("npuenv.maintain.lock_all._AT_ONCE", 1)
    return asked


def test_after_three_silent_answers_in_a_row_no_more_is_asked(
    market: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = solver(monkeypatch, {"one", "two", "four", "five", "six"})
    stacks = [stack(name, name) for name in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
    heard, _, error = lock(market, tmp_path, stacks)
    assert asked == ["one", "two", "three", "four", "five", "six"]
    assert [row.stack for row in heard] == ["three"]
    assert isinstance(error, CannotTell)
    assert (error.message.args["count"], error.message.args["all"]) == (7, 8)


def test_offline_asks_only_the_cache(shop: Any, tmp_path: Path) -> None:
    lock(shop, tmp_path / "one", [GOOD[0]])
    asked = len(shop.asked)
    heard, _, _ = lock(shop, tmp_path / "other", [GOOD[0]], offline=True)
    assert [row.status for row in heard] == ["complete"] and len(shop.asked) == asked
    _, _, error = lock(shop, tmp_path / "other", [stack("new", "unseen")], offline=True)
    assert isinstance(error, CannotTell) and len(shop.asked) == asked


def test_two_stacks_that_would_share_a_file_are_refused(shop: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        lock(shop, tmp_path, [stack("one", "base"), stack("one", "upper", hardware="a3")])
    assert "one (a2)" in say(caught.value.message) and "one (a3)" in say(caught.value.message)


def test_a_shared_proof_speaks_of_each_stack_by_its_own_sources(shop: Any, tmp_path: Path) -> None:
    other = replace(BAD, name="worse", sources=("other page",))
    _, _, rows = lock(shop, tmp_path, [BAD, other])
    assert [{proof.source for proof in row.proof} for row in rows] == [{"bad (page)"}, {"worse (other page)"}]
    assert "bad depends on" in rows[0].detail and "worse depends on" in rows[1].detail


def test_fill_asks_again_for_what_is_partial_and_for_nothing_else(
    market: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def solve(stack: Stack, *_: object) -> Solved:
        asked.append(stack.name)
        gap = (Missing("torch", "1", "index-out-of-reach", "pytorch-cpu"),) if stack.name == "part" else ()
        return Solved((), gap)

    monkeypatch.setattr("npuenv.maintain.lock_all.solve", solve)
    stacks = [stack("whole", "one"), stack("part", "two")]
    lock(market, tmp_path, stacks)
    asked.clear()
    lock(market, tmp_path, stacks)
    assert asked == []
    heard, _, _ = lock(market, tmp_path, stacks, fill=True)
    assert asked == ["part"]
    assert {row.stack: row.status for row in heard} == {"whole": "complete", "part": "partial"}
