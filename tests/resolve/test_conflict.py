"""What a day that is too early, and a pin that moves the stack, are told of."""

from __future__ import annotations

import pytest

from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Conflict, Request, Stack

MATRIX = load_matrix()


@pytest.mark.parametrize(
    ("framework", "stack", "day"),
    [("verl", None, "2025-06-01"), ("roll", None, "2025-01-01"), (None, "verl-qwen3.5-cann8.5.0", "2026-02-27")],
)
def test_a_day_before_all_that_was_asked_for_names_the_first_stack_after_it(
    framework: str | None, stack: str | None, day: str
) -> None:
    found = resolve(Request(framework=framework, stack=stack, as_of=day), MATRIX)
    assert isinstance(found, Conflict)
    (told,) = [clash.says for clash in found.clashes if clash.says.args.get("field") == "as_of"]
    meant = [each for each in MATRIX.recipes if framework in (None, each.framework) and stack in (None, each.id)]
    first = min((each for each in meant if not each.lacks), key=lambda each: each.date)
    assert (told.key, told.args["stack"], told.args["date"]) == ("resolve.asked-day", first.id, first.date)


@pytest.mark.parametrize(
    ("framework", "package", "version"),
    [("roll", "ray", "2.55.0"), ("roll", "torch", "2.7.1"), ("verl", "torch", "2.8.0")],
)
def test_a_stack_that_a_pin_has_moved_to_says_which_would_have_been_taken_and_why_not(
    framework: str, package: str, version: str
) -> None:
    usual = resolve(Request(framework=framework), MATRIX)
    moved = resolve(Request(framework=framework, pins={package: version}), MATRIX)
    assert isinstance(usual, Stack) and isinstance(moved, Stack)
    assert usual.name != moved.name
    note = moved.notes[0]
    assert (note.key, note.args["usual"], note.args["stack"]) == ("resolve.note-moved", usual.name, moved.name)
    assert note.args["pins"] == (f"{package}=={version}",)
    why = note.args["why"]
    assert isinstance(why, Message)
    assert version in map(str, why.args.values())


def test_a_pin_that_the_usual_stack_takes_moves_nothing() -> None:
    usual = resolve(Request(framework="roll"), MATRIX)
    assert isinstance(usual, Stack)
    pin = usual.pin("torch")
    assert pin is not None
    same = resolve(Request(framework="roll", pins={"torch": pin.version}), MATRIX)
    assert isinstance(same, Stack)
    assert not any(note.key == "resolve.note-moved" for note in same.notes)


def test_of_many_sources_three_are_named() -> None:
    conflict = resolve(Request(framework="roll", hardware="310p"), MATRIX)
    assert isinstance(conflict, Conflict)
    (clash,) = (clash for clash in conflict.clashes if clash.rule == "frameworks.roll")
    *sources, rest = clash.source.split("; ")
    assert len(sources) == 3 and rest.startswith("… (")
