"""One correction of a command or a script: exactly the words at fault change."""

from __future__ import annotations

from difflib import ndiff
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.preflight.composing import LaunchText, ReadOptions
from npuenv.preflight.fixing import apply
from npuenv.preflight.launch import Change
from npuenv.preflight.reading import read_file, read_words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERL = ("python3", "-m", "verl.trainer.main_ppo")
SCRIPT = """\
#!/bin/bash
export A=1   # first
export B=2 C=3
N=8
DATA=(
    data.a=1   # kept
    "data.b=[x]"
)
EXTRA="e.f=1"
  D=4 python3 -m verl.trainer.main_ppo \\
    x.one=1 \\
    x.two="$N" \\
    'x.three=[a,b]' "${DATA[@]}" $EXTRA \\
    "$@" 2>&1 | tee log
echo done
"""


def known(framework: str, release: str) -> Mapping[str, Any]:
    return {"x.one": 0, "x.known": 0}


ASKED = ReadOptions(known, "verl", "0.7.1")


def words_after(change: Change, *words: str) -> list[str] | None:
    edited = apply(read_words((*VERL, *words), ASKED), ASKED, [change])
    return None if edited is None else [word.value for word in edited.words]


@pytest.fixture
def script(tmp_path: Path) -> LaunchText:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT, encoding="utf-8")
    return read_file(path, ASKED)


def changed(script: LaunchText, change: Change) -> list[str] | None:
    edited = apply(script, ASKED, [change])
    if edited is None:
        return None
    return [line for line in ndiff(SCRIPT.splitlines(), edited.text.splitlines()) if line[0] in "+-"]


@pytest.mark.parametrize(
    ("change", "words", "after"),
    [
        (Change("b", 2), ("a=1", "+b=1", "c=1"), ("a=1", "+b=2", "c=1")),
        (Change("b", "x y"), ("a=1", "b=1"), ("a=1", "b=x y")),
        (Change("b", None), ("a=1", "b=1", "c=1"), ("a=1", "c=1")),
        (Change("b", 3), ("b=1", "b=2"), ("b=3",)),
        (Change("x.known", 3), ("b=1",), ("b=1", "x.known=3")),
        (Change("x.new", 3), ("b=1",), ("b=1", "++x.new=3")),
        (Change("x.one", 3, renames="b"), ("b=1", "c=2"), ("x.one=3", "c=2")),
        (Change("x.new", 3, renames="b"), ("+b=1",), ("++x.new=3",)),
        (Change("x.one", 3, renames="b"), ("b=1", "x.one=2"), ("x.one=3",)),
        (Change("b", ["p", None]), ("~b",), ("b=[p,null]",)),
        (Change("b", 2), ("b=1,2",), ("b=2",)),
    ],
)
def test_a_command_changes_only_the_word_at_fault(
    change: Change, words: tuple[str, ...], after: tuple[str, ...]
) -> None:
    assert words_after(change, *words) == [*VERL, *after]


def test_variables_stand_in_front_of_a_command() -> None:
    reading = read_words(("env", "A=1", *VERL, "a=1"), ASKED)
    for change, front in (
        (Change("B", "2", is_variable=True), ["env", "A=1", "B=2"]),
        (Change("A", "2", is_variable=True), ["env", "A=2"]),
        (Change("A", None, is_variable=True), ["env"]),
        (Change("Z", "1", is_variable=True, renames="A"), ["env", "Z=1"]),
    ):
        edited = apply(reading, ASKED, [change])
        assert edited is not None
        assert [word.value for word in edited.words] == [*front, *VERL, "a=1"]


def test_a_correction_that_changes_nothing_is_none() -> None:
    assert words_after(Change("b", None), "a=1") is None
    assert words_after(Change("a", 1), "a=1") is None


