"""Names and numbers as ranges: `node[01-03,07]`, `3,5-7`. An inventory reads what `fold` writes."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")
_PARTS = re.compile(r"(\d+)")  # splits into texts (even indexes) and numbers (odd indexes)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in order. Example: (a, 1), (b, 2), (a, 3) -> {a: [1, 3], b: [2]}."""
    found: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return dict(found)


def fold(names: Iterable[str]) -> str:
    """The names with their numbers as ranges, in natural order, each once; separated by a comma and a blank.

    Names of one shape are folded at the number that leaves the fewest ranges. Leading zeros stay.
    Example: node07, node01, node02, node03, head -> "head, node[01-03,07]"
    """
    split = (_PARTS.split(name) for name in sorted(set(names), key=natural))
    shapes = grouped((tuple(parts[::2]), parts) for parts in split)
    return ", ".join(word for shape in shapes.values() for word in _fold_shape(shape))


def fold_numbers(numbers: Iterable[int]) -> str:
    """The numbers as ranges, in order, each once. Example: 7, 3, 5, 6 -> "3,5-7"."""
    return ",".join(_runs([str(number) for number in sorted(set(numbers))]))


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts node2 before node10. Example: node2 -> ((0, "node"), (2, "2"), (0, ""))."""
    return tuple((int(part) if at % 2 else 0, part) for at, part in enumerate(_PARTS.split(name)))


def _fold_shape(rows: Sequence[Sequence[str]]) -> list[str]:
    """The folded names of one shape; each row is a name split into texts and numbers."""
    folded = (_fold_at(rows, at) for at in range(len(rows[0]) - 2, 0, -2))  # the last number first
    return min(folded, key=len, default=["".join(row) for row in rows])


def _fold_at(rows: Sequence[Sequence[str]], at: int) -> list[str]:
    around = grouped((("".join(row[:at]), "".join(row[at + 1 :])), row[at]) for row in rows)
    folded = []
    for (head, tail), numbers in around.items():
        runs = _runs(numbers)
        is_single = len(runs) == 1 and "-" not in runs[0]
        folded.append(f"{head}{runs[0] if is_single else '[' + ','.join(runs) + ']'}{tail}")
    return folded


def _runs(numbers: Sequence[str]) -> list[str]:
    """Consecutive numbers as FIRST-LAST; the numbers are sorted and may have leading zeros."""
    runs: list[list[str]] = []
    for number in numbers:
        if runs and number == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][0])):
            runs[-1].append(number)
        else:
            runs.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
