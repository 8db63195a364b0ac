"""The wheels of vllm-ascend that are built for one generation of cards."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from npuenv.matrix import load_matrix
from npuenv.report.resolution import as_json, show_table
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack
from tests.support.sentences import says

if TYPE_CHECKING:
    from npuenv.matrix.rows import ChipWheel

MATRIX = load_matrix()


def stack_of(name: str, **asked: Any) -> Stack:
    stack = resolve(Request(stack=name, **asked), MATRIX)
    assert isinstance(stack, Stack)
    return stack


def wheel_of(stack: Stack) -> ChipWheel | None:
    return next(source.wheel for source in stack.git_sources if source.name == "vllm-ascend")


@pytest.mark.parametrize(
    ("asked", "file"),
    [
        ({"python": "3.11"}, "vllm_ascend-0.22.1rc1-cp311-cp311-manylinux_2_34_aarch64.whl"),
        ({"python": "3.11", "arch": "x86_64"}, "vllm_ascend-0.22.1rc1-cp311-cp311-manylinux_2_24_x86_64.whl"),
        ({"python": "3.12"}, "vllm_ascend-0.22.1rc1-cp312-cp312-manylinux_2_34_aarch64.whl"),
        ({"python": "3.12", "hardware": "a3"}, ""),
        ({"python": "3.12", "hardware": None}, ""),  # an assumed chip decides nothing
        ({"python": "3.12", "os": "ubuntu20.04"}, ""),  # its glibc is 2.31
        ({"python": "3.12", "os": "ubuntu20.04", "arch": "x86_64"},
         "vllm_ascend-0.22.1rc1-cp312-cp312-manylinux_2_24_x86_64.whl"),
    ],
)  # fmt: skip
def test_a_wheel_fits_cards_python_architecture_and_c_library(asked: dict[str, Any], file: str) -> None:
    wheel = wheel_of(stack_of("vllm-ascend-0.22.1rc1", **{"hardware": "a2", **asked}))
    assert (wheel.id if wheel else "") == file


def test_a_wheel_is_for_the_cann_and_the_torch_npu_of_its_release() -> None:
    assert wheel_of(stack_of("verl-0.7.1-cann8.5.0", hardware="a2"))
    assert not wheel_of(stack_of("verl-0.7.1-cann8.5.0", hardware="a2", cann="8.5.1"))


def test_a_commit_has_no_wheel() -> None:
    assert not wheel_of(stack_of("verl-uni-agent-cann8.5.2", hardware="a2"))


def test_the_file_and_its_hash_are_shown() -> None:
    stack = stack_of("vllm-ascend-0.18.0", hardware="a2")
    wheel = wheel_of(stack)
    console = Console(file=io.StringIO(), width=400)
    show_table(stack, console)
    assert wheel is not None and isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert says(text, "resolve.note-chip-wheel", file=wheel.id, hardware="a2", sha256=wheel.sha256)
    assert says(text, "stack.wheel", hardware="a2")
    (document,) = [git["wheel"] for git in as_json(stack)["git"] if "wheel" in git]
    assert document == {"file": wheel.id, "sha256": wheel.sha256, "index": "default", "hardware": "a2"}


def test_a_wheel_without_a_known_hash_is_named_and_not_taken() -> None:
    stack = stack_of("vllm-ascend-0.17.0rc1", hardware="a2", python="3.10")
    (note,) = (note for note in stack.notes if "wheel" in note.key)
    assert (note.key, note.args["index"]) == ("resolve.note-chip-wheel-unhashed", "huawei-ascend-variant")
    wheel = wheel_of(stack)
    assert wheel is not None and wheel.id.endswith("-910b.whl") and not wheel.sha256


def test_every_wheel_of_the_default_index_has_its_hash() -> None:
    rows = [row for row in MATRIX.chip_wheels if row.index == "default"]
    assert len(rows) > 60 and all(len(row.sha256) == 64 for row in rows)
    assert all(row.id.startswith(f"vllm_ascend-{row.version}-cp") for row in MATRIX.chip_wheels)
