"""Records: valid JSON whatever the numbers, flushed line by line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trainer.device import peak_rss_mib
from trainer.metrics.progress import Progress
from trainer.metrics.records import FILE, Records

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_each_record_is_on_disk_before_the_next_is_written(tmp_path: Path) -> None:
    with Records(tmp_path / "new" / "folder") as records:
        for number in range(3):
            records.write("step", step=number)
            lines = (tmp_path / "new" / "folder" / FILE).read_text(encoding="utf-8").splitlines()
            assert json.loads(lines[-1]) == {"kind": "step", "step": number}
            assert len(lines) == number + 1


def test_numbers_that_json_cannot_hold_become_texts_at_any_depth(tmp_path: Path) -> None:
    with Records(tmp_path) as records:
        records.write("step", loss=math.nan, deep={"list": [math.inf, (1.5, -math.inf)]}, fine=None)
    line = (tmp_path / FILE).read_text(encoding="utf-8")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(line, parse_constant=refuse)
    assert found == {"kind": "step", "loss": "nan", "deep": {"list": ["inf", [1.5, "-inf"]]}, "fine": None}


def test_an_older_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("old\n")
    with Records(tmp_path) as records:
        records.write("end")
    assert (tmp_path / FILE).read_text() == '{"kind": "end"}\n'


def test_a_full_disk_is_an_error_at_once(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / FILE).symlink_to("/dev/full")
    records = Records(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        records.write("step")
    with pytest.raises(OSError, match="No space left"), records:
        pass


class Echo:
    """A follower that answers each record, and speaks at the end."""

    def read(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"kind": "echo", "of": record["kind"], "loss": record.get("loss")}] if record["kind"] == "step" else []

    def finish(self) -> list[dict[str, Any]]:
        return [{"kind": "farewell", "share": math.inf}]


def test_what_a_follower_says_stands_after_what_it_read_and_before_the_end(tmp_path: Path) -> None:
    with Records(tmp_path, followers=[Echo()]) as records:
        records.write("step", loss=math.nan)
        records.write("end")
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text(encoding="utf-8").splitlines()]
    assert lines == [
        {"kind": "step", "loss": "nan"},
        {"kind": "echo", "of": "step", "loss": "nan"},
        {"kind": "farewell", "share": "inf"},
        {"kind": "end"},
    ]


def test_times_of_a_part_add_up_even_when_it_fails() -> None:
    progress = Progress()
    for _ in range(2):
        with pytest.raises(ValueError, match="x"), progress.phase("train"):
            raise ValueError("x")
    assert list(progress.seconds) == ["train"]
    assert 0 < progress.seconds["train"] <= progress.elapsed_s()


def test_the_peak_of_memory_is_in_mebibytes() -> None:
    assert 20 < peak_rss_mib() < 100_000
