"""Earlier exams stay as well answered as they were when their cases were last looked at; EXAMS.md has the history."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.diagnose.exam import score_files

FOLDER = Path(__file__).parent / "exams"


@pytest.mark.parametrize(
    ("exam", "cases", "right", "wrong", "alarms"),
    [
        ("second", 90, 88, 0, 0),
        ("third", 76, 75, 0, 0),
        ("fourth", 70, 67, 0, 0),
        ("fifth", 77, 76, 0, 0),
        ("sixth", 85, 82, 0, 0),
        ("seventh", 88, 83, 1, 0),
        ("eighth", 87, 70, 0, 0),
        ("ninth", 90, 85, 1, 0),
        ("tenth", 90, 86, 0, 0),
        ("eleventh", 90, 84, 0, 0),
        ("twelfth", 90, 66, 2, 0),
        ("harvest", 23, 21, 0, 0),
    ],
)
@pytest.mark.one_in(8)
def test_an_exam_is_answered_no_worse_than_before(exam: str, cases: int, right: int, wrong: int, alarms: int) -> None:
    outcomes = Counter(score.outcome for score in score_files(sorted((FOLDER / exam).glob("*.toml"))))
    assert outcomes.total() == cases
    assert outcomes["right"] >= right and outcomes["wrong"] <= wrong
    assert outcomes["alarm"] + outcomes["claim"] <= alarms


def test_what_is_said_with_confidence_was_right_at_first_contact() -> None:
    """The table of EXAMS.md from the calibration on: of answers given with 0.8 or more, 95 of 100 are right."""
    table = (FOLDER.parent / "EXAMS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w[\w ,]*) \| 0\.80 or more \| (\d+) of (\d+) \|$", table, re.MULTILINE)
    start = next(at for at, (exam, *_) in enumerate(rows) if exam.endswith("calibrated"))
    assert sum(int(right) for _, right, _ in rows[start:]) >= 0.95 * sum(int(given) for *_, given in rows[start:])
