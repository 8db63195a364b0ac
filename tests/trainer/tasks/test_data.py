"""Questions from files, and what is refused before it costs a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.trainer.tasks.text_cases import WORDS, files, jsonl, row, settings
from trainer.config import BadSetting
from trainer.tasks.data import check, questions, rows

if TYPE_CHECKING:
    from pathlib import Path


def test_prompts_come_in_the_order_of_the_file_with_what_judges_need(tmp_path: Path) -> None:
    named = files(tmp_path, [row("1+1?", "2"), row("2+2?", "4")], [row("3+3?", "6")])
    train, heldout = questions(settings("task=file", *named).task, WORDS)
    assert [(each.text, each.expected) for each in train] == [("1+1?", "2"), ("2+2?", "4")]
    assert train[0].tokens == WORDS.encode("1+1?")
    assert train[0].extra["data_source"] == "tests"
    assert train[0].extra["extra_info"] == {"split": "train", "index": 0}
    assert [each.text for each in heldout] == ["3+3?"]


def test_several_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    one, two = jsonl(tmp_path / "a.jsonl", [row("a", "1")]), jsonl(tmp_path / "b.jsonl", [row("b", "2")])
    chosen = settings("task=file", f"train_files=['{one}', '{two}']", f"val_files={two}")
    assert [each.text for each in questions(chosen.task, WORDS)[0]] == ["a", "b"]


def test_overlong_prompts_are_left_out_and_counted(tmp_path: Path) -> None:
    named = files(tmp_path, [row("x" * 9), row("x" * 10), row("x" * 11)], [row("y")])
    train, _ = questions(settings("task=file", "max_prompt_tokens=10", *named).task, WORDS)
    assert [len(each.tokens) for each in train] == [9, 10]


def test_overlong_prompts_are_an_error_where_they_are_not_to_be_left_out(tmp_path: Path) -> None:
    named = files(tmp_path, [row("x" * 11)], [row("y")])
    chosen = settings("task=file", "max_prompt_tokens=10", "filter_overlong_prompts=false", *named)
    with pytest.raises(BadSetting, match="row 0 has 11 tokens, more than max_prompt_tokens=10"):
        questions(chosen.task, WORDS)


def test_a_file_of_overlong_prompts_only_is_an_error(tmp_path: Path) -> None:
    named = files(tmp_path, [row("x" * 11)], [row("y")])
    with pytest.raises(BadSetting, match=r"no question\b.*\b1 .*max_prompt_tokens=10"):
        questions(settings("task=file", "max_prompt_tokens=10", *named).task, WORDS)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (row(truth=5), "int '5' in column 'reward_model.ground_truth'"),
        (row(truth=None), "NoneType 'None' in column 'reward_model.ground_truth'"),
        (row(prompt="2+3?"), "str '2+3?' in column 'prompt'"),
        (row(prompt=[]), "empty 'prompt'"),
        (row(prompt=[{"role": "user"}]), "text 'role'"),
        (row(prompt=["hello"]), "str 'hello' in column 'prompt'"),
        (row(reward_model="5"), "str '5' in column 'reward_model'"),
        (row(data_source=None), "NoneType 'None' in column 'data_source'"),
        (row(extra_info=[1]), "list '[1]' in column 'extra_info'"),
        ({"question": "2+3?", "answer": "5"}, "column 'data_source'; it has 'question', 'answer'"),
    ],
)
def test_the_column_that_is_wrong_is_named(broken: dict[str, object], problem: str) -> None:
    assert problem in str(check(broken))


def test_a_row_in_verls_layout_has_no_problem() -> None:
    assert check(row()) is None
    assert check({key: value for key, value in row().items() if key not in ("ability", "extra_info")}) is None


def test_the_row_that_is_wrong_is_named(tmp_path: Path) -> None:
    named = files(tmp_path, [row(), row(truth=7)], [row()])
    with pytest.raises(BadSetting, match=r"train\.jsonl: row 1 has int '7' in column 'reward_model\.ground_truth'"):
        questions(settings("task=file", *named).task, WORDS)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("none.jsonl", None, r"none\.jsonl .*no file"),
        ("odd.csv", "a,b\n", r"is neither \.parquet nor \.jsonl"),
        ("half.jsonl", '{"a": 1}\n{"a"', "line 2 is no JSON"),
        ("deep.jsonl", "[" * 100_000, "line 1 is no JSON"),
        ("digits.jsonl", '{"a": ' + "1" * 100_000 + "}", "line 1 is no JSON"),
        ("list.jsonl", "[1]\n", "line 1 is no JSON object"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadSetting, match=problem):
        list(rows(tmp_path / name))


def test_text_that_the_tokens_cannot_express_is_refused_with_its_row(tmp_path: Path) -> None:
    named = files(tmp_path, [row("5 \u00a3?")], [row()])
    with pytest.raises(BadSetting, match=r"row 0 .*tokens .*5 \u00a3"):
        questions(settings("task=file", *named).task, WORDS)


@pytest.mark.parametrize("missing", ["train_files", "val_files"])
def test_a_list_that_is_not_named_is_asked_for(tmp_path: Path, missing: str) -> None:
    named = [word for word in files(tmp_path, [row()], [row()]) if not word.startswith(missing)]
    with pytest.raises(BadSetting, match=f"give {missing}=FILE"):
        questions(settings("task=gsm8k", *named).task, WORDS)


@pytest.mark.full
def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="reading parquet needs pyarrow")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(BadSetting, match=r"bad\.parquet .*as parquet"):
        list(rows(tmp_path / "bad.parquet"))


def test_a_missing_pyarrow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(BadSetting, match="package pyarrow"):
        list(rows(tmp_path / "a.parquet"))
