"""What goes into a pipe or a file is plain: no line is broken or filled with blanks, so that it can be searched."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from npuenv.cli import main
from npuenv.core.finding import Finding, Status
from npuenv.core.messages import Message
from npuenv.report.smoke import Where, print_summary


@pytest.fixture(autouse=True)
def without_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_resolution_keeps_its_sentences_whole(lang: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", "--for", "verl", "--lang", lang]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) > 80
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_quiet_resolution_says_nothing_where_all_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", "--for", "verl", "-q"]) == 0
    assert capsys.readouterr().out == ""


def test_a_smoke_test_says_each_finding_in_one_line() -> None:
    found = [
        Finding("training.x", Status.OK, Message("smoke.mask"), (), "records", None),
        Finding("training.y", Status.FAIL, Message("smoke.lr-zero"), (), "records", None),
    ]
    file = io.StringIO()
    header = {"kind": "header", "settings": {"task": "arith"}, "num_parameters": 1, "dtype": "float32"}
    print_summary(
        Console(file=file, width=10_000),
        [header],
        found,
        cause=found[1],
        where=Where("tiny", "cpu"),
        lang="en",
        files={},
    )
    lines = file.getvalue().splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert max(map(len, lines)) < 300
