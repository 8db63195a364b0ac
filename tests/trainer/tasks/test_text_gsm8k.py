"""GSM8K: its scores, and its parquet as verl's preprocessing writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.trainer.tasks.text_cases import files, said, settings
from trainer import tasks
from trainer.config import BadSetting
from trainer.tasks.data import check, rows
from trainer.tasks.text import INSTRUCTION, gsm8k_row, strict, tolerant

if TYPE_CHECKING:
    from pathlib import Path

RAW = {"question": "Ann has 1,200 eggs and 62 more. How many?", "answer": "1200+62 = 1262\n#### 1,262"}
SMALL = {"question": "2+3?", "answer": "It is 5.\n#### 5"}


@pytest.mark.parametrize(
    ("answer", "truth", "score"),
    [
        ("so\n#### 72", "72", 1.0),
        ("#### 1,262", "1262", 1.0),
        ("#### -3", "-3", 1.0),
        ("#### 1 no, #### 72", "72", 1.0),
        ("#### 72 no, #### 1", "72", 0.0),
        ("#### 72" + "x" * 293, "72", 1.0),
        ("#### 72" + "x" * 294, "72", 0.0),
        ("#### 72.", "72", 0.0),
        ("#### 72.0", "72", 0.0),
        ("#### $72", "72", 0.0),
        ("####72", "72", 0.0),
        ("so 72", "72", 0.0),
        ("#### 72 eggs", "72", 1.0),
        ("#### 7 2", "72", 0.0),
        ("#### 1262", "1,262", 0.0),
        ("", "72", 0.0),
    ],
)
def test_the_strict_score_is_verls(answer: str, truth: str, score: float) -> None:
    assert strict(answer, truth) == score


@pytest.mark.parametrize(
    ("answer", "truth", "score"),
    [
        ("#### 72.", "72", 1.0),
        ("#### 72.0", "72", 1.0),
        ("it costs $72", "72", 1.0),
        ("it costs $1,234.50.", "1234.5", 1.0),
        ("1,234", "1234", 1.0),
        ("first 72, then 5", "72", 0.0),
        ("first 5, then 72", "72", 1.0),
        ("x = -3", "-3", 1.0),
        ("-$3", "-3", 1.0),
        ("10-3", "3", 1.0),
        ("10 - 3", "-3", 0.0),
        (".5", "0.5", 1.0),
        ("72" + "x" * 400, "72", 1.0),
        ("none", "72", 0.0),
        ("", "72", 0.0),
        ("...", "72", 0.0),
        ("72", "1,262", 0.0),
    ],
)
def test_the_tolerant_score_reads_the_last_number(answer: str, truth: str, score: float) -> None:
    assert tolerant(answer, truth) == score


def test_a_raw_row_becomes_verls_row() -> None:
    made = gsm8k_row(RAW, "train", 7)
    assert list(made) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert made["data_source"] == "openai/gsm8k"
    assert made["prompt"] == [{"role": "user", "content": f"{RAW['question']} {INSTRUCTION}"}]
    assert INSTRUCTION == 'Let\'s think step by step and output the final answer after "####".'
    assert made["ability"] == "math"
    assert made["reward_model"] == {"style": "rule", "ground_truth": "1262"}
    assert made["extra_info"] == {"split": "train", "index": 7, **{key: RAW[key] for key in ("answer", "question")}}
    assert check(made) is None


@pytest.mark.parametrize("raw", [{"question": "a"}, {"question": "a", "answer": 5}, {"question": "a", "answer": "5"}])
def test_a_raw_row_without_an_answer_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="row 3 "):
        gsm8k_row(raw, "train", 3)


def test_the_task_reads_the_raw_jsonl_and_scores_strictly(tmp_path: Path) -> None:
    task = tasks.choose(settings("task=gsm8k", *files(tmp_path, [RAW, SMALL], [SMALL])))
    assert [each.expected for each in task.train] == ["1262", "5"]
    assert (task.max_new_tokens, task.heldout[0].extra["extra_info"]["split"]) == (256, "test")
    assert task.reward(task.heldout[0], said("so\n#### 5")) == 1.0
    assert task.reward(task.heldout[0], said("so 5.")) == 0.0
    assert task.is_right(task.heldout[0], said("#### 5"))
    assert not task.is_right(task.heldout[0], said("#### 6"))


def test_strict_answers_false_scores_with_tolerance(tmp_path: Path) -> None:
    named = files(tmp_path, [SMALL], [SMALL])
    task = tasks.choose(settings("task=gsm8k", "strict_answers=false", "max_new_tokens=9", *named))
    assert task.reward(task.heldout[0], said("it is $5.")) == 1.0
    assert task.max_new_tokens == 9


def test_a_raw_row_without_a_number_names_its_file(tmp_path: Path) -> None:
    named = files(tmp_path, [{"question": "a", "answer": "5"}], [SMALL])
    with pytest.raises(BadSetting, match=r"train\.jsonl: row 0: .* '#### number'"):
        tasks.choose(settings("task=gsm8k", *named))


@pytest.mark.full
def test_the_task_reads_parquet_in_verls_layout(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="writing parquet needs pyarrow")
    import pyarrow  # type: ignore[import-not-found]

    out = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([gsm8k_row(RAW, "test", 0)]), out)
    assert list(rows(out)) == [gsm8k_row(RAW, "test", 0)]
    task = tasks.choose(settings("task=gsm8k", f"train_files={out}", f"val_files={out}"))
    assert (task.train[0].expected, task.train[0].extra["extra_info"]["index"]) == ("1262", 0)


@pytest.mark.full
def test_an_integer_ground_truth_in_a_parquet_is_refused(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="writing parquet needs pyarrow")
    import pyarrow

    wrong = gsm8k_row(RAW, "train", 0) | {"reward_model": {"style": "rule", "ground_truth": 1262}}
    parquet.write_table(pyarrow.Table.from_pylist([wrong]), tmp_path / "train.parquet")
    named = [f"{name}={tmp_path / 'train.parquet'}" for name in ("train_files", "val_files")]
    with pytest.raises(BadSetting, match=r"int '1262' in column 'reward_model\.ground_truth'"):
        tasks.choose(settings("task=gsm8k", *named))
