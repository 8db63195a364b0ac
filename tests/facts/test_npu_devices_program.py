"""The program that uses every device, run in a real interpreter with a torch of a few lines: some devices misbehave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.facts.target import text as program

if TYPE_CHECKING:
    from pathlib import Path

# A torch of small matrices of numbers; FAKE tells what each device does: ok, copies, wrong, raises, dies, hangs.
TORCH = """
import os, random, time, types
BEHAVIOUR = os.environ["FAKE"].split(",")
class Matrix:
    def __init__(self, rows, device=None):
        self.rows, self.device = rows, device
    def __mul__(self, number):
        return Matrix([[cell * number for cell in row] for row in self.rows], self.device)
    def __sub__(self, other):
        rows = other.rows if isinstance(other, Matrix) else [[other] * len(row) for row in self.rows]
        return Matrix([[a - b for a, b in zip(*pair)] for pair in zip(self.rows, rows)])
    def __matmul__(self, other):
        columns = list(zip(*other.rows))
        rows = [[sum(a * b for a, b in zip(row, column)) for column in columns] for row in self.rows]
        if self.device is not None and BEHAVIOUR[self.device] == "wrong":
            rows[0][0] += 3
        return Matrix(rows, self.device)
    def __getitem__(self, part):
        return Matrix(self.rows[part], self.device)
    def to(self, device):
        return Matrix(self.rows, int(device.split(":")[1]))
    def cpu(self):
        if self.device is not None and BEHAVIOUR[self.device] == "copies":
            return Matrix([[0.0] * len(row) for row in self.rows])
        return Matrix(self.rows)
    def abs(self):
        return Matrix([[abs(cell) for cell in row] for row in self.rows])
    def max(self):
        return max(max(row) for row in self.rows)
class Generator:
    def manual_seed(self, number):
        self.random = random.Random(number)
        return self
def rand(height, width, generator):
    return Matrix([[generator.random.random() for _ in range(width)] for _ in range(height)])
def equal(one, other):
    return one.rows == other.rows
def set_device(number):
    what = BEHAVIOUR[number]
    if what == "raises":
        raise RuntimeError("NPU error, error code is 507033\\nmore")
    if what == "dies":
        os.kill(os.getpid(), 11)
    if what == "hangs":
        time.sleep(3600)
npu = types.SimpleNamespace(
    device_count=lambda: len(BEHAVIOUR), get_device_name=lambda number: "Fake910", is_available=lambda: True,
    set_device=set_device,
)
"""


def run(folder: Path, behaviour: str, *words: str, **changes: str) -> dict[str, Any]:
    """The program's answer; `changes` replace lines of its text, such as its limits."""
    (folder / "torch.py").write_text(TORCH, encoding="utf-8")
    (folder / "torch_npu.py").write_text("", encoding="utf-8")
    text = program("devices").replace("SIZE = 64", "SIZE = 8").replace("BURN_SIZE = 2048", "BURN_SIZE = 12")
    for old, new in changes.items():
        text = text.replace(f"{old} = ", f"{old} = {new}  # ", 1)
    ran = subprocess.run(
        [sys.executable, "-c", text, "devices", *words],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(folder), "FAKE": behaviour},
        check=True,
    )
    answer: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1].removeprefix("NPUENV-ANSWER "))
    return answer


def test_each_device_answers_for_itself(tmp_path: Path) -> None:
    answer = run(tmp_path, "ok,wrong,copies,raises,dies")
    cards = answer["cards"]
    assert [card["number"] for card in cards] == [0, 1, 2, 3, 4]
    assert [card["computes_correctly"] for card in cards] == [True, False, False, None, None]
    assert [card["copies_exactly"] for card in cards] == [True, True, False, None, None]
    assert cards[3]["error"] == "RuntimeError: NPU error, error code is 507033"
    assert cards[4]["error"] == "ended by signal 11"
    assert (answer["count"], answer["names"][0], answer["error"]) == (5, "Fake910", "")
    assert (answer["copies_exactly"], answer["computes_correctly"]) == (False, False)
    assert cards[1]["worst_error"] == pytest.approx(3, abs=1e-6)


def test_healthy_devices_are_summed_up_as_right(tmp_path: Path) -> None:
    answer = run(tmp_path, "ok,ok")
    assert (answer["copies_exactly"], answer["computes_correctly"], answer["worst_error"]) == (True, True, 0.0)
    assert [card["rounds"] for card in answer["cards"]] == [1, 1]


@pytest.mark.slow
def test_a_device_that_hangs_is_ended_and_the_others_are_kept(tmp_path: Path) -> None:
    answer = run(tmp_path, "ok,hangs", USE_S="4.0")  # enough for the first one on a busy machine
    assert answer["cards"][0]["computes_correctly"] is True
    assert answer["cards"][1]["error"] == "no answer within 4 s"
    assert answer["error"] == "" and answer["computes_correctly"] is True


def test_where_all_fail_the_first_error_is_the_answers(tmp_path: Path) -> None:
    answer = run(tmp_path, "raises,dies")
    assert answer["error"] == "RuntimeError: NPU error, error code is 507033"
    assert (answer["copies_exactly"], answer["computes_correctly"], answer["count"]) == (None, None, 2)


def test_a_burn_in_goes_on_for_its_seconds_and_finds_what_is_wrong(tmp_path: Path) -> None:
    answer = run(tmp_path, "ok,wrong", "1")
    assert answer["cards"][0]["rounds"] > 1 and answer["cards"][0]["computes_correctly"] is True
    assert answer["cards"][1]["computes_correctly"] is False
    assert answer["tolerance"] == 0.5


def test_without_torch_the_answer_says_so(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program("devices"), "devices"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    answer = json.loads(ran.stdout.strip().splitlines()[-1].removeprefix("NPUENV-ANSWER "))
    assert answer["error"].startswith("ModuleNotFoundError") and answer["cards"] == []
