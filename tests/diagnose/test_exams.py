"""Earlier exams stay as well answered as they were when their cases were last looked at; EXAMS.md has the history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.diagnose.exam import score_files

FOLDER = Path(__file__).parent / "exams"


@pytest.mark.parametrize(
    ("exam", "cases", "right", "wrong", "alarms"), [("second", 90, 89, 0, 0), ("third", 76, 48, 2, 1)]
)
def test_an_exam_is_answered_no_worse_than_before(exam: str, cases: int, right: int, wrong: int, alarms: int) -> None:
    outcomes = Counter(score.outcome for score in score_files(sorted((FOLDER / exam).glob("*.toml"))))
    assert outcomes.total() == cases
    assert outcomes["right"] >= right and outcomes["wrong"] <= wrong
    assert outcomes["alarm"] + outcomes["claim"] <= alarms
