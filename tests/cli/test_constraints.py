"""`-c FILE`: the versions of a requirements file count as pins, and nothing in the file is ignored in silence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")


def test_pins_of_a_file_are_resolved_like_pins_of_the_command_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "more.txt").write_text("numpy==1.26.4\n")
    (home / "mine.txt").write_text("# what we run today\n-r more.txt\ntransformers==4.57.6 ; python_version > '3'\n")
    words = ["resolve", "verl-0.7.1-cann8.5.0", "--json"]
    assert main([*words, "-c", str(home / "mine.txt")]) == 0
    from_file = json.loads(capsys.readouterr().out)
    assert main([*words, "--pin", "transformers==4.57.6", "--pin", "numpy==1.26.4"]) == 0
    assert json.loads(capsys.readouterr().out) == from_file


@pytest.mark.parametrize("line", ["numpy>=1.26", "numpy", "numpy==1.*", "numpy==1.26.4,!=1.26.3", "???"])
def test_a_line_that_is_no_exact_pin_is_refused(line: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "mine.txt").write_text(f"{line}\n")
    assert main(["resolve", "cpu", "-c", str(home / "mine.txt")]) == 2
    assert str(home / "mine.txt") in capsys.readouterr().err


def test_a_pin_of_the_file_that_clashes_is_a_conflict(home: Path) -> None:
    (home / "mine.txt").write_text("torch==2.9.0\n")
    assert main(["resolve", "verl-0.7.1-cann8.5.0", "-c", str(home / "mine.txt")]) == 4


def test_file_and_option_must_not_contradict(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "mine.txt").write_text("numpy==1.26.4\n")
    assert main(["resolve", "cpu", "-c", str(home / "mine.txt"), "--pin", "numpy==2.0.0"]) == 2
    assert "1.26.4" in capsys.readouterr().err


def test_a_missing_file_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", "cpu", "-c", str(home / "none.txt")]) == 2
    assert str(home / "none.txt") in capsys.readouterr().err
