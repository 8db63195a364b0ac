"""Rules that look at files: only where the launch is to run on this machine, and nothing is ever run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.finding import Location
from npuenv.preflight.launch import Launch, LaunchSetting, Machine
from npuenv.preflight.rules import RULES

if TYPE_CHECKING:
    from pathlib import Path

GOOD = "def score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"


def found(settings: dict[str, Any], *, is_here: bool = True) -> dict[str, Any]:
    """The problems about data by rule."""
    written = {key: LaunchSetting(key, item, str(item), Location("", 1)) for key, item in settings.items()}
    launch = Launch("verl", None, written, {}, {}, Machine(is_here=is_here), "command")
    rules = [rule for rule in RULES if rule.id in ("preflight.path", "preflight.columns", "preflight.reward-signature")]
    return {problem.check: problem for rule in rules for problem in rule.judge(launch)}


def parquet(path: Path, *columns: str) -> str:
    """A file that ends as a parquet file does, with the columns' names in its footer."""
    footer = b"\x15\x04".join(column.encode() for column in columns)
    path.write_bytes(b"PAR1" + b"rows" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return str(path)


def test_a_missing_file_is_named_only_where_the_launch_is_to_run_here(tmp_path: Path) -> None:
    settings = {"data.train_files": [str(tmp_path / "train.parquet")]}
    assert found(settings)["preflight.path"].says.args["path"] == str(tmp_path / "train.parquet")
    assert found(settings, is_here=False) == {}


def test_a_model_of_a_hub_is_no_path() -> None:
    assert found({"actor_rollout_ref.model.path": "Qwen/Qwen2.5-0.5B-Instruct"}) == {}


def test_prompt_and_answer_are_not_the_columns_that_verl_reads(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", "prompt", "answer")
    assert found({"data.train_files": path})["preflight.columns"].says.args["missing"] == (
        "data_source",
        "reward_model",
    )


def test_the_five_columns_are_fine(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", "data_source", "prompt", "ability", "reward_model", "extra_info")
    assert found({"data.train_files": path, "data.val_files": path}) == {}


def test_a_long_list_of_columns_is_read_whole(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", "prompt", *(f"column_{number}" for number in range(9000)))
    assert "preflight.columns" in found({"data.train_files": path})


def test_a_file_that_is_no_parquet_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    assert found({"data.train_files": str(tmp_path / "a.parquet")}) == {}


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (GOOD, None),
        ("def score(**kwargs):\n    return 0\n", None),
        ("from elsewhere import score\n", None),
        ("def score(solution_str, ground_truth):\n    return 0\n", ("data_source", "extra_info")),
        ("def other(data_source, solution_str, ground_truth, extra_info):\n    return 0\n", ("score",)),
        ("raise SystemExit('it was run')\n" + GOOD, None),
        ("def score(:\n", None),
    ],
)
def test_a_reward_function_is_read_for_its_arguments(
    tmp_path: Path, text: str, missing: tuple[str, ...] | None
) -> None:
    path = tmp_path / "reward.py"
    path.write_text(text, encoding="utf-8")
    problems = found({"custom_reward_function.path": str(path), "custom_reward_function.name": "score"})
    assert (problems["preflight.reward-signature"].says.args["missing"] if problems else None) == missing
