"""A stack and a conflict on a console and as JSON, in both languages."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.matrix.release_stacks import all_recipes
from npuenv.report.resolution import as_json, show, show_table
from npuenv.resolve import published, published_requests, resolve
from npuenv.resolve.types import Conflict, Request, Stack
from tests.support.sentences import says

MATRIX = load_matrix()
_LACKING = {recipe.id for recipe in all_recipes(MATRIX) if recipe.lacks}
NAMES = sorted({str(request.stack) for request in published_requests(MATRIX)} - _LACKING)
# Some of each framework, among them all CPU stacks; of the many that follow from vllm-ascend's releases every twelfth.
FEW = [
    name
    for at, name in enumerate(NAMES)
    if name.startswith("cpu") or at % (12 if name.startswith("vllm-ascend") else 4) == 0
]


def stack_of(name: str) -> Stack:
    stack = resolve(Request(stack=name), MATRIX)
    assert isinstance(stack, Stack)
    return stack


def printed(result: Stack | Conflict, lang: str, width: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(result, console, lang)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", FEW)
@pytest.mark.one_in(4)
def test_stack_prints_every_pin_and_override_within_sixty_columns(name: str, lang: str) -> None:
    prints_every_pin_and_override_within_sixty_columns(stack_of(name), lang)


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.long
def test_every_published_stack_prints_every_pin_and_override(lang: str) -> None:
    stacks = {stack.name: stack for _, stack in published(MATRIX) if isinstance(stack, Stack)}
    for stack in stacks.values():
        prints_every_pin_and_override_within_sixty_columns(stack, lang)


def prints_every_pin_and_override_within_sixty_columns(stack: Stack, lang: str) -> None:
    text = printed(stack, lang)
    together = "".join(text.split())
    for pin in stack.pins:
        assert f"{pin.name}{pin.version}" in together
    for each in stack.overrides:
        assert each.requirement.replace(" ", "") in together
    if lang == "en":
        assert max(len(line) for line in text.splitlines()) <= 60
    assert "\x1b" not in text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_conflict_prints_clashes_and_commands(lang: str) -> None:
    conflict = resolve(Request(stack="verl-cann9.1.0", driver="25.0"), MATRIX)
    assert isinstance(conflict, Conflict)
    text = printed(conflict, lang, width=200)
    assert "1. " in text
    assert "cann.9.1.0" in text
    for way in conflict.ways_out:
        assert " ".join(way.command) in text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_conflict_of_one_requirement_speaks_of_one(lang: str) -> None:
    conflict = resolve(Request(framework="verl", as_of="2020-01-01"), MATRIX)
    assert isinstance(conflict, Conflict)
    assert says(printed(conflict, lang, width=200), "stack.conflict-title-one", lang)


def test_markup_in_data_is_printed_as_it_is() -> None:
    stack = resolve(Request(stack="cpu-full"), MATRIX)
    assert "ray[default]>=2.48" in printed(stack, "en", width=200)


@pytest.mark.parametrize("name", FEW)
def test_json_of_a_stack_keeps_keys_and_ids_in_both_languages(name: str) -> None:
    stack = stack_of(name)
    english, chinese = (json.loads(json.dumps(as_json(stack, lang))) for lang in ("en", "zh"))
    assert english["schema"] == "npuenv.stack/1"
    assert english.keys() == chinese.keys()
    assert [pin["name"] for pin in english["pins"]] == [pin["name"] for pin in chinese["pins"]]
    assert [pin["because"]["rules"] for pin in english["pins"]] == [pin["because"]["rules"] for pin in chinese["pins"]]
    assert english["order"] != chinese["order"]


def test_json_of_a_conflict_has_commands_as_lists() -> None:
    document = as_json(resolve(Request(stack="cpu", python="3.9"), MATRIX))
    assert document["schema"] == "npuenv.conflict/1"
    assert [clash["rule"] for clash in document["clashes"]] == ["request", "request", "cpu"]
    assert document["ways_out"][0]["command"] == ["npuenv", "resolve", "cpu", "--python", "3.11"]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_stack_stands_on_one_screen_with_all_that_is_chosen(lang: str) -> None:
    commands = [Message("stack.lock-none"), *(Message("stack.next-why", {"command": "x" * 160}) for _ in range(2))]
    for name in FEW:
        stack = stack_of(name)
        console = Console(file=io.StringIO(), width=80)
        show_table(stack, console, lang, following=commands)
        assert isinstance(console.file, io.StringIO)
        lines = [line.split() for line in console.file.getvalue().splitlines()]
        assert len(lines) <= 45, name
        for pin in stack.pins:
            assert [pin.name, pin.version, pin.strength] in [line[:3] for line in lines]
        for git in stack.git_sources:
            assert git.name in [line[0] for line in lines if line]
