"""Runs over cards and nodes: the options that stand for settings, records that go on in another file, a loss."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cli.smoke_train import parse_settings, with_options
from npuenv.core.errors import BadInput
from npuenv.smoke.judge import judge
from npuenv.smoke.run import METRICS, follow, records_of

if TYPE_CHECKING:
    from pathlib import Path


def lines(*records: dict[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def step(number: int) -> dict[str, object]:
    return {"kind": "step", "step": number}


class Resuming:
    """A process that loses two steps, goes on in a file of its own from the first, and ends."""

    def __init__(self, path: Path) -> None:
        self.path, self.looks = path, 0

    def wait(self, timeout_s: float) -> int | None:
        self.looks += 1
        if self.looks == 1:
            self.path.write_text(lines(step(1), step(2), step(3)))
        if self.looks == 3:
            fresh = self.path.with_suffix(".unfinished")
            fresh.write_text(lines(step(1)))
            os.replace(fresh, self.path)
        if self.looks == 5:
            with self.path.open("a") as file:
                file.write(lines({"kind": "resumed", "step": 1}, step(2), step(3), {"kind": "end"}))
        return 0 if self.looks > 6 else None


def test_records_that_go_on_after_a_loss_are_followed_and_continuous_in_the_end(tmp_path: Path) -> None:
    followed = list(follow(Resuming(tmp_path / METRICS), tmp_path))  # type: ignore[arg-type]
    assert [each.get("step") for each in followed] == [1, 2, 3, 1, 2, 3, None]
    assert [each["kind"] for each in followed].count("resumed") == 1
    kept = records_of(tmp_path)
    assert [each["step"] for each in kept if each["kind"] == "step"] == [1, 2, 3]


def test_options_are_settings_and_may_be_said_twice_only_alike() -> None:
    options = {"train_cards": "0-3", "infer_cards": None, "off_policy": 1}
    assert with_options({"steps": "5"}, options) == {"steps": "5", "train_cards": "0-3", "off_policy": "1"}
    assert with_options({"train_cards": "0-3"}, options)["train_cards"] == "0-3"
    with pytest.raises(BadInput) as refused:
        with_options({"train_cards": "0-7"}, options)
    assert refused.value.message.args == {"option": "--train-cards 0-3", "word": "train_cards=0-7"}
    assert parse_settings(("lr=1", "lr=1")) == {"lr": "1"}
    with pytest.raises(BadInput) as refused:
        parse_settings(("lr=1", "seed=1", "lr=2"))
    assert refused.value.message.args == {"option": "lr=1", "word": "lr=2"}


def test_a_placed_run_that_ended_by_a_loss_names_it_although_no_rank_was_at_fault() -> None:
    lost = "node 10.0.0.2 was lost, and with it generator 0"
    records: list[dict[str, Any]] = [
        {"kind": "end", "status": "failed", "reason": "RuntimeError: connection reset"},
        {"kind": "ranks", "passed": False, "reason": lost, "restarts": [{"reason": lost, "from_step": 3}]},
    ]
    first = judge(records, exit_code=1, log_tail="")[0]
    assert first.says.key == "smoke.part-lost" and first.says.args["reason"] == lost
