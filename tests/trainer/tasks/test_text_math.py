"""Mathematics judged by value."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.trainer.tasks.text_cases import files, row, said, settings
from trainer import tasks
from trainer.config import BadSetting
from trainer.tasks.text import judged
from trainer.tasks.worker import Worker, WorkerTimeout

if TYPE_CHECKING:
    from pathlib import Path

needs_it = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs the package math-verify")


@needs_it
@pytest.mark.slow
def test_the_task_pays_for_answers_by_value(tmp_path: Path) -> None:
    right = [
        ("so \\boxed{\\frac{1}{2}}", "0.5"),
        ("The answer is $\\frac{1}{2}$", "0.5"),
        ("1,234", "1234"),
        ("$\\sqrt{8}$", "2\\sqrt{2}"),
        ("first 3, then 72", "72"),
    ]
    wrong = [("73", "72"), ("", "72"), ("no idea", "\\sqrt{2}")]
    rows = [row(f"{at}?", truth) for at, (_, truth) in enumerate(right + wrong)]
    task = tasks.choose(settings("task=math", *files(tmp_path, rows, [row("x", "2")])))
    asked = [(prompt, said(answer)) for prompt, (answer, _) in zip(task.train, right + wrong, strict=True)]
    assert [task.reward(*each) for each in asked] == [1.0] * len(right) + [0.0] * len(wrong)
    assert task.is_right(task.train[0], said("$1/2$"))
    assert not task.is_right(task.train[0], said("$1/3$"))


def test_an_answer_that_takes_too_long_scores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(self: Worker, arguments: object, *, timeout_s: float) -> float:
        raise WorkerTimeout(f"did not answer within {timeout_s:g} s")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(Worker, "call", hang)
    assert judged(1.0)("9^{9^{9}}", "5") == 0.0


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadSetting, match=r"task=math .*package math-verify"):
        tasks.choose(settings("task=math", *files(tmp_path, [row()], [row()])))
