"""Names folded into ranges."""

from __future__ import annotations

import re

import pytest

from npuenv.cluster.inventory import fold, fold_numbers

CASES = [
    ([], ""),
    (["head"], "head"),
    (["node01"], "node01"),
    (["node07", "node01", "node02", "node03"], "node[01-03,07]"),
    (["node1", "node2", "node9", "node10", "node11"], "node[1-2,9-11]"),
    (["node08", "node09", "node10"], "node[08-10]"),
    (["node99", "node100"], "node[99-100]"),
    (["node1", "node01"], "node[01,1]"),
    (["a1", "b1", "a2"], "a[1-2], b1"),
    (["10.0.0.9", "10.0.0.10", "10.0.1.10"], "10.0.0.[9-10], 10.0.1.10"),
    (["n1.dc2.example", "n2.dc2.example", "n3.dc2.example"], "n[1-3].dc2.example"),
    (["r1-n1", "r1-n2", "r2-n1", "r2-n2"], "r1-n[1-2], r2-n[1-2]"),
    (["x", "x", "y"], "x, y"),
]


@pytest.mark.parametrize(("names", "expected"), CASES, ids=[expected or "none" for _, expected in CASES])
def test_names_are_folded_in_natural_order(names: list[str], expected: str) -> None:
    assert fold(names) == expected


@pytest.mark.parametrize("names", [names for names, _ in CASES])
def test_what_is_folded_says_the_same_names_again(names: list[str]) -> None:
    assert sorted(_expanded(fold(names))) == sorted(set(names))


def test_sixty_four_nodes_are_one_word() -> None:
    assert fold(f"node{number:02}" for number in range(1, 65)) == "node[01-64]"


def test_numbers_of_cards_are_folded() -> None:
    assert fold_numbers([7, 3, 5, 6, 3]) == "3,5-7"
    assert fold_numbers([]) == ""


def _expanded(text: str) -> list[str]:
    """The names that folded text stands for, one range at a time."""
    words = [word for word in re.split(r", ", text) if word]
    while any("[" in word for word in words):
        words = [name for word in words for name in _opened(word)]
    return words


def _opened(word: str) -> list[str]:
    found = re.search(r"\[([\d,-]+)\]", word)
    if found is None:
        return [word]
    names = []
    for run in found[1].split(","):
        first, _, last = run.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        names += [f"{word[: found.start()]}{str(number).zfill(len(first))}{word[found.end() :]}" for number in numbers]
    return names
