"""The public run that a stack may point to, and the age of the rows that decided it."""

from __future__ import annotations

import datetime
import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from npuenv.matrix import Matrix, load_matrix
from npuenv.report import lines
from npuenv.report.resolution import as_json, show_table
from npuenv.resolve import resolve
from npuenv.resolve.rules import matrix_conflicts
from npuenv.resolve.search import evaluate
from npuenv.resolve.types import Conflict, Request, Stack
from tests.support.sentences import says

if TYPE_CHECKING:
    from npuenv.matrix.rows import Recipe

MATRIX = load_matrix()


def stack_of(name: str, **asked: Any) -> Stack:
    stack = resolve(Request(stack=name, **asked), MATRIX)
    assert isinstance(stack, Stack)
    return stack


def recipe_of(name: str) -> Recipe:
    recipe = MATRIX.recipe_row(name)
    assert recipe is not None
    return recipe


def shown(stack: Stack) -> str:
    console = Console(file=io.StringIO(), width=300)
    show_table(stack, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_ledger_has_an_address_and_a_day_for_every_run() -> None:
    assert len(MATRIX.runs) >= 25
    for run in MATRIX.runs:
        assert run.source.startswith("https://") and run.date and run.packages, run.id
    assert [run.date for run in MATRIX.runs] == sorted((run.date for run in MATRIX.runs), reverse=True)


def test_the_run_with_most_versions_in_common_is_named() -> None:
    stack = stack_of("verl-cann9.1.0", hardware="a2")
    run = stack.public_run
    assert run is not None and run.id == "run.verl-ascend-recipe-110"
    assert says(shown(stack), "stack.run", chip="910B3", date="2026-09-07", address=run.source)
    document = as_json(stack)["public_run"]
    assert (document["chip"], document["date"], document["address"]) == ("910B3", "2026-09-07", run.source)


@pytest.mark.parametrize(
    ("name", "hardware"),
    [
        ("verl-cann9.1.0", "a3"),  # ran on A2 alone
        ("vllm-ascend-0.18.0", "a2"),  # ran with another torch_npu
        ("roll-cann9.1.0", "a2"),  # ran with another vllm-ascend
    ],
)
def test_a_run_of_something_else_is_not_named(name: str, hardware: str) -> None:
    stack = stack_of(name, hardware=hardware)
    assert stack.public_run is None and as_json(stack)["public_run"] is None
    assert says(shown(stack), "stack.run-none")


def test_the_release_of_the_framework_is_enough_where_nothing_contradicts_it() -> None:
    run = stack_of("verl-0.7.1-cann8.5.0", hardware="a2").public_run
    assert run is not None and run.packages["verl"] == "0.7.1"


def test_nothing_is_said_about_runs_of_a_cpu_stack() -> None:
    text = shown(stack_of("cpu"))
    assert not says(text, "stack.run-none")


def test_sources_older_than_ninety_days_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = replace(stack_of("verl-cann9.1.0"), sources_read=("2026-11-21", "2026-11-22"))
    ends = {"oldest": "2026-11-21", "youngest": "2026-11-22"}
    monkeypatch.setattr(lines, "today", lambda: datetime.date(2027, 2, 19))
    assert says(shown(stack), "stack.sources-read", **ends)
    monkeypatch.setattr(lines, "today", lambda: datetime.date(2027, 2, 20))
    assert says(shown(stack), "stack.sources-old", days=91, **ends)


def test_the_age_is_that_of_all_rows_that_decided() -> None:
    stack = stack_of("verl-cann9.1.0")
    row = MATRIX.triton_ascend_row("3.2.2")
    recipe = MATRIX.recipe_row("verl-cann9.1.0")
    assert row is not None and recipe is not None
    assert stack.sources_read == (recipe.seen, row.seen)


@pytest.mark.parametrize(("version", "is_refused"), [("2.9.0", True), ("2.9.0.post2", False), ("2.6.0", True)])
def test_a_chip_refuses_the_torch_npu_that_does_not_know_it(version: str, is_refused: bool) -> None:
    usual = next(candidate for candidate, _ in evaluate([recipe_of("roll-950")], Request(stack="roll-950"), MATRIX))
    keys = {clash.says.key for clash in matrix_conflicts(usual.with_version("torch-npu", version), MATRIX)}
    assert ("resolve.torch-npu-hardware" in keys) is is_refused
    on_a2 = resolve(Request(stack=f"torch-npu-{version}", hardware="a2"), MATRIX)
    assert isinstance(on_a2, Stack)


def test_the_digest_of_a_base_image_is_named_where_others_saw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = Matrix(MATRIX.folder)
    row = next(each for each in MATRIX.image_digests if each.date)
    image = stack_of("veomni-0.1.11-cann9.0.0", hardware="a3").image
    assert image is not None and image != row.id
    monkeypatch.setitem(vars(matrix), "image_digests", (replace(row, id=image), replace(row, id=image, date="")))
    stack = resolve(Request(stack="veomni-0.1.11-cann9.0.0", hardware="a3"), matrix)
    assert isinstance(stack, Stack)
    notes = [note for note in stack.notes if note.key.startswith("resolve.note-image-digest")]
    assert [(note.args["image"], note.args["digest"]) for note in notes] == [(image, row.digest)] * 2
    assert says(shown(stack), "resolve.note-image-digest", image=image, digest=row.digest, date=row.date)


@pytest.mark.parametrize("name", ["sglang", "veomni", "ms-swift", "llama-factory"])
def test_a_framework_that_npuenv_does_not_launch_has_stacks_all_the_same(name: str) -> None:
    found = resolve(Request(framework=name), MATRIX)
    assert isinstance(found, Stack) and found.framework == name


def test_an_image_whose_base_names_no_versions_is_no_stack() -> None:
    found = resolve(Request(framework="vime"), MATRIX)
    assert isinstance(found, Conflict)
    assert {clash.rule for clash in found.clashes} == {"request", "vime-a3"}
