"""In which steps a stack is built that the matrix derives from what was published."""

from __future__ import annotations

import pytest

from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

MATRIX = load_matrix()
BEGINNING = (("torch-npu", "pip", ("torch-npu",)), ("rest", "rest", ()))
SOURCES = (("vllm", "git", ("vllm",)), ("vllm-ascend", "git", ("vllm-ascend",)))
TRITON = ("triton", "triton-ascend")


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("torch-npu-2.2.0", (("torch", "pip", ("torch",)), *BEGINNING)),
        (
            "vllm-ascend-0.7.3",
            (
                ("torch", "pip", ("torch", "torchvision", "torchaudio")),
                *BEGINNING,
                *SOURCES,
                ("triton-leftovers", "uninstall", TRITON),
            ),
        ),
    ],
)
def test_the_steps_and_what_each_does(name: str, steps: tuple[tuple[str, str, tuple[str, ...]], ...]) -> None:
    stack = resolve(Request(stack=name), MATRIX)
    assert isinstance(stack, Stack)
    assert tuple((step.id, step.does, step.what) for step in stack.order) == steps
