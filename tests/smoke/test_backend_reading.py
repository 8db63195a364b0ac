"""What is read from lines of verl, ROLL and Ray, the made-up problems, and how a run without some numbers is judged."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from npuenv.core.errors import StepFailed
from npuenv.core.finding import Status
from npuenv.host.local import LocalHost
from npuenv.smoke.backends import CAUSES, judge
from npuenv.smoke.backends.monitor import Roll, Verl, pending, without_colours
from npuenv.smoke.backends.starting import rows, write_rows
from npuenv.smoke.judge import cause
from tests.smoke.backend_cases import BEFORE, PENDING, make_target, roll_step, verl_step


def test_a_line_of_verl_gives_its_numbers_below_rays_prefix_and_numpys_form() -> None:
    (record,) = Verl().read(without_colours(verl_step(34, loss="-1.5e-07")))
    assert (record["kind"], record["step"]) == ("step", 34)
    assert record["actor/pg_clipfrac"] == 0.00079
    assert record["actor/pg_loss"] == record["actor/loss"] == -1.5e-07
    assert record["training/global_step"] == 34.0


def test_a_recorded_run_of_the_real_verl_is_read_and_judged() -> None:
    log = (Path(__file__).parent / "recorded" / "verl-0.5.0.log").read_text(encoding="utf-8")
    read = Verl()
    records = [record for line in log.splitlines() for record in read.read(without_colours(line))]
    kinds = [("eval", 0), ("step", 1), ("step", 2), ("eval", 3), ("step", 3)]
    assert [(record["kind"], record["step"]) for record in records] == kinds
    assert len(records[1]) == 61 and records[4]["actor/loss"] == records[4]["actor/pg_loss"] == -0.053704882971942425
    head = {"kind": "header", "backend": "verl", "release": "0.5.0", "settings": {"steps": 3, "cards": 1}}
    found = judge([head, *records, {"kind": "end", "wall_s": 194.0}], exit_code=0, log=log)
    assert {each.status for each in found} == {Status.OK, Status.SKIP}
    died = judge([head, *records[:2], {"kind": "end", "wall_s": 60.0}], exit_code=1, log=log.partition("step:2")[0])
    assert next(each for each in died if each.check == "training.completed").says.key == "smoke.not-completed"


def test_a_number_that_is_none_stands_as_text_which_json_can_hold() -> None:
    (record,) = Verl().read(without_colours(verl_step(1, loss="nan", norm="-inf")))
    assert (record["actor/pg_loss"], record["actor/grad_norm"]) == ("nan", "-inf")
    assert "NaN" not in json.dumps(record)


def test_the_validation_before_training_is_no_step() -> None:
    (record,) = Verl().read(without_colours(BEFORE))
    assert record == {"kind": "eval", "step": 0, "val-core/openai/gsm8k/acc/mean@1": 0.125}


@pytest.mark.parametrize(
    "line", ["Training Progress:  33%|###   | 1/3", "step: 3", "my_step:3", "no step:x - a:1", "step:4 - words alone"]
)
def test_other_lines_of_verl_give_nothing(line: str) -> None:
    assert list(Verl().read(line)) == []


def test_rolls_metrics_count_once_their_step_is_closed_and_from_one_on() -> None:
    read = Roll()
    first, metrics, closing = roll_step(0)
    assert list(read.read(first)) == list(read.read(metrics)) == []
    evaluated, step = read.read(closing)
    assert evaluated == {"kind": "eval", "step": 1, "val/score/mean": 0.2}
    assert (step["step"], step["critic/score/mean"], step["actor/loss"]) == (1, 0.5, 0.02)
    assert list(read.read(roll_step(1)[2])) == []


def test_rolls_nan_is_read_as_json_writes_it() -> None:
    read = Roll()
    records = [record for line in roll_step(0, loss=math.nan) for record in read.read(line)]
    assert records[1]["actor/pg_loss"] == "nan"


@pytest.mark.parametrize(
    ("line", "demand"),
    [
        (without_colours(PENDING), "{'NPU': 1.0}"),
        (" {'NPU': 1.0}: 1+ pending tasks/actors", "{'NPU': 1.0}"),
        (
            " {'NPU': 1.0, 'CPU': 3.0} * 8 (STRICT_PACK): 1+ pending placement groups",
            "{'NPU': 1.0, 'CPU': 3.0} * 8 (STRICT_PACK)",
        ),
    ],
)
def test_each_of_rays_words_for_a_demand_is_known(line: str, demand: str) -> None:
    assert pending(line) == {"kind": "pending", "demand": demand}


def test_a_status_without_demand_is_none() -> None:
    assert pending(" (no resource demands)") is None


def test_the_problems_are_right_and_their_truth_is_text() -> None:
    for row in rows("train", 0, 40):
        question, solution = row["extra_info"]["question"], row["extra_info"]["answer"]
        boxes, each, used = (int(word) for word in question.replace(".", "").split() if word.isdigit())
        assert row["reward_model"]["ground_truth"] == str(boxes * each - used)
        assert solution.endswith(f"#### {boxes * each - used}")
    assert list(rows("test", 5, 1)[0]) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert [row["extra_info"]["index"] for row in rows("test", 5, 3)] == [0, 1, 2]


def test_real_parquet_has_the_columns_that_verl_reads(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    write_rows(LocalHost(), Path(sys.executable), {tmp_path / "t.parquet": rows("train", 0, 3)})
    schema = parquet.read_schema(tmp_path / "t.parquet")
    assert schema.names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert str(schema.field("reward_model").type) == "struct<style: string, ground_truth: string>"


def test_a_pyarrow_that_breaks_is_a_failed_step(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", "verl", ())
    (target / "site" / "pyarrow" / "parquet.py").write_text("raise OSError('libarrow.so is missing')\n")
    with pytest.raises(StepFailed) as caught:
        write_rows(LocalHost(), target / "bin" / "python", {tmp_path / "t.parquet": rows("train", 0, 1)})
    assert "libarrow.so is missing" in str(caught.value.message.args["reason"])


def run(*records: dict[str, Any], code: int = 0, log: str = "the last line") -> dict[str, tuple[Status, str]]:
    """Status and key of each finding of a run of one step."""
    head = {"kind": "header", "backend": "verl", "release": "0.7.1", "settings": {"steps": 1, "cards": 1}}
    found = judge([head, *records, {"kind": "end", "wall_s": 1.0}], exit_code=code, log=log)
    return {each.check: (each.status, each.says.key) for each in found}


def test_a_step_without_reward_or_gradient_is_unknown_and_not_fine() -> None:
    found = run({"kind": "step", "step": 1, "actor/loss": 0.1})
    assert found["training.losses-finite"] == (Status.UNKNOWN, "smoke.backend-no-number")
    assert found["training.reward"] == (Status.UNKNOWN, "smoke.backend-no-number")


def test_a_reward_that_varies_between_steps_alone_is_constant() -> None:
    steps = [
        {"kind": "step", "step": at, "critic/score/min": value, "critic/score/max": value}
        for at, value in ((1, 0.0), (2, 1.0))
    ]
    assert run(*steps)["training.reward"] == (Status.FAIL, "smoke.backend-constant-reward")


def test_a_run_that_ended_without_a_word_says_so_and_measures_nothing() -> None:
    found = run(code=3, log="")
    assert found["training.completed"] == (Status.FAIL, "smoke.ended-in-silence")
    assert found["training.validated"] == (Status.UNKNOWN, "smoke.not-measured")


def test_every_failure_has_its_place_among_the_causes() -> None:
    found = judge([{"kind": "header", "settings": {}}], exit_code=1, log="RuntimeError: x")
    first = cause(found, CAUSES)
    assert first is not None and first.says.key == "smoke.not-completed"
