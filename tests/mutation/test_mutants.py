"""What counts as a small change of meaning, and that a place is known by what stands around it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.mutation.mutants import Mutant, drawn, is_another, marked, mutants_of

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = b'''\
"""A module."""

import re

_ROW = re.compile(r"^a?b$")


class State:
    """\xc3\xbcber."""

    def left(self, rows: list[int], most: int = 3) -> bool:
        """Is true."""
        assert rows
        if not rows and most > 1:
            raise ValueError(State.FULL, State.EMPTY)
        return bool(_ROW.match("ab")) or rows[0] == most

    def __repr__(self) -> str:
        return "a" if self.left([]) else "b"
'''


def changes(source: bytes = SOURCE) -> list[tuple[str, str, str, str]]:
    return [(each.within, each.kind, each.before, each.after) for each in mutants_of("a.py", source)]


def test_each_kind_of_change_is_found_once_and_nothing_that_no_user_sees() -> None:
    left, test = "State.left", "not rows and most > 1"
    assert sorted(changes()) == sorted([
        ("_ROW", "pattern", "^", ""),
        ("_ROW", "pattern", "?", ""),
        ("_ROW", "pattern", "$", ""),
        (left, "condition", test, "True"),
        (left, "condition", test, "False"),
        (left, "junction", "and", "or"),
        (left, "not dropped", "not rows", "rows"),
        (left, "comparison", ">", ">="),
        (left, "constant", "1", "2"),
        (left, "dropped", "raise ValueError(State.FULL, State.EMPTY)", "pass"),
        (left, "arguments", "State.FULL, State.EMPTY", "State.EMPTY, State.FULL"),
        (left, "member", "State.FULL", "State.EMPTY"),
        (left, "member", "State.EMPTY", "State.FULL"),
        (left, "returned", 'bool(_ROW.match("ab")) or rows[0] == most', "False"),
        (left, "method", "match", "search"),
        (left, "junction", "or", "and"),
        (left, "index", "0", "-1"),
        (left, "comparison", "==", "!="),
    ])  # fmt: skip


def test_a_change_leaves_the_rest_byte_for_byte() -> None:
    for mutant in mutants_of("a.py", SOURCE):
        changed = mutant.applied(SOURCE)
        assert changed.count(b"\n") == SOURCE.count(b"\n")
        assert changed[: mutant.start] == SOURCE[: mutant.start]
        assert changed.endswith(SOURCE[mutant.end :])
        assert is_another(mutant, SOURCE)
        line = SOURCE.splitlines()[mutant.line - 1]
        assert line[mutant.column - 1 :].startswith(mutant.before.splitlines()[0].encode())


def test_a_mutant_keeps_its_key_when_the_file_grows_above_it() -> None:
    longer = SOURCE.replace(b"import re\n", b"import re\n\nMORE = 1 < 2\n")
    before, after = ({each.key: each for each in mutants_of("a.py", text)} for text in (SOURCE, longer))
    assert set(before) < set(after)
    assert len(before) == len(mutants_of("a.py", SOURCE))
    key = "a.py State.left: index: 0 -> -1"
    assert after[key].line == before[key].line + 2


def test_the_same_seed_draws_the_same_mutants_and_spreads_them() -> None:
    sources = {"a.py": SOURCE, "b.py": SOURCE}
    both = [each for path, source in sources.items() for each in mutants_of(path, source)]
    first = drawn(both, 6, 1, sources)
    assert first == drawn(list(reversed(both)), 6, 1, sources)
    assert first != drawn(both, 6, 2, sources)
    assert len({each.kind for each in first}) == len(first)
    assert max(sum(each.path == path for each in first) for path in sources) <= 4


def passed(mutants: tuple[Mutant, ...], call: str, folder: Path) -> set[str]:
    """The keys that a program says when it has the marked module and runs a line."""
    program = f"{marked(SOURCE.decode(), mutants)}\n{call}\n"
    env = {**os.environ, "MUTANTS_PASSED": str(folder / "said")}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=60)
    said = folder / "said"
    return set(said.read_text().splitlines()) if said.exists() else set()


@pytest.mark.parametrize(
    ("call", "kinds"), [("State", set()), ("State().left([3])", {"pattern", "junction", "comparison", "index"})]
)
def test_a_marked_module_says_which_places_it_passes(call: str, kinds: set[str], tmp_path: Path) -> None:
    mutants = mutants_of("a.py", SOURCE)
    found = passed(mutants, call, tmp_path)
    assert found <= {each.key for each in mutants}
    assert {key.split(": ")[1] for key in found} >= kinds
    assert not any("dropped: raise" in key for key in found)
    ast.parse(marked(SOURCE.decode(), mutants))
