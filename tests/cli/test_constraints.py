"""`-c FILE`: the versions of a requirements file count as pins, and nothing in the file is ignored in silence."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.slow
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
    said = capsys.readouterr().err
    assert str(home / "mine.txt") in said
    assert "Traceback" not in said


def test_a_refused_line_is_named_with_its_number(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "mine.txt").write_text("numpy==1.26.4\n\nray>=2\n")
    assert main(["resolve", "cpu", "-c", str(home / "mine.txt")]) == 2
    assert f"{home / 'mine.txt'}:3" in capsys.readouterr().err


def test_a_real_package_whose_name_is_like_another_is_taken_from_a_file(home: Path) -> None:
    """gitpython stands in the lock of nearly every NPU stack; typed, it would pass for a misspelt ipython."""
    (home / "mine.txt").write_text("gitpython==3.1.46\n")
    assert main(["resolve", "verl-0.7.1-cann8.5.0", "-c", str(home / "mine.txt")]) == 0


def test_a_file_may_be_a_pipe(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-c <(pip freeze)` of a shell."""
    read, write = os.pipe()
    os.write(write, b"torch==2.8.0\n")
    os.close(write)
    assert main(["resolve", "--for", "verl", "-c", f"/dev/fd/{read}", "--json"]) == 0
    os.close(read)
    pins = {row["name"]: row["version"] for row in json.loads(capsys.readouterr().out)["pins"]}
    assert pins["torch"] == "2.8.0"


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


@pytest.mark.parametrize("file", ["/dev/zero", "large.txt"])
def test_a_file_without_an_end_or_larger_than_any_list_is_refused(
    file: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (home / "large.txt").open("wb") as large:
        large.truncate(1 << 40)  # takes no room on the disk
    assert main(["resolve", "cpu", "-c", str(home / file)]) == 2
    assert str(home / file) in capsys.readouterr().err


def test_an_empty_device_is_an_empty_list() -> None:
    assert main(["resolve", "cpu", "-c", os.devnull]) == 0


@pytest.mark.parametrize("words", [("-c", "{}"), ("--pin", "numpy==2.{}"), ("--for", "verl==0.{}")])
def test_a_number_of_thousands_of_digits_is_refused(
    words: tuple[str, str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = "9" * 5000
    (home / "mine.txt").write_text(f"numpy==2.{digits}\n")
    option, value = words
    assert main(["resolve", option, value.format(home / "mine.txt" if option == "-c" else digits)]) == 2
    assert "Traceback" not in capsys.readouterr().err
