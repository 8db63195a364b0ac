"""A stack, or a launch, for models that its transformers does not have yet says so, and names the stack that can."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.parts import missing_model_type
from npuenv.resolve.types import Request, Stack
from tests.support.sentences import says

if TYPE_CHECKING:
    from pathlib import Path

MATRIX = load_matrix()
KEY = "resolve.note-model-type"


def stack(name: str, **wish: str) -> Stack:
    found = resolve(Request(stack=name, **wish), MATRIX)  # type: ignore[arg-type]
    assert isinstance(found, Stack)
    return found


@pytest.mark.parametrize("name", [recipe.id for recipe in MATRIX.recipes if not recipe.lacks])
def test_every_stack_named_for_a_model_can_load_it_or_says_first_that_it_cannot(name: str) -> None:
    made = stack(name)
    told = [note for note in made.notes if note.key == KEY]
    # By hand, apart from the table: Qwen3.5 came with transformers 5.2.
    pin = made.pin("transformers")
    is_short = "qwen3.5" in name and (pin is None or tuple(map(int, pin.version.split("."))) < (5, 2))
    assert bool(told) == is_short
    if told:
        assert told == [made.notes[0]]
        elsewhere = told[0].args["elsewhere"]
        assert isinstance(elsewhere, Message)
        assert isinstance(elsewhere.args["stacks"], tuple)
        (other,) = elsewhere.args["stacks"]
        assert other != name and not any(note.key == KEY for note in stack(other).notes)


@pytest.mark.parametrize(
    ("name", "version", "since"),
    [
        ("Qwen3.5-9B", "5.1.0", "5.2.0"),
        ("Qwen3_5-9B", "5.2.0", None),
        ("Qwen3-VL-8B-Instruct", "4.56.2", "4.57.0"),
        ("Qwen3-8B", "4.50.3", "4.51.0"),
        ("Qwen3-8B", "4.51.0", None),
        ("Qwen2.5-VL-7B-Instruct", "4.48.3", "4.49.0"),
        ("Qwen2.5-7B", "4.40.0", None),
        ("my-own", "4.40.0", None),
        ("Qwen3.5-9B", None, None),
    ],
)
def test_a_release_is_held_against_the_first_one_with_the_models(
    name: str, version: str | None, since: str | None
) -> None:
    found = missing_model_type(name, version, "verl", MATRIX)
    assert (found.args["since"] if found else None) == since


def test_a_framework_without_such_a_stack_says_that_there_is_none() -> None:
    found = missing_model_type("Qwen3.5-9B", "4.57.6", "roll", MATRIX)
    assert found is not None
    assert found.args["elsewhere"] == Message("resolve.model-nowhere")


def test_a_launch_of_a_model_that_the_stack_cannot_load_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["render-launch", "verl-0.7.1-cann8.5.0", "--recipe", "quick-start", "--model", "/models/Qwen3.5-9B"]
    main([*words, "-o", f"{tmp_path}/out", "--force", "--lang", "en"])
    text = re.sub(r"\s+", " ", "".join(capsys.readouterr()))
    assert says(text, KEY, model="Qwen3.5", since="5.2.0")
