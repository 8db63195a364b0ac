"""The sentence about the age of what an answer rests on."""

from __future__ import annotations

import datetime

import pytest

from npuenv.report import lines
from npuenv.report.lines import sources_line


@pytest.mark.parametrize(
    ("day", "youngest", "key"),
    [
        ("2027-02-19", "2026-11-21", "sources-read-once"),
        ("2027-02-19", "2026-11-26", "sources-read"),
        ("2027-02-20", "2026-11-26", "sources-old"),
    ],
)
def test_the_oldest_source_decides_whether_it_is_old(
    day: str, youngest: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "today", lambda: datetime.date.fromisoformat(day))
    line = sources_line("2026-11-21", youngest)
    assert (line.key, line.args["oldest"], line.args["youngest"]) == (f"stack.{key}", "2026-11-21", youngest)
