"""Earlier exams stay as well answered as they were when their cases were last looked at; EXAMS.md has the history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.diagnose.exam import score_files

FOLDER = Path(__file__).parent / "exams"


@pytest.mark.parametrize(("exam", "right", "wrong"), [("second", 89, 0)])
def test_an_exam_is_answered_no_worse_than_before(exam: str, right: int, wrong: int) -> None:
    outcomes = Counter(score.outcome for score in score_files(sorted((FOLDER / exam).glob("*.toml"))))
    assert outcomes.total() == 90
    assert outcomes["right"] >= right and outcomes["wrong"] <= wrong
    assert outcomes["alarm"] == outcomes["claim"] == 0
