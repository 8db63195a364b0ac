"""The smallest clashing sets, found with the real uv on small wheels; nothing leaves the loopback address."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.documents import load_toml
from npuenv.core.messages import Message
from npuenv.lock.conflict import prove, smallest
from npuenv.lock.file import Lock, parse_lock, write_lock
from npuenv.lock.inputs import REQUIRE, InputLine, Inputs, inputs_of
from npuenv.lock.make import make_lock
from npuenv.lock.uv import Supply, pip_compile
from npuenv.resolve.types import GitSource, Override, Pin, Platform, Reason, Stack

if TYPE_CHECKING:
    from collections.abc import Sequence

CASES: list[dict[str, Any]] = load_toml(Path(__file__).with_name("conflicts.toml"))["case"]


def stack_of(case: dict[str, Any]) -> Stack:
    measured = Reason(Message("plan.why-rest"), (), ("measured",))

    def pin(name: str, version: str) -> Pin:
        source = f"--pin {name}=={version}" if name in case.get("user", ()) else f"row of {name}"
        reason = Reason(Message("plan.why-rest"), (name,), (source,))
        return Pin(name, version, reason, reason, "image-practice")

    return Stack(
        name="guide",
        framework="verl",
        platform=Platform("aarch64", "3.11"),
        pins=tuple(pin(*item) for item in case.get("pins", {}).items()),
        requirements=tuple(case.get("requirements", ())),
        overrides=tuple(
            Override("it", kind, text, measured)
            for kind in ("constrain", "replace", "exclude")
            for text in case.get(kind, ())
        ),
        git_sources=tuple(
            GitSource(name, f"https://host/{name}", "v1.0", False, requires=tuple(requires))
            for name, requires in case.get("built", {}).items()
        ),
        order=(),
        env={},
        image=None,
        cann_root=None,
        soc_version=None,
        system_packages=(),
        verified_by="published",
        sources=("the page",),
        date=case.get("date", ""),
    )


def fill(market: Any, case: dict[str, Any]) -> None:
    for text in case["wheels"]:
        what, _, needs = text.partition(" <- ")
        market.put(
            *what.split(),
            *(part.strip() for part in needs.split(",") if part),
            day=case.get("days", {}).get(what, "2025-01-01"),
            tag=case.get("tags", {}).get(what, ""),
            python=case.get("pythons", {}).get(what, ""),
        )


def resolves(inputs: Inputs, market: Any, folder: Path) -> bool:
    folder.mkdir()
    return pip_compile(inputs, Supply(), market.resolver(), folder).code == 0


@pytest.mark.parametrize(
    "case",
    [
        # Each takes uv half a second or more: every third here.
        pytest.param(case, id=case["name"], marks=() if at % 3 == 0 else pytest.mark.slow)
        for at, case in enumerate(CASES)
    ],
)
@pytest.mark.slow
def test_the_smallest_clash_is_found_and_none_of_it_can_be_spared(
    case: dict[str, Any], market: Any, tmp_path: Path
) -> None:
    fill(market, case)
    stack = stack_of(case)
    lock = make_lock(stack, market.resolver())
    assert {proof.requirement: proof.source for proof in lock.proof} == case["proof"]
    assert lock.packages == () and lock.missing[0].name == "*" and lock.missing[0].detail
    inputs = inputs_of(stack)
    members = [line for line in inputs.lines if line.proof in lock.proof]
    for number, line in enumerate(members):
        fewer = tuple(other for other in inputs.lines if other != line)
        assert resolves(replace(inputs, lines=fewer), market, tmp_path / str(number)), line


def test_a_clash_is_written_into_the_lock_and_read_back(market: Any) -> None:
    fill(market, CASES[0])
    lock: Lock = make_lock(stack_of(CASES[0]), market.resolver())
    assert len(lock.proof) == 2 and parse_lock(write_lock(lock)) == lock


def test_the_search_answers_from_the_cache(market: Any) -> None:
    fill(market, CASES[3])
    make_lock(stack_of(CASES[3]), market.resolver())
    pages = [path for path in market.asked if path.startswith("/simple/")]
    # The failing run asks for four packages; the subsets of it need nothing new, and the project itself is no package.
    assert sorted(pages) == ["/simple/far/", "/simple/low/", "/simple/mid/", "/simple/top/"]


@pytest.mark.slow
def test_a_set_of_a_hundred_lines_takes_few_runs(market: Any) -> None:
    others = [f"pack{number} 1" for number in range(100)]
    case = {"wheels": [*others, "base 1", "base 2"], "built": {"one": ["base<2"], "two": ["base>=2"]}}
    case["requirements"] = [other.split()[0] for other in others]
    fill(market, case)
    resolver, runs = market.resolver(), []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(resolver.host, name)

        def run(self, argv: Sequence[str], **options: Any) -> Any:
            runs.append(argv)
            return resolver.host.run(argv, **options)

    lock = make_lock(stack_of(case), replace(resolver, host=Counting()))
    assert {proof.requirement for proof in lock.proof} == {"base<2", "base>=2"}
    # The failing one, the package it names alone, each of two lines dropped (perhaps asked anew online), uv's version.
    assert len(runs) <= 7


def test_an_index_that_falls_silent_during_the_search_proves_nothing(
    market: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    inputs = inputs_of(stack_of(CASES[0]))
    assert prove(inputs, Supply(), market.resolver(), "Because one and two clash") == ()


def lines(*texts: str) -> list[InputLine]:
    return [InputLine(REQUIRE, text, "s") for text in texts]


def test_a_complaint_that_names_too_little_still_ends_in_the_smallest_set() -> None:
    """The words point at one package; the clash is between two others."""

    def complain(some: Sequence[InputLine]) -> str | None:
        return "Because d" if {"a", "c"} <= {line.text for line in some} else None

    assert [line.text for line in smallest(complain, lines(*"abcde"), "Because d")] == ["a", "c"]


def test_one_of_two_independent_clashes_is_given_whole() -> None:
    def complain(some: Sequence[InputLine]) -> str | None:
        names = {line.text for line in some}
        return "a b" if {"a", "b"} <= names else "c d" if {"c", "d"} <= names else None

    assert [line.text for line in smallest(complain, lines(*"acbd"), "a b")] == ["a", "b"]