@pytest.mark.parametrize(
    ("change", "diff"),
    [
        (Change("x.one", 2), ["-     x.one=1 \\", "+     x.one=2 \\"]),
        (Change("x.two", 4), ['-     x.two="$N" \\', "+     x.two=4 \\"]),
        (Change("x.one", None), ["-     x.one=1 \\"]),
        (Change("data.a", 5), ["-     data.a=1   # kept", "+     data.a=5   # kept"]),
        (Change("data.b", None), ['-     "data.b=[x]"']),
        (Change("A", "9", is_variable=True), ["- export A=1   # first", "+ export A=9   # first"]),
        (Change("A", None, is_variable=True), ["- export A=1   # first"]),
        (Change("C", None, is_variable=True), ["- export B=2 C=3", "+ export B=2"]),
        (Change("B", None, is_variable=True), ["- export B=2 C=3", "+ export C=3"]),
        (Change("Z", "a b", is_variable=True), ["+ export Z='a b'"]),
        (Change("x.uno", 1, renames="x.one"), ["-     x.one=1 \\", "+     ++x.uno=1 \\"]),
    ],
)
def test_a_script_changes_only_the_words_at_fault(script: LaunchText, change: Change, diff: list[str]) -> None:
    got = changed(script, change)
    assert got is not None
    assert [line.rstrip() for line in got if not line.startswith("?")] == diff


def test_words_on_a_shared_line_leave_their_neighbours_alone(script: LaunchText) -> None:
    edited = apply(script, ASKED, [Change("x.three", ["c"])])
    assert edited is not None
    assert "    'x.three=[c]' \"${DATA[@]}\" $EXTRA \\\n" in edited.text
    removed = apply(script, ASKED, [Change("x.three", None)])
    assert removed is not None
    assert 'x.two="$N" "${DATA[@]}" $EXTRA \\\n' in removed.text


def test_a_new_word_gets_a_line_of_its_own_and_is_read_back(script: LaunchText) -> None:
    edited = apply(script, ASKED, [Change("x.known", 7)])
    assert edited is not None
    assert edited.launch.settings["x.known"].value == 7
    assert len(edited.launch.settings) == len(script.launch.settings) + 1
    assert [line for line in edited.text.splitlines() if "x.known=7" in line]


def test_what_comes_out_of_a_variable_is_overridden_or_left(script: LaunchText) -> None:
    assert changed(script, Change("e.f", None)) is None
    assert changed(script, Change("e.f", 2)) is None


def test_the_variable_in_front_of_the_launch_changes_there(script: LaunchText) -> None:
    edited = apply(script, ASKED, [Change("D", "5", is_variable=True)])
    assert edited is not None
    assert "  D=5 python3 -m verl.trainer.main_ppo \\\n" in edited.text
    gone = apply(script, ASKED, [Change("D", None, is_variable=True)])
    assert gone is not None
    assert "\n  python3 -m verl.trainer.main_ppo \\\n" in gone.text


def test_a_launch_on_one_line_stays_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("cd x && python3 -m verl.trainer.main_ppo x.one=1 && echo ok\n", encoding="utf-8")
    edited = apply(read_file(path, ASKED), ASKED, [Change("x.known", 1), Change("x.one", None)])
    assert edited is not None
    assert edited.text == "cd x && python3 -m verl.trainer.main_ppo x.known=1 && echo ok\n"


def test_a_key_that_is_written_twice_is_written_once_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("python3 -m verl.trainer.main_ppo o=1 x.one=1 \\\n  y=1 \\\n  x.one=2 o=3\n", encoding="utf-8")
    same = apply(read_file(path, ASKED), ASKED, [Change("x.one", 5)])
    assert same is not None
    assert same.text == "python3 -m verl.trainer.main_ppo o=1 \\\n  y=1 \\\n  x.one=5 o=3\n"
    renamed = apply(read_file(path, ASKED), ASKED, [Change("x.one", 5, renames="o")])
    assert renamed is not None
    assert renamed.text == "python3 -m verl.trainer.main_ppo x.one=1 \\\n  y=1 \\\n  x.one=5\n"
