"""What this machine decides of a request: architecture, Python, and the cards that are in it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from npuenv._toml import load_file
from npuenv.cli.machine import assumed, for_this_machine
from npuenv.errors import CannotTell
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

pytestmark = pytest.mark.usefixtures("home")
CASES = Path(__file__).parents[1] / "facts" / "cases" / "smi"
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]
ON_PATH = os.environ["PATH"]


def cards(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """An `npu-smi` on PATH that prints a text."""
    folder.mkdir(exist_ok=True)
    (folder / "said.txt").write_text(text)
    (folder / "npu-smi").write_text(f"#!/bin/sh\ncat '{folder}/said.txt'\n")
    (folder / "npu-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{ON_PATH}")


def said(case: str) -> str:
    return str(load_file(CASES / f"{case}.toml")["output"])


def stack_of(request: Request) -> Stack:
    stack = resolve(request, load_matrix())
    assert isinstance(stack, Stack)
    return stack


@pytest.mark.parametrize(
    ("case", "hardware", "soc"),
    [("info_A3_25.5.0", "a3", "ascend910_9392"), ("info_910B2C_24.1.0", "a2", "ascend910b1")],
)
def test_an_npu_stack_is_made_for_the_cards_that_are_here(
    case: str, hardware: str, soc: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(home / "bin", monkeypatch, said(case))
    for wanted in (Request(stack="verl-0.7.1-cann8.5.0"), Request(framework="verl", python="3.11")):
        request = for_this_machine(wanted)
        assert request.hardware == hardware
        assert assumed(stack_of(request)) == ()
    assert stack_of(for_this_machine(Request(stack="verl-0.7.1-cann8.5.0"))).soc_version == soc


def test_what_was_said_and_what_is_for_another_machine_stands(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(home / "bin", monkeypatch, said("info_A3_25.5.0"))
    assert for_this_machine(Request(framework="verl", hardware="a2")).hardware == "a2"
    assert for_this_machine(Request(framework="verl", arch=OTHER)).hardware is None
    of_capture = Request(framework="verl", arch=platform.machine(), origins={"arch": "uname -m: here"})
    assert for_this_machine(of_capture).hardware is None
    assert for_this_machine(Request(framework="cpu")).hardware is None


def test_without_cards_what_is_assumed_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(home / "bin", monkeypatch, "dcmi module initialize failed. ret is -8005")
    request = for_this_machine(Request(framework="verl"))
    assert request.hardware is None
    assert [note.args["hardware"] for note in assumed(stack_of(request))] == ["a2"]


def test_cards_of_two_generations_have_to_be_chosen_from(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(home / "bin", monkeypatch, said("info_910B2C_24.1.0").replace("910B2C", "310P3 ", 1))
    with pytest.raises(CannotTell, match=r"resolve\.host-mixed"):
        for_this_machine(Request(framework="verl"))
