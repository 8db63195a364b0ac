"""Of several stacks that fit, one whose lock is complete."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from npuenv.app.resolution import choose_stack
from npuenv.lock.file import COMPLETE
from npuenv.lock.store import find_lock, shipped_folder
from npuenv.matrix import load_matrix
from npuenv.matrix.release_stacks import recipe_named
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

if TYPE_CHECKING:
    from pathlib import Path

MATRIX = load_matrix()


def chosen(request: Request, own: Path) -> Stack:
    found = choose_stack(request, MATRIX, own)
    assert isinstance(found, Stack)
    return found


@pytest.mark.parametrize("framework", ["verl", "roll", "vllm-ascend", "torch-npu", "cpu"])
@pytest.mark.parametrize("hardware", ["a2", "a3"])
def test_what_stands_behind_another_has_a_complete_lock_and_serves_as_well(
    framework: str, hardware: str, tmp_path: Path
) -> None:
    request = Request(framework=framework, arch="aarch64", hardware=hardware)
    first, found = resolve(request, MATRIX), chosen(request, tmp_path)
    assert isinstance(first, Stack)
    assert (found.framework, found.platform.hardware) == (first.framework, first.platform.hardware)
    if found.name == first.name:
        return
    recipe = recipe_named(found.name, MATRIX)
    assert recipe is not None and not recipe.is_release_candidate
    lock, passed = find_lock(found, tmp_path), find_lock(first, tmp_path)
    assert lock is not None and lock.status == COMPLETE
    assert passed is not None and passed.status != COMPLETE
    assert (found.notes[0].key, found.notes[0].args["other"]) == ("resolve.note-complete-lock", first.name)


def test_somebody_who_just_wants_verl_gets_what_can_be_installed(tmp_path: Path) -> None:
    found = find_lock(chosen(Request(framework="verl", arch="aarch64"), tmp_path), tmp_path)
    assert found is not None and found.is_complete


@pytest.mark.parametrize("request_", [Request(stack="verl-cann9.1.0"), Request(framework="verl", cann="9.1.0")])
def test_what_was_named_is_what_is_taken(request_: Request, tmp_path: Path) -> None:
    assert chosen(request_, tmp_path) == resolve(request_, MATRIX)


@pytest.mark.slow
def test_where_no_lock_is_complete_the_preferred_stack_stays(tmp_path: Path) -> None:
    request = Request(framework="verl", arch="x86_64", hardware="a2", cann="9.1.0")
    assert chosen(request, tmp_path) == resolve(request, MATRIX)


def test_a_lock_that_was_completed_here_counts(tmp_path: Path) -> None:
    request = Request(framework="verl", arch="aarch64")
    first = resolve(request, MATRIX)
    assert isinstance(first, Stack)
    (tmp_path / f"{first.name}.{first.platform.tag}.toml").write_text('schema = 2\nstatus = "complete"\n')
    assert chosen(request, tmp_path) == first


def test_the_newest_says_which_one_is_attested_best(tmp_path: Path) -> None:
    request = Request(framework="verl", arch="aarch64", cann="8.5.0", is_newest=True)
    plain = resolve(Request(framework="verl", arch="aarch64", cann="8.5.0"), MATRIX)
    found = chosen(request, tmp_path)
    assert isinstance(plain, Stack) and found.name != plain.name
    assert (found.notes[0].key, found.notes[0].args["other"]) == ("resolve.note-newest", plain.name)


def commands(rows: list[tuple[str, ...]]) -> list[list[str]]:
    return [[cell.split("`")[1] for cell in cells] for _, *cells in rows]


@pytest.mark.slow
def test_the_readme_names_for_each_cann_the_stack_that_is_chosen(tmp_path: Path) -> None:
    rows, chinese = (
        re.findall(r"^\| ([^|]+) \| (`npuenv install [^|]+) \| (`npuenv install [^|]+) \|$", text_of(name), re.M)
        for name in ("README.md", "README.zh.md")
    )
    assert len(rows) == 6 and commands(chinese) == commands(rows)
    for cann, *cells in rows:
        for framework, cell in zip(("verl", "roll"), cells):
            command = cell.split("`")[1].split()
            version = cann if cann[0].isdigit() else None
            stack = chosen(Request(framework=framework, arch="aarch64", hardware="a2", cann=version), tmp_path)
            lock = find_lock(stack, tmp_path)
            assert lock is not None
            assert command[2:] == [stack.name, *([] if lock.is_complete else ["--fill"])]


def text_of(name: str) -> str:
    return (shipped_folder().parent / name).read_text(encoding="utf-8")
