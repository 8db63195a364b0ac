"""Mathematics judged by value."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.trainer.tasks.text_cases import files, row, said, settings
from trainer import tasks
from trainer.config import BadSetting
from trainer.tasks.math import judged
from trainer.tasks.worker import Hung, Worker

if TYPE_CHECKING:
    from pathlib import Path

needs_it = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs the package math-verify")


@needs_it
def test_answers_count_by_value() -> None:
    judge = judged(60.0)
    right = [
        ("so \\boxed{\\frac{1}{2}}", "0.5"),
        ("The answer is $\\frac{1}{2}$", "0.5"),
        ("1,234", "1234"),
        ("$\\sqrt{8}$", "2\\sqrt{2}"),
        ("first 3, then 72", "72"),
    ]
    wrong = [("73", "72"), ("", "72"), ("no idea", "\\sqrt{2}")]
    assert [judge(answer, truth) for answer, truth in right] == [1.0] * len(right)
    assert [judge(answer, truth) for answer, truth in wrong] == [0.0] * len(wrong)


@needs_it
def test_the_task_pays_for_the_right_value(tmp_path: Path) -> None:
    task = tasks.choose(settings("task=math", *files(tmp_path, [row("half?", "0.5")], [row("x", "2")])))
    assert task.reward(task.train[0], said("\\boxed{\\frac{1}{2}}")) == 1.0
    assert task.is_right(task.train[0], said("$1/2$"))
    assert not task.is_right(task.train[0], said("$1/3$"))


def test_an_answer_that_takes_too_long_scores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(self: Worker, arguments: object, *, timeout_s: float) -> float:
        raise Hung(f"did not answer within {timeout_s:g} s")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(Worker, "call", hang)
    assert judged(1.0)("9^{9^{9}}", "5") == 0.0


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadSetting, match="task=math needs the package math-verify"):
        tasks.choose(settings("task=math", *files(tmp_path, [row()], [row()])))
